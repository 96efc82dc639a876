// SPDX-License-Identifier: Apache-2.0
// A request's life in the router: events, retries, deadlines, ledger.
#include "router/core/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isthmus::router::core {
namespace {

constexpr const char* kApart = "they are on planes that don't meet";
constexpr const char* kNotTried = "not tried yet";

}  // namespace

bool is_retryable(Code code) {
  return code != Code::kInvalidArgument && code != Code::kUnsupported && code != Code::kCancelled;
}

Core::Core(const Config& config, const fleet::Fleet& fleet)
    : config_(config), models_(fleet.models), workers_(fleet.workers), states_(fleet.workers.size()) {
  for (WorkerIndex p = 0; p < workers_.size(); ++p) {
    const auto model = std::ranges::find(models_, workers_[p].model, &fleet::Model::name);
    const bool is_tried_first = model != models_.end() && model->canary == fleet::Canary::kFirstContact;
    for (WorkerIndex d = 0; d < workers_.size(); ++d) {
      const bool is_apart = p == d || workers_[p].plane != workers_[d].plane;
      pair_reasons_.emplace_back(is_apart ? kApart : is_tried_first ? kNotTried : "");
    }
  }
}

void Core::step(const Event& event, Instant now, std::vector<Action>& out) {
  const Step step{now, &out};
  stepped_at_ = now;
  std::visit([&](const auto& e) { on(e, step); }, event);
  if (may_drain_) drain_queue(step);
}

Instant Core::next_deadline() const {
  Instant next = kFarFuture;
  for (const auto& [id, request] : requests_) {
    next = std::min({next, request.deadline, request.phase_deadline});
  }
  // A queued request may wait for a worker whose breaker lets a trial through.
  if (queue_.empty()) return next;
  for (const WorkerState& state : states_) {
    const bool will_change = state.breaker == Breaker::kOpen && state.open_until > stepped_at_;
    if (will_change) next = std::min(next, state.open_until);
  }
  return next;
}

void Core::on(const Arrived& event, Step step) {
  ++ledger_.arrived;
  const auto model = std::ranges::find(models_, event.model, &fleet::Model::name);
  Request request;
  request.id = event.request;
  request.model = static_cast<std::uint32_t>(model - models_.begin());
  request.prompt_tokens = event.prompt_tokens;
  request.output_tokens = event.output_tokens;
  request.deadline = step.now + config_.request_timeout;
  request.phase_deadline = std::min(request.deadline, step.now + config_.queue_timeout);
  const auto [it, inserted] = requests_.emplace(event.request, std::move(request));
  ISTHMUS_CHECK(inserted);
  queue_.push_back(event.request);
  if (model == models_.end()) {
    return answer_error(
        it->second, {Code::kInvalidArgument, fmt::format("no model '{}' in this fleet", event.model)}, step);
  }
  drain_queue(step);
  // Only the newcomer can be one too many, and it is last.
  if (queue_.size() > config_.queue_max) {
    ISTHMUS_CHECK(queue_.back() == event.request);
    answer_error(
        requests_.at(event.request),
        {Code::kExhausted, fmt::format("all workers are busy and {} requests wait", config_.queue_max)},
        step);
  }
}

void Core::on(const WorkerReport& event, Step) {
  ISTHMUS_CHECK(event.worker < states_.size());
  WorkerState& state = states_[event.worker];
  state.ready = event.ready;
  state.reason = event.ready ? "" : event.reason;
  may_drain_ = true;
}

void Core::on(const PairTried& event, Step) {
  ISTHMUS_CHECK(event.prefill < workers_.size() && event.decode < workers_.size());
  std::string& reason = pair_reasons_[event.prefill * workers_.size() + event.decode];
  if (reason == kApart) return;
  reason = event.is_sound ? "" : event.reason.empty() ? kNotTried : event.reason;
  may_drain_ = true;
}

void Core::on(const PrefillAdmitted& event, Step step) {
  Request* request = find(event.request, event.attempt, {Phase::kPrefill});
  if (request == nullptr) return;
  note_success(*request->prefill);
  request->is_superseding = false;
  if (event.has_transfer) {
    request->prefill_admitted = true;
    return ask_decode(*request, true, "", step);
  }
  // Legal: P decided that a handoff isn't worth it (a prompt of one or two tokens).
  release(*request, Leg::kPrefill);
  ask_decode(*request, false, "the prefill worker's answer has no transfer object", step);
}

void Core::on(const FirstToken& event, Step) {
  Request* request = find(event.request, event.attempt, {Phase::kDecode});
  if (request == nullptr) return;
  note_success(*request->decode);
  release(*request, Leg::kPrefill);
  request->phase = Phase::kStreaming;
}

void Core::on(const Finished& event, Step) {
  Request* request = find(event.request, event.attempt, {Phase::kDecode, Phase::kStreaming});
  if (request == nullptr) return;
  note_success(*request->decode);
  ++ledger_.finished;
  end(*request);
}

