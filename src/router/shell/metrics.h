// SPDX-License-Identifier: Apache-2.0
// What the router counts; label values are codes, legs and worker names of the fleet file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "base/time.h"
#include "fleet/fleet.h"
#include "router/core/core.h"

namespace isthmus::router::shell {

class RouterMetrics {
 public:
  RouterMetrics(MetricsRegistry& registry, const fleet::Fleet& fleet);

  void ended(Code code) const;
  void first_token(Duration since_arrival, std::optional<Duration> slo) const;
  // Brings gauges and counters up to date with the core; called when somebody reads them.
  void refresh(const core::Core& core, Instant now) const;

 private:
  struct PerWorker {
    Gauge ready, breaker_open, requests, tokens;
    Counter dispatched;
  };
  std::vector<Counter> requests_;  // By code.
  Histogram ttft_;
  Counter slo_missed_, prefill_retries_, decode_retries_, local_prefills_;
  Gauge inflight_, queued_;
  std::vector<PerWorker> workers_;
};

}  // namespace isthmus::router::shell
