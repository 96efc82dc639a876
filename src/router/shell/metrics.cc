// SPDX-License-Identifier: Apache-2.0
// Names and help texts of the router's metrics.
#include "router/shell/metrics.h"

namespace isthmus::router::shell {
namespace {

double seconds_of(Duration time) {
  return std::chrono::duration<double>(time).count();
}

void raise_to(const Counter& counter, double total) {
  const double behind = total - counter.value();
  if (behind > 0) counter.add(behind);
}

}  // namespace

RouterMetrics::RouterMetrics(MetricsRegistry& registry, const fleet::Fleet& fleet) {
  for (std::uint8_t code = 0; code < kCodeCount; ++code) {
    requests_.push_back(registry.counter("isthmus_router_requests_total",
                                         "Completion requests by how they ended",
                                         {{"code", std::string(name(static_cast<Code>(code)))}}));
  }
  ttft_ =
      registry.histogram("isthmus_ttft_seconds", "From a request's arrival to its first token, at the router",
                         {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60});
  slo_missed_ =
      registry.counter("isthmus_router_ttft_slo_missed_total", "First tokens later than slo.ttft_p90");
  const std::string retries = "isthmus_router_retries_total";
  const std::string retries_help = "Legs tried again at another worker";
  prefill_retries_ = registry.counter(retries, retries_help, {{"leg", "prefill"}});
  decode_retries_ = registry.counter(retries, retries_help, {{"leg", "decode"}});
  local_prefills_ =
      registry.counter("isthmus_router_local_prefills_total",
                       "Prompts left to the decode worker because no prefill worker could serve them");
  inflight_ = registry.gauge("isthmus_router_inflight", "Requests dispatched and not yet ended");
  queued_ = registry.gauge("isthmus_router_queued", "Requests waiting for a free pair of workers");
  for (const fleet::Worker& worker : fleet.workers) {
    const MetricLabels labels = {{"worker", worker.name}, {"role", std::string(fleet::name(worker.role))}};
    workers_.push_back({
        registry.gauge("isthmus_router_worker_ready", "1 if the worker says that it is ready", labels),
        registry.gauge("isthmus_router_worker_breaker_open", "1 if the worker failed too often in a row",
                       labels),
        registry.gauge("isthmus_router_worker_requests", "Requests counted on the worker", labels),
        registry.gauge("isthmus_router_worker_tokens", "Token load counted on the worker", labels),
        registry.counter("isthmus_router_worker_dispatched_total", "Legs given to the worker", labels),
    });
  }
}

void RouterMetrics::ended(Code code) const {
  requests_[static_cast<std::size_t>(code)].add();
}

void RouterMetrics::first_token(Duration since_arrival, std::optional<Duration> slo) const {
  ttft_.observe(seconds_of(since_arrival));
  if (slo.has_value() && since_arrival > *slo) slo_missed_.add();
}

void RouterMetrics::refresh(const core::Core& core, Instant now) const {
  const core::Ledger ledger = core.ledger();
  inflight_.set(static_cast<double>(ledger.live));
  queued_.set(static_cast<double>(ledger.queued));
  raise_to(prefill_retries_, static_cast<double>(ledger.prefill_retries));
  raise_to(decode_retries_, static_cast<double>(ledger.decode_retries));
  raise_to(local_prefills_, static_cast<double>(ledger.local_prefills));
  for (core::WorkerIndex i = 0; i < workers_.size(); ++i) {
    const core::WorkerView view = core.view(i, now);
    workers_[i].ready.set(view.ready ? 1 : 0);
    workers_[i].breaker_open.set(view.breaker_open ? 1 : 0);
    workers_[i].requests.set(view.requests);
    workers_[i].tokens.set(static_cast<double>(view.tokens));
    raise_to(workers_[i].dispatched, static_cast<double>(view.dispatched));
  }
}

}  // namespace isthmus::router::shell
