// SPDX-License-Identifier: Apache-2.0
// The router's decisions: which prefill and which decode worker a request uses, and what follows each
// failure. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "fleet/fleet.h"

namespace isthmus::router::core {

// Chosen by the shell, never reused.
using RequestId = std::uint64_t;
// Index into Fleet::workers.
using WorkerIndex = std::uint32_t;

struct Config {
  std::uint32_t live_max = 512;  // Requests dispatched at once, all workers together; over it they queue.
  std::uint32_t worker_requests_max = 64;  // Requests counted on one worker; a worker at it gets none.
  std::uint32_t queue_max = 256;           // Waiting requests; over it: exhausted.
  Duration queue_timeout =
      std::chrono::seconds(30);  // Waiting for a free pair, here and at its workers; over it: exhausted.
  Duration admission_timeout =
      std::chrono::seconds(60);  // From dispatch to P's answer, which comes at admission.
  Duration request_timeout = std::chrono::seconds(600);  // From arrival to the end of the answer.
  std::uint32_t prefill_retries_max =
      1;  // Other prefill workers tried before the decode worker computes the prompt.
  std::uint32_t decode_retries_max = 1;  // Other decode workers tried before the first token.
  std::uint32_t breaker_failures = 3;    // In a row; then the worker gets nothing for `breaker_cooldown`,
  Duration breaker_cooldown = std::chrono::seconds(5);  // and then one request as a trial.
};

enum class Leg : std::uint8_t { kPrefill, kDecode };

// --- Events. `attempt` is the one of the dispatch that an event belongs to; others are ignored as late.
struct Arrived {
  RequestId request = 0;
  std::string model;
  std::uint64_t prompt_tokens = 0;  // An estimate is enough: it weighs load.
  std::uint64_t output_tokens = 0;  // Expected.
};
struct WorkerReport {
  WorkerIndex worker = 0;
  bool ready = false;
  std::string reason;  // Why not ready, for people.
};
// What the canary said of a pair; one whose model wants it and of which nothing was said is used by nobody.
struct PairTried {
  WorkerIndex prefill = 0, decode = 0;
  bool is_sound = false;
  std::string reason;  // Why not, for people.
};
struct PrefillAdmitted {
  RequestId request = 0;
  std::uint32_t attempt = 0;
  bool has_transfer = false;  // P's answer holds a transfer object; if not, D computes the prompt.
};
struct FirstToken {
  RequestId request = 0;
  std::uint32_t attempt = 0;
};
struct Finished {
  RequestId request = 0;
  std::uint32_t attempt = 0;
};
struct Failed {
  RequestId request = 0;
  std::uint32_t attempt = 0;
  Leg leg = Leg::kPrefill;
  Error error;
};
struct Cancelled {
  RequestId request = 0;
};
struct Tick {};
using Event = std::variant<Arrived, WorkerReport, PairTried, PrefillAdmitted, FirstToken, Finished, Failed,
                           Cancelled, Tick>;

// --- Actions.
struct DispatchPrefill {
  RequestId request = 0;
  std::uint32_t attempt = 0;
  WorkerIndex worker = 0;
  bool supersedes = false;  // No new prefill: the state that it keeps is for another decode worker.
};
struct DispatchDecode {
  RequestId request = 0;
  std::uint32_t attempt = 0;
  WorkerIndex worker = 0;
  bool with_transfer = false;  // Relay P's object; else strip it: the decode worker computes the prompt.
  std::string why_local;       // Why not, if a prefill was tried or wanted; "" otherwise.
};
// Tell a worker to forget a leg. For P after its admission too: its state would wait for a consumer.
struct CancelLeg {
  RequestId request = 0;
  Leg leg = Leg::kPrefill;
  WorkerIndex worker = 0;
};
// The request's end, if not by Finished or Cancelled. After the first token it is an error event in the
// stream.
struct AnswerError {
  RequestId request = 0;
  Error error;
  bool after_first_token = false;
};
using Action = std::variant<DispatchPrefill, DispatchDecode, CancelLeg, AnswerError>;

// What people and metrics see of a worker.
struct WorkerView {
  bool ready = false;
  std::string reason;  // Why it gets no request; "" if it may.
  bool breaker_open = false;
  std::uint32_t requests = 0;    // Counted on it now.
  std::uint64_t tokens = 0;      // Load of those: prompt tokens for P, prompt and expected output for D.
  std::uint64_t dispatched = 0;  // Since start.
};

// Every request arrives once and ends once. arrived = ended + live + queued at all times.
struct Ledger {
  std::uint64_t arrived = 0;
  std::uint64_t finished = 0, failed = 0, cancelled = 0;
  std::uint64_t live = 0, queued = 0;
  std::uint64_t prefill_retries = 0, decode_retries = 0, local_prefills = 0;
};

// Life of a request, with its deadline:
//
//   queued ──► prefill ──► decode ──► streaming ──► (ended)
//     queue      admission   request    request
//
// queued: no free pair. prefill: P asked, not yet admitted; the pair's D is counted too, so that it has room
// later. decode: D asked. streaming: D's first token was seen; P's load is released. A pair without P starts
// in decode. Any state ends by Finished, Cancelled, a failure that is out of retries, or its deadline.
//
// Thread: one; runs to completion. Time only enters as `now`.
class Core {
 public:
  // `workers` and `models` of the fleet are copied. Workers start as not ready.
  Core(const Config& config, const fleet::Fleet& fleet);

  // Appends actions to `out`, to be carried out in order.
  void step(const Event& event, Instant now, std::vector<Action>& out);
  // When a Tick is due at the latest; kFarFuture if never.
  Instant next_deadline() const;

