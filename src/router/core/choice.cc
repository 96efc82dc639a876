// SPDX-License-Identifier: Apache-2.0
// Which workers are fit, which pair carries the least load, and the circuit breakers.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "router/core/core.h"

namespace isthmus::router::core {

bool Core::is_usable(WorkerIndex worker, Instant now) const {
  const WorkerState& state = states_[worker];
  if (!state.ready || state.breaker == Breaker::kTrial) return false;
  return state.breaker == Breaker::kClosed || now >= state.open_until;
}

std::string Core::unusable_reason(WorkerIndex worker, Instant now) const {
  const WorkerState& state = states_[worker];
  if (!state.ready) return state.reason.empty() ? "not ready" : state.reason;
  if (state.breaker == Breaker::kTrial) return "on trial after failures";
  if (is_usable(worker, now)) return "";
  return fmt::format("{} failures in a row", state.failures);
}

bool Core::has_room(WorkerIndex worker) const {
  return states_[worker].requests < config_.worker_requests_max;
}

std::vector<WorkerIndex> Core::with_room(std::vector<WorkerIndex> workers) const {
  std::erase_if(workers, [this](WorkerIndex worker) { return !has_room(worker); });
  return workers;
}

bool Core::serves(WorkerIndex worker, std::uint32_t model, Leg leg) const {
  const fleet::Role other = leg == Leg::kPrefill ? fleet::Role::kDecode : fleet::Role::kPrefill;
  return workers_[worker].model == models_[model].name && workers_[worker].role != other;
}

bool Core::can_pair(WorkerIndex prefill, WorkerIndex decode) const {
  return pair_reason(prefill, decode).empty();
}

std::string Core::unpaired_reason(WorkerIndex prefill, std::uint32_t model, Instant now) const {
  std::string reason;
  for (WorkerIndex d = 0; d < workers_.size(); ++d) {
    if (d == prefill || !serves(d, model, Leg::kDecode) || !is_usable(d, now)) continue;
    const std::string& why = pair_reason(prefill, d);
    if (why.empty()) return "";
    if (reason.empty()) reason = fmt::format("no pair with {}: {}", workers_[d].name, why);
  }
  return reason;
}

std::vector<WorkerIndex> Core::fit(const Request& request, Leg leg, Instant now) const {
  const auto& excluded = leg == Leg::kPrefill ? request.excluded_prefill : request.excluded_decode;
  std::vector<WorkerIndex> found;
  for (WorkerIndex i = 0; i < workers_.size(); ++i) {
    if (!serves(i, request.model, leg) || !is_usable(i, now)) continue;
    if (std::ranges::find(excluded, i) == excluded.end()) found.push_back(i);
  }
  return found;
}

std::string Core::why_none_fit(std::uint32_t model, Leg leg, Instant now) const {
  constexpr std::size_t kTextMax = 600;
  const std::string_view role = leg == Leg::kPrefill ? "prefill" : "decode";
  std::string reasons;
  for (WorkerIndex i = 0; i < workers_.size() && reasons.size() < kTextMax; ++i) {
    if (!serves(i, model, leg)) continue;
    std::string reason = unusable_reason(i, now);
    if (reason.empty() && leg == Leg::kPrefill) reason = unpaired_reason(i, model, now);
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", workers_[i].name,
                           reason.empty() ? "failed this request" : reason);
  }
  if (reasons.empty()) return fmt::format("the fleet has no {} worker for '{}'", role, models_[model].name);
  return fmt::format("no {} worker is ready for '{}' ({})", role, models_[model].name, reasons);
}

WorkerIndex Core::least_loaded(const std::vector<WorkerIndex>& candidates) const {
  ISTHMUS_CHECK(!candidates.empty());
  // Idle workers take turns. Not by how often each was asked: one that comes back would get all until it has
  // made up for its absence.
  return *std::ranges::min_element(candidates, {}, [this](WorkerIndex worker) {
    const WorkerState& state = states_[worker];
    return std::tuple(state.tokens, state.requests, state.turn, worker);
  });
}

Result<Core::Pair> Core::choose(const Request& request, Instant now) const {
  const std::vector<WorkerIndex> decode = fit(request, Leg::kDecode, now);
  if (decode.empty()) return Error{Code::kUnavailable, why_none_fit(request.model, Leg::kDecode, now)};
  std::vector<WorkerIndex> prefill = fit(request, Leg::kPrefill, now);
  std::erase_if(prefill, [&](WorkerIndex p) {
    return std::ranges::none_of(decode, [&](WorkerIndex d) { return can_pair(p, d); });
  });
  if (prefill.empty()) return choose_local(request, decode, now);

  const std::vector<WorkerIndex> free_decode = with_room(decode);
  std::vector<WorkerIndex> free_prefill = with_room(prefill);
  std::erase_if(free_prefill, [&](WorkerIndex p) {
    return std::ranges::none_of(free_decode, [&](WorkerIndex d) { return can_pair(p, d); });
  });
  if (free_prefill.empty()) return Error{Code::kExhausted, "all workers are busy"};
  Pair pair;
  pair.prefill = least_loaded(free_prefill);
  std::vector<WorkerIndex> partners = free_decode;
  std::erase_if(partners, [&](WorkerIndex d) { return !can_pair(*pair.prefill, d); });
  pair.decode = least_loaded(partners);
  return pair;
}