void Core::on(const Failed& event, Step step) {
  if (event.leg == Leg::kPrefill) {
    Request* request = find(event.request, event.attempt, {Phase::kPrefill});
    if (request != nullptr) prefill_failed(*request, event.error, step);
    return;
  }
  Request* request = find(event.request, event.attempt, {Phase::kDecode, Phase::kStreaming});
  if (request != nullptr) decode_failed(*request, event.error, step);
}

void Core::on(const Cancelled& event, Step step) {
  const auto it = requests_.find(event.request);
  if (it == requests_.end()) return;
  cancel_legs(it->second, step);
  ++ledger_.cancelled;
  end(it->second);
}

void Core::on(const Tick&, Step step) {
  std::vector<RequestId> due;
  for (const auto& [id, request] : requests_) {
    if (std::min(request.deadline, request.phase_deadline) <= step.now) due.push_back(id);
  }
  for (const RequestId id : due) expire(requests_.at(id), step);
  may_drain_ = true;
}

void Core::expire(Request& request, Step step) {
  if (request.phase == Phase::kQueued) {
    return answer_error(request, {Code::kExhausted, "no worker became free in time; try again later"}, step);
  }
  if (request.deadline <= step.now) {
    const WorkerIndex holder = request.phase == Phase::kPrefill ? *request.prefill : *request.decode;
    Error error{Code::kDeadlineExceeded,
                fmt::format("not finished within {} s (at worker {})",
                            std::chrono::duration_cast<std::chrono::seconds>(config_.request_timeout).count(),
                            workers_[holder].name)};
    cancel_legs(request, step);
    return answer_error(request, std::move(error), step);
  }
  ISTHMUS_CHECK(request.phase == Phase::kPrefill);
  const WorkerIndex prefill = *request.prefill;
  step.out->push_back(CancelLeg{request.id, Leg::kPrefill, prefill});
  prefill_failed(request,
                 {Code::kDeadlineExceeded,
                  fmt::format("worker {} didn't admit the prefill in time", workers_[prefill].name)},
                 step);
}

Core::Request* Core::find(RequestId request, std::uint32_t attempt, std::initializer_list<Phase> phases) {
  const auto it = requests_.find(request);
  if (it == requests_.end() || it->second.attempt != attempt) return nullptr;
  return std::ranges::find(phases, it->second.phase) == phases.end() ? nullptr : &it->second;
}

void Core::start(Request& request, const Pair& pair, Step step) {
  count(request, Leg::kDecode, pair.decode);
  if (!pair.prefill.has_value()) return ask_decode(request, false, pair.why_local, step);
  count(request, Leg::kPrefill, *pair.prefill);
  ask_prefill(request, step);
}

void Core::ask_prefill(Request& request, Step step) {
  request.phase = Phase::kPrefill;
  request.prefill_admitted = false;
  request.phase_deadline = std::min(request.deadline, step.now + config_.admission_timeout);
  step.out->push_back(DispatchPrefill{request.id, ++request.attempt, *request.prefill});
}

void Core::ask_decode(Request& request, bool with_transfer, std::string why_local, Step step) {
  if (!why_local.empty()) ++ledger_.local_prefills;
  request.phase = Phase::kDecode;
  request.phase_deadline = request.deadline;
  step.out->push_back(
      DispatchDecode{request.id, ++request.attempt, *request.decode, with_transfer, std::move(why_local)});
}

void Core::prefill_failed(Request& request, Error error, Step step) {
  if (request.is_superseding) return supersede_failed(request, std::move(error), step);
  const WorkerIndex failed = *request.prefill;
  note_failure(failed, error, step.now);
  release(request, Leg::kPrefill);
  if (!is_retryable(error.code)) return answer_error(request, std::move(error), step);
  request.excluded_prefill.push_back(failed);
  if (request.prefill_retries < config_.prefill_retries_max) {
    std::vector<WorkerIndex> others = with_room(fit(request, Leg::kPrefill, step.now));
    std::erase_if(others, [&](WorkerIndex worker) { return !can_pair(worker, *request.decode); });
    if (!others.empty()) {
      ++request.prefill_retries;
      ++ledger_.prefill_retries;
      count(request, Leg::kPrefill, least_loaded(others));
      return ask_prefill(request, step);
    }
  }
  if (models_[request.model].on_failure == fleet::OnFailure::kFail) {
    return answer_error(request, std::move(error), step);
  }
  ask_decode(request, false, fmt::format("prefill worker {} failed: {}", workers_[failed].name, error.text()),
             step);
}

