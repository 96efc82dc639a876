// SPDX-License-Identifier: Apache-2.0
// The router as a server: OpenAI's API in front, prefill and decode workers behind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "base/time.h"
#include "fleet/fleet.h"
#include "http/server.h"
#include "net/loop.h"
#include "net/stream.h"
#include "router/core/core.h"

namespace isthmus::router::shell {

struct RouterOptions {
  fleet::Fleet fleet;    // At least one worker.
  net::Endpoint listen;  // Port 0 lets the system choose.
  core::Config core;
  http::ServerLimits server;
  Duration health_interval = std::chrono::seconds(1);  // Between two GET /ready of one worker.
};

// What the canary found of a pair of workers (spec/canary.md).
struct PairFinding {
  std::string prefill, decode;  // Names.
  bool is_sound = false;        // Requests may be handed over.
  std::string finding;
};

// Paths: POST /v1/completions, /v1/chat/completions; GET /v1/models, /health, /ready, /metrics,
// /isthmus/workers.
//
// A completion goes to a prefill worker first (stream off, one token), whose answer comes at admission and
// holds the transfer object; that object is spliced into the client's own body for the decode worker, whose
// answer goes to the client as it is. Both legs carry one X-Request-Id and the client's traceparent. When a
// client leaves, both are told.
//
// Thread: everything on the loop's thread, destruction included. Owns nothing of the fleet: workers are only
// asked.
class Router {
 public:
  // Errors: invalid_argument (no workers), unavailable (can't listen).
  static Result<std::unique_ptr<Router>> start(net::Loop& loop, RouterOptions options,
                                               MetricsRegistry& metrics);
  virtual ~Router() = default;

  virtual net::Endpoint endpoint() const = 0;
  // Can some model be served now? unavailable with each worker's reason if not.
  virtual Status ready() const = 0;
  // Are there two workers of which it isn't known yet whether their states agree?
  virtual bool is_trying() const = 0;
  virtual std::vector<PairFinding> pairs() const = 0;  // Those that were tried.
  // New connections are refused; requests in flight go on.
  virtual void stop_accepting() = 0;
  virtual core::Ledger ledger() const = 0;
};

}  // namespace isthmus::router::shell