  Ledger ledger() const;
  WorkerView view(WorkerIndex worker, Instant now) const;
  // Of two workers that could be a pair: "" if requests may be handed over, or why not.
  const std::string& pair_reason(WorkerIndex prefill, WorkerIndex decode) const {
    return pair_reasons_[prefill * workers_.size() + decode];
  }
  // May a request for `model` be served now (perhaps after queueing)? unavailable with the reason if not.
  Status can_serve(std::string_view model, Instant now) const;
  // Recounts all loads from the live requests; internal if the ledger disagrees. For tests.
  Status check() const;

 private:
  enum class Phase : std::uint8_t { kQueued, kPrefill, kDecode, kStreaming };
  struct Pair {
    std::optional<WorkerIndex> prefill;
    WorkerIndex decode = 0;
    std::string why_local;
  };
  struct Request {
    RequestId id = 0;
    std::uint32_t model = 0;
    Phase phase = Phase::kQueued;
    std::uint64_t prompt_tokens = 0, output_tokens = 0;
    Instant deadline, phase_deadline;
    std::uint32_t attempt = 0;                   // Of the latest dispatch of either leg.
    std::optional<WorkerIndex> prefill, decode;  // Counted on these.
    bool prefill_admitted = false;
    bool is_superseding = false;  // In kPrefill: the state is there, another decode worker is to have it.
    std::uint32_t prefill_retries = 0, decode_retries = 0;
    std::vector<WorkerIndex> excluded_prefill, excluded_decode;  // Failed this request.
  };
  enum class Breaker : std::uint8_t { kClosed, kOpen, kTrial };
  struct WorkerState {
    bool ready = false;
    std::string reason = "not checked yet";
    Breaker breaker = Breaker::kClosed;
    std::uint32_t failures = 0;  // In a row.
    Instant open_until;
    RequestId trial = 0;  // In kTrial: the request whose outcome decides.
    std::uint32_t requests = 0;
    std::uint64_t tokens = 0;
    std::uint64_t dispatched = 0;
    std::uint64_t turn = 0;  // Of its latest dispatch, among those of all workers.
  };
  struct Step {
    Instant now;
    std::vector<Action>* out;
  };

  void on(const Arrived& event, Step step);
  void on(const WorkerReport& event, Step step);
  void on(const PairTried& event, Step step);
  void on(const PrefillAdmitted& event, Step step);
  void on(const FirstToken& event, Step step);
  void on(const Finished& event, Step step);
  void on(const Failed& event, Step step);
  void on(const Cancelled& event, Step step);
  void on(const Tick& event, Step step);

  Request* find(RequestId request, std::uint32_t attempt, std::initializer_list<Phase> phases);
  bool is_usable(WorkerIndex worker, Instant now) const;
  std::string unusable_reason(WorkerIndex worker, Instant now) const;
  bool has_room(WorkerIndex worker) const;
  WorkerIndex least_loaded(const std::vector<WorkerIndex>& candidates) const;
  bool serves(WorkerIndex worker, std::uint32_t model, Leg leg) const;
  bool can_pair(WorkerIndex prefill, WorkerIndex decode) const;
  // Of a prefill worker that is fit but has no partner among usable decode workers; "" if it has one.
  std::string unpaired_reason(WorkerIndex prefill, std::uint32_t model, Instant now) const;
  // Workers for a leg that didn't fail this request; fit ones, whether they have room or not.
  std::vector<WorkerIndex> fit(const Request& request, Leg leg, Instant now) const;
  std::string why_none_fit(std::uint32_t model, Leg leg, Instant now) const;
  std::vector<WorkerIndex> with_room(std::vector<WorkerIndex> workers) const;
  // exhausted: fit workers exist but are full. unavailable: none is fit.
  Result<Pair> choose(const Request& request, Instant now) const;
  Result<Pair> choose_local(const Request& request, const std::vector<WorkerIndex>& decode,
                            Instant now) const;

  void start(Request& request, const Pair& pair, Step step);
  void ask_prefill(Request& request, Step step);
  void ask_decode(Request& request, bool with_transfer, std::string why_local, Step step);
  void prefill_failed(Request& request, Error error, Step step);
  void decode_failed(Request& request, Error error, Step step);
  bool supersede(Request& request, Step step);
  void supersede_failed(Request& request, Error error, Step step);
  void start_anew(Request& request, Error error, Step step);
  void cancel_legs(const Request& request, Step step);
  void answer_error(Request& request, Error error, Step step);
  void end(Request& request);
  void drain_queue(Step step);

  std::uint64_t load_of(const Request& request, Leg leg) const;
  void count(Request& request, Leg leg, WorkerIndex worker);
  void release(Request& request, Leg leg);
  void expire(Request& request, Step step);
  void note_success(WorkerIndex worker);
  void note_failure(WorkerIndex worker, const Error& error, Instant now);

  Config config_;
  std::vector<fleet::Model> models_;
  std::vector<fleet::Worker> workers_;
  std::vector<WorkerState> states_;
  // Why no state goes from prefill to decode worker, at prefill * workers + decode: "" if it may.
  std::vector<std::string> pair_reasons_;
  std::map<RequestId, Request> requests_;  // Live and queued; bounded by live_max + queue_max.
  std::vector<RequestId> queue_;           // In order of arrival.
  std::uint64_t turns_ = 0;
  Instant stepped_at_;      // `now` of the latest step.
  bool may_drain_ = false;  // Something changed that can let a queued request go.
  Ledger ledger_;
};

// May another worker do better with this failure? Not with a request that is wrong in itself.
bool is_retryable(Code code);

}  // namespace isthmus::router::core