void Core::decode_failed(Request& request, Error error, Step step) {
  const WorkerIndex failed = *request.decode;
  note_failure(failed, error, step.now);
  const bool may_retry = request.phase != Phase::kStreaming && is_retryable(error.code) &&
                         request.decode_retries < config_.decode_retries_max;
  if (may_retry) {
    ++request.decode_retries;
    ++ledger_.decode_retries;
    release(request, Leg::kDecode);
    request.excluded_decode.push_back(failed);
    if (supersede(request, step)) return;
  }
  if (request.prefill.has_value()) {
    // Its state waits for a consumer that won't come; a retry begins anew with a ticket of its own.
    step.out->push_back(CancelLeg{request.id, Leg::kPrefill, *request.prefill});
    release(request, Leg::kPrefill);
  }
  if (!may_retry) return answer_error(request, std::move(error), step);
  start_anew(request, std::move(error), step);
}

// The state that was prefilled goes to another decode worker that can take it, if there is one.
bool Core::supersede(Request& request, Step step) {
  if (!request.prefill.has_value() || !request.prefill_admitted) return false;
  std::vector<WorkerIndex> others = with_room(fit(request, Leg::kDecode, step.now));
  std::erase_if(others, [&](WorkerIndex worker) { return !can_pair(*request.prefill, worker); });
  if (others.empty()) return false;
  count(request, Leg::kDecode, least_loaded(others));
  request.phase = Phase::kPrefill;
  request.prefill_admitted = false;
  request.is_superseding = true;
  request.phase_deadline = std::min(request.deadline, step.now + config_.admission_timeout);
  step.out->push_back(DispatchPrefill{request.id, ++request.attempt, *request.prefill, true});
  return true;
}

// It may have been taken already, or be gone with its worker.
void Core::supersede_failed(Request& request, Error error, Step step) {
  const WorkerIndex holder = *request.prefill;
  request.is_superseding = false;
  if (error.code != Code::kNotFound) {
    note_failure(holder, error, step.now);
    request.excluded_prefill.push_back(holder);
  }
  step.out->push_back(CancelLeg{request.id, Leg::kPrefill, holder});
  release(request, Leg::kPrefill);
  release(request, Leg::kDecode);
  start_anew(request, std::move(error), step);
}

void Core::start_anew(Request& request, Error error, Step step) {
  const auto pair = choose(request, step.now);
  if (!pair.ok()) return answer_error(request, std::move(error), step);
  start(request, *pair, step);
}

void Core::cancel_legs(const Request& request, Step step) {
  const bool asked_decode = request.phase == Phase::kDecode || request.phase == Phase::kStreaming;
  if (asked_decode) step.out->push_back(CancelLeg{request.id, Leg::kDecode, *request.decode});
  if (request.prefill.has_value())
    step.out->push_back(CancelLeg{request.id, Leg::kPrefill, *request.prefill});
}

void Core::answer_error(Request& request, Error error, Step step) {
  step.out->push_back(AnswerError{request.id, std::move(error), request.phase == Phase::kStreaming});
  ++ledger_.failed;
  end(request);
}

void Core::end(Request& request) {
  release(request, Leg::kPrefill);
  release(request, Leg::kDecode);
  std::erase(queue_, request.id);
  const RequestId id = request.id;
  requests_.erase(id);
  may_drain_ = true;
}

void Core::drain_queue(Step step) {
  may_drain_ = false;
  const std::vector<RequestId> waiting = queue_;
  for (const RequestId id : waiting) {
    if (requests_.size() - queue_.size() >= config_.live_max) return;
    Request& request = requests_.at(id);
    const auto pair = choose(request, step.now);
    if (pair.ok()) {
      std::erase(queue_, id);
      start(request, *pair, step);
    } else if (pair.code() != Code::kExhausted) {
      answer_error(request, pair.error(), step);
    }
  }
  may_drain_ = false;
}

Ledger Core::ledger() const {
  Ledger ledger = ledger_;
  ledger.queued = queue_.size();
  ledger.live = requests_.size() - queue_.size();
  return ledger;
}

Status Core::check() const {
  const Ledger counted = ledger();
  const std::uint64_t ended = counted.finished + counted.failed + counted.cancelled;
  if (counted.arrived != ended + counted.live + counted.queued) {
    return Error{Code::kInternal, fmt::format("{} arrived, {} ended, {} live, {} queued", counted.arrived,
                                              ended, counted.live, counted.queued)};
  }
  std::vector<WorkerState> recounted(states_.size());
  for (const auto& [id, request] : requests_) {
    for (const Leg leg : {Leg::kPrefill, Leg::kDecode}) {
      const auto& worker = leg == Leg::kPrefill ? request.prefill : request.decode;
      if (!worker.has_value()) continue;
      ++recounted[*worker].requests;
      recounted[*worker].tokens += load_of(request, leg);
    }
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].requests == recounted[i].requests && states_[i].tokens == recounted[i].tokens) continue;
    return Error{Code::kInternal, fmt::format("worker {}: {} requests and {} tokens counted, {} and {} live",
                                              workers_[i].name, states_[i].requests, states_[i].tokens,
                                              recounted[i].requests, recounted[i].tokens)};
  }
  return ok_status();
}

}  // namespace isthmus::router::core