Result<Core::Pair> Core::choose_local(const Request& request, const std::vector<WorkerIndex>& decode,
                                      Instant now) const {
  bool fleet_has_prefill = false;
  for (WorkerIndex i = 0; i < workers_.size(); ++i) {
    // A lone worker of role both isn't a lost prefill worker: it has no partner by design.
    fleet_has_prefill =
        fleet_has_prefill || (serves(i, request.model, Leg::kPrefill) &&
                              std::ranges::any_of(decode, [&](WorkerIndex d) { return i != d; }));
  }
  Pair pair;
  if (fleet_has_prefill) {
    pair.why_local = why_none_fit(request.model, Leg::kPrefill, now);
    if (models_[request.model].on_failure == fleet::OnFailure::kFail) {
      return Error{Code::kUnavailable, std::move(pair.why_local)};
    }
  }
  const std::vector<WorkerIndex> free_decode = with_room(decode);
  if (free_decode.empty()) return Error{Code::kExhausted, "all workers are busy"};
  pair.decode = least_loaded(free_decode);
  return pair;
}

Status Core::can_serve(std::string_view model, Instant now) const {
  const auto it = std::ranges::find(models_, model, &fleet::Model::name);
  if (it == models_.end()) {
    return Error{Code::kInvalidArgument, fmt::format("no model '{}' in this fleet", model)};
  }
  Request request;
  request.model = static_cast<std::uint32_t>(it - models_.begin());
  const auto pair = choose(request, now);
  return pair.ok() || pair.code() == Code::kExhausted ? ok_status() : pair.status();
}

WorkerView Core::view(WorkerIndex worker, Instant now) const {
  ISTHMUS_CHECK(worker < states_.size());
  const WorkerState& state = states_[worker];
  WorkerView view;
  view.ready = state.ready;
  view.reason = unusable_reason(worker, now);
  view.breaker_open = state.breaker != Breaker::kClosed;
  view.requests = state.requests;
  view.tokens = state.tokens;
  view.dispatched = state.dispatched;
  return view;
}

std::uint64_t Core::load_of(const Request& request, Leg leg) const {
  return leg == Leg::kPrefill ? request.prompt_tokens : request.prompt_tokens + request.output_tokens;
}

void Core::count(Request& request, Leg leg, WorkerIndex worker) {
  auto& slot = leg == Leg::kPrefill ? request.prefill : request.decode;
  ISTHMUS_CHECK(!slot.has_value());
  slot = worker;
  WorkerState& state = states_[worker];
  ++state.requests;
  ++state.dispatched;
  state.turn = ++turns_;
  state.tokens += load_of(request, leg);
  if (state.breaker != Breaker::kOpen) return;
  state.breaker = Breaker::kTrial;
  state.trial = request.id;
}

void Core::release(Request& request, Leg leg) {
  auto& slot = leg == Leg::kPrefill ? request.prefill : request.decode;
  if (!slot.has_value()) return;
  WorkerState& state = states_[*slot];
  slot.reset();
  ISTHMUS_CHECK(state.requests > 0 && state.tokens >= load_of(request, leg));
  --state.requests;
  state.tokens -= load_of(request, leg);
  may_drain_ = true;
  // A trial that ended without an outcome (the client left) leaves the next one to another request, at once:
  // `open_until` has passed.
  if (state.breaker == Breaker::kTrial && state.trial == request.id) state.breaker = Breaker::kOpen;
}

void Core::note_success(WorkerIndex worker) {
  states_[worker].failures = 0;
  states_[worker].breaker = Breaker::kClosed;
}

void Core::note_failure(WorkerIndex worker, const Error& error, Instant now) {
  // A full worker and a wrong request are no faults of the worker's.
  if (error.code == Code::kExhausted || !is_retryable(error.code)) return note_success(worker);
  WorkerState& state = states_[worker];
  ++state.failures;
  if (state.breaker == Breaker::kClosed && state.failures < config_.breaker_failures) return;
  state.breaker = Breaker::kOpen;
  state.open_until = now + config_.breaker_cooldown;
}

}  // namespace isthmus::router::core
