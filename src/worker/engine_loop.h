// SPDX-License-Identifier: Apache-2.0
// The thread that owns the engine: runs jobs in continuous batches, opens and adopts destinations of
// handoffs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "engine/api/engine.h"
#include "engine/api/sampler.h"
#include "kv/binding.h"
#include "net/loop.h"
#include "net/poster.h"
#include "scheduler/scheduler.h"

namespace isthmus::worker {

using JobId = std::uint64_t;

enum class FinishReason : std::uint8_t { kStop, kLength };

struct GeneratedToken {
  engine::TokenId id = 0;
  std::optional<engine::Scores> scores{};  // If the job asks for them; not for a token of another worker.
};

// What a job reports, on the net loop's thread, in order. After on_finished or on_failed nothing follows.
struct JobEvents {
  // Before the first token; not of a state that was handed over. `known`: tokens of the prompt whose state
  // was here already.
  std::function<void(std::uint64_t known)> on_started;
  std::function<void(const GeneratedToken&)> on_token;  // End-of-generation tokens aren't reported.
  std::function<void(FinishReason)> on_finished;
  std::function<void(Error)> on_failed;
};

// A prefill whose state is handed over reports its memory piece by piece, then the first token.
struct PrefillEvents {
  std::function<void(kv::TokenRange, std::unique_ptr<engine::ExportedKv>)> on_exported;
  std::function<void(engine::TokenId first, bool ends)> on_prefilled;  // ends: `first` is end-of-generation.
  std::function<void(Error)> on_failed;
};

struct Job {
  std::vector<engine::TokenId> prompt;  // Not empty.
  engine::SamplingParams sampling;
  std::optional<std::uint32_t> scores{};  // Tell how likely each token was, and so many of the likeliest.
  std::uint64_t tokens_max = 0;           // To generate, at least 1.
  bool ignores_end = false;               // Go on to tokens_max.
  Instant deadline = kFarFuture;          // deadline_exceeded (or exhausted, if it never got room) after it.
  Instant start_by = kFarFuture;          // exhausted if none of its prompt has run by then.
  std::optional<std::string> salt{};      // The prompt's state is shared with jobs of an equal one alone.
};

// An open sequence of the engine with its memory bound, waiting to be filled from outside.
struct Destination {
  engine::SequenceId sequence = 0;
  std::vector<kv::Binding> bindings;  // By layer group.
};

struct EngineLoopLimits {
  std::uint32_t jobs_max = 64;  // Running and waiting; over it: exhausted.
  std::uint32_t step_tokens_max = 512;
};

struct EngineLoopStats {
  engine::EngineUsage usage;
  std::uint64_t prompt_tokens_computed = 0;  // By prefill of this worker, of any kind of job.
  std::uint64_t tokens_generated = 0;
  std::uint64_t prompt_tokens_adopted = 0;  // Of handed-over states.
  // Of prompts that the engine was asked to know the beginning of; and how many it knew.
  std::uint64_t prefix_tokens_queried = 0, prefix_tokens_known = 0;
  std::uint32_t jobs_running = 0, jobs_waiting = 0;
  std::uint32_t jobs_preempted = 0;  // Of those running.
  std::uint64_t preemptions = 0;
  std::uint64_t draft_tokens = 0, draft_tokens_accepted = 0;  // Run beside a lone token; and right.
};

// A job in the engine, for people.
struct SequenceView {
  JobId job = 0;
  std::string_view kind;  // "generate", "prefill" (for a consumer), "resume" (of a state handed over)
  std::uint64_t prompt = 0, computed = 0, generated = 0;  // Tokens.
  bool is_preempted = false;
};

class EngineLoop {
 public:
  // `is_end`: end-of-generation tokens. `events` must outlive this; destroy it on that loop's thread.
  EngineLoop(std::unique_ptr<engine::Engine> engine, net::Loop& events,
             std::function<bool(engine::TokenId)> is_end, const EngineLoopLimits& limits);
  ~EngineLoop();  // Stops: running jobs end without a further event.

  const engine::EngineInfo& info() const { return info_; }
  const kv::Descriptor& descriptor() const { return descriptor_; }
  bool keeps_prefixes() const { return keeps_prefixes_; }
  EngineLoopStats stats() const;
  std::vector<SequenceView> sequences() const;  // Of running jobs, as after the last step.

  // All of these: net loop's thread. exhausted when jobs_max are in; invalid_argument if the context is too
  // small.
  Result<JobId> generate(Job job, JobEvents events);
  // Only the prompt; the sequence stays open (exports may point into it) until finish_prefill(), also if it
  // fails.
  Result<JobId> prefill(Job job, PrefillEvents events);
  void finish_prefill(JobId job);
  // What the engine knows of a state on its way here; null if nothing. Not of an engine without a
  // PrefixKeeper.
  void hold_arrived(std::shared_ptr<const engine::ArrivingState> state,
                    std::function<void(std::unique_ptr<engine::HeldPrefix>)> done);
  // Room for `tokens_max` tokens, of which `range` comes from outside, behind what is known and held of
  // `state`: null for a state of which nothing is known or kept. `done` gets exhausted if no room came by
  // `deadline`.
  void reserve(std::uint64_t tokens_max, kv::TokenRange range, Instant deadline,
               std::shared_ptr<const engine::ArrivingState> state,
               std::function<void(Result<Destination>)> done);
  void release(engine::SequenceId destination);
  // Adopt a filled destination and go on from `first`, which is reported as the first token.
  Result<JobId> resume(engine::SequenceId destination, Job job, engine::TokenId first, JobEvents events);
  // No event of this job is delivered after it returns. Unknown ids are ignored.
  void cancel(JobId job);
  // `use` runs between two steps on the engine's thread, so nobody else's sequence moves meanwhile, and has
  // room for a sequence of `tokens` that it opens and closes; then `done`. It waits for room before all
  // others; `done` gets exhausted if none came by `deadline`.
  void borrow(std::uint64_t tokens, Instant deadline, std::function<void(engine::Engine&)> use,
              std::function<void(Status)> done);

 private:
  enum class Kind : std::uint8_t { kGenerate, kPrefill, kResume };
  struct Task;
  struct Waiter;

  Result<JobId> admit(Job job, std::shared_ptr<Task> task, bool needs_room);
  void post(std::function<void()> command);
  void thread_main();
  // Engine thread.
  bool run_commands(bool may_wait);
  void start_waiting();
  // exhausted if it has to wait on.
  Status start(const Waiter& waiter);
  Status start_task(const Waiter& waiter);
  Result<Destination> open_destination(const scheduler::Claim& claim, kv::TokenRange range,
                                       const engine::ArrivingState* state);
  Result<engine::SequenceId> open(const engine::ArrivingState* state, kv::TokenRange range,
                                  std::uint64_t tokens_max);
  Status begin_at_once(const scheduler::Claim& claim, std::uint64_t known,
                       const std::function<Status()>& begin);
  Result<engine::SequenceId> open(const Job& job, std::uint64_t tokens_max);
  Result<engine::SequenceId> open_empty(std::uint64_t tokens_max);
  void close(engine::SequenceId sequence);
  // A prompt that runs now will have computed more of this one's beginning than it has.
  bool is_being_computed(const Job& job) const;
  void expire(Instant at);
  void open_task(const std::shared_ptr<Task>& task);
  bool step();  // False: there was nothing to run.
  void make_room();
  // A token to run behind that of `items`, if it alone is run and that costs nothing.
  std::optional<engine::TokenId> draft_for(const std::vector<scheduler::Item>& items) const;
  // `logits` are those behind the draft, if it is what `item` was answered with.
  void settle_draft(const scheduler::Item& item, engine::TokenId draft, std::span<const float> logits);
  void after_prefill_chunk(Task& task, const scheduler::Item& item);
  // Sampled from what follows the sequence's first `position` tokens.
  void take_token(Task& task, std::uint64_t position, std::span<const float> logits);
  void accept_token(Task& task, GeneratedToken token);
  void end_task(Task& task);
  void fail_task(Task& task, Error error);
  void deliver(Task& task, std::function<void(Task&)> event);
  void remember_stats();

  std::unique_ptr<engine::Engine> engine_;
  net::Poster events_;
  std::function<bool(engine::TokenId)> is_end_;
  EngineLoopLimits limits_;
  engine::EngineInfo info_;
  kv::Descriptor descriptor_;
  bool keeps_prefixes_ = false;

  // Net loop's thread.
  JobId next_job_ = 1;
  std::map<JobId, std::shared_ptr<Task>> live_;  // Jobs whose events may still be delivered.

  // Engine thread.
  scheduler::Scheduler scheduler_;
  std::map<JobId, std::shared_ptr<Task>> tasks_;
  std::map<engine::SequenceId, std::shared_ptr<Task>> by_sequence_;  // The same.
  std::deque<Waiter> waiting_;
  EngineLoopStats counted_;

  mutable std::mutex mutex_;  // Guards the rest.
  std::condition_variable wake_;
  std::deque<std::function<void()>> commands_;
  EngineLoopStats stats_;
  std::vector<SequenceView> sequences_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace isthmus::worker
