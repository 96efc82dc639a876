// SPDX-License-Identifier: Apache-2.0
// Runs the engine: commands in, batches through the engine, events out to the net loop.
#include "worker/engine_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "worker/draft.h"

namespace isthmus::worker {
namespace {

scheduler::Limits limits_of(const engine::EngineInfo& info, const EngineLoopLimits& limits) {
  scheduler::Limits of_scheduler{.step_tokens_max = std::min(limits.step_tokens_max, info.step_tokens_max),
                                 .sequences_max = info.sequences_max};
  // Whole blocks where a tile has whole blocks: some engines requantise a block that a chunk leaves
  // half-filled.
  if (info.block_tokens > 1 && of_scheduler.prefill_cut_tokens % info.block_tokens == 0) {
    of_scheduler.prefill_unit_tokens = info.block_tokens;
  }
  return of_scheduler;
}

constexpr Duration kLingeringPoll = std::chrono::milliseconds(5);

// Of an engine that reserves by itself: nothing that the scheduler would decide.
scheduler::Memory memory_of(engine::Engine& engine) {
  if (engine.parking() == nullptr) return {};
  return {.block_tokens = engine.info().block_tokens,
          .pool = engine.usage().blocks_total,
          .parking = engine.parking()->blocks()};
}

// Served later it would come too late, and make those behind it late too.
Error not_begun() {
  return {Code::kExhausted, "too much is before this request for it to begin in time; retry later"};
}

}  // namespace

// One job. `events`/`prefill` are touched on the net loop only, the rest on the engine thread only.
struct EngineLoop::Task {
  JobId id = 0;
  Kind kind = Kind::kGenerate;
  Job job;
  JobEvents events;
  PrefillEvents prefill;

  engine::SequenceId sequence = 0;
  bool is_open = false;
  std::vector<engine::TokenId> generated;
  std::uint64_t exported = 0;  // Positions handed out by on_exported.
  std::uint64_t computed = 0;
};

// Somebody who waits for room in the engine: a job, the destination of a handoff, or who borrows it.
struct EngineLoop::Waiter {
  scheduler::Claim claim;
  Instant deadline;
  std::shared_ptr<Task> task;     // Null for others, which have:
  std::function<Status()> begin;  // There is room. exhausted: not in the engine.
  std::function<void(Error)> refused;
};

EngineLoop::EngineLoop(std::unique_ptr<engine::Engine> engine, net::Loop& events,
                       std::function<bool(engine::TokenId)> is_end, const EngineLoopLimits& limits)
    : engine_(std::move(engine)),
      events_(events),
      is_end_(std::move(is_end)),
      limits_(limits),
      info_(engine_->info()),
      descriptor_(engine_->descriptor()),
      keeps_prefixes_(engine_->prefix_keeper() != nullptr),
      scheduler_(limits_of(info_, limits), memory_of(*engine_)) {
  remember_stats();
  thread_ = std::thread([this] { thread_main(); });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

EngineLoopStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<SequenceView> EngineLoop::sequences() const {
  const std::lock_guard lock(mutex_);
  return sequences_;
}

Result<JobId> EngineLoop::admit(Job job, std::shared_ptr<Task> task, bool needs_room) {
  ISTHMUS_CHECK(!job.prompt.empty() && job.tokens_max > 0);
  const bool is_prefill = task->kind == Kind::kPrefill;
  const std::uint64_t prompt = job.prompt.size(), room = prompt + (is_prefill ? 0 : job.tokens_max);
  const scheduler::Claim claim{prompt, room,
                               is_prefill ? scheduler::Pinned::kAlways : scheduler::Pinned::kNever};
  if (room > info_.context_tokens_max) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{} prompt tokens and {} to generate exceed the context of {}",
                             job.prompt.size(), job.tokens_max, info_.context_tokens_max)};
  }
  if (live_.size() >= limits_.jobs_max) {
    return Error{Code::kExhausted,
                 fmt::format("{} requests are in this worker already; retry later", live_.size())};
  }
  task->id = next_job_++;
  task->job = std::move(job);
  live_[task->id] = task;
  post([this, task, claim, needs_room] {
    if (needs_room) {
      waiting_.push_back({claim, std::min(task->job.deadline, task->job.start_by), task, nullptr, nullptr});
    } else {
      open_task(task);
    }
  });
  return task->id;
}

Result<JobId> EngineLoop::generate(Job job, JobEvents events) {
  auto task = std::make_shared<Task>();
  task->kind = Kind::kGenerate;
  task->events = std::move(events);
  return admit(std::move(job), std::move(task), true);
}

Result<JobId> EngineLoop::prefill(Job job, PrefillEvents events) {
  auto task = std::make_shared<Task>();
  task->kind = Kind::kPrefill;
  task->prefill = std::move(events);
  return admit(std::move(job), std::move(task), true);
}

Result<JobId> EngineLoop::resume(engine::SequenceId destination, Job job, engine::TokenId first,
                                 JobEvents events) {
  auto task = std::make_shared<Task>();
  task->kind = Kind::kResume;
  task->events = std::move(events);
  task->sequence = destination;
  task->is_open = true;
  task->generated.push_back(first);
  return admit(std::move(job), std::move(task), false);
}

void EngineLoop::finish_prefill(JobId job) {
  cancel(job);
}

void EngineLoop::cancel(JobId job) {
  live_.erase(job);
  post([this, job] {
    std::erase_if(waiting_, [&](const Waiter& waiter) { return waiter.task && waiter.task->id == job; });
    const auto at = tasks_.find(job);
    if (at != tasks_.end()) end_task(*at->second);
  });
}

void EngineLoop::hold_arrived(std::shared_ptr<const engine::ArrivingState> state,
                              std::function<void(std::unique_ptr<engine::HeldPrefix>)> done) {
  post([this, state = std::move(state), done = std::move(done)] {
    auto held = std::make_shared<std::unique_ptr<engine::HeldPrefix>>();
    // Where others wait for memory nothing is taken from them.
    if (waiting_.empty() && scheduler_.room().preempted == 0)
      *held = engine_->prefix_keeper()->hold_arrived(*state);
    events_.post([done, held] { done(std::move(*held)); });
  });
}

void EngineLoop::reserve(std::uint64_t tokens_max, kv::TokenRange range, Instant deadline,
                         std::shared_ptr<const engine::ArrivingState> state,
                         std::function<void(Result<Destination>)> done) {
  auto on_loop = [this, done = std::move(done)](Result<Destination> result) {
    auto shared = std::make_shared<Result<Destination>>(std::move(result));
    events_.post([done, shared] { done(std::move(*shared)); });
  };
  post([this, tokens_max, range, deadline, state = std::move(state), on_loop = std::move(on_loop)]() mutable {
    if (waiting_.size() >= limits_.jobs_max) {
      on_loop(
          Error{Code::kExhausted, fmt::format("{} requests wait for KV memory already", waiting_.size())});
      return;
    }
    const scheduler::Claim claim{range.end, tokens_max, scheduler::Pinned::kUntilStarted};
    auto begin = [this, claim, range, state, on_loop]() -> Status {
      ISTHMUS_TRY(Destination destination, open_destination(claim, range, state.get()));
      on_loop(std::move(destination));
      return ok_status();
    };
    if (range.begin == 0) {
      waiting_.push_back({claim, deadline, nullptr, std::move(begin), std::move(on_loop)});
      return;
    }
    if (const Status begun = begin_at_once(claim, range.begin, begin); !begun.ok()) on_loop(begun.error());
  });
}

// Who has a known beginning held waits for nothing: others may be waiting for that.
Status EngineLoop::begin_at_once(const scheduler::Claim& claim, std::uint64_t known,
                                 const std::function<Status()>& begin) {
  const std::uint64_t lingering = engine_->usage().blocks_lingering;  // What is held among it.
  const std::uint64_t held = known / std::max(1u, info_.block_tokens);
  if (waiting_.empty() && scheduler_.size() < info_.sequences_max &&
      scheduler_.admits(claim, lingering - std::min(lingering, held))) {
    return begin();
  }
  return Error{Code::kExhausted, "no KV memory beside what is known of this state"};
}

void EngineLoop::release(engine::SequenceId destination) {
  post([this, destination] { close(destination); });
}

// Before all others: what it compares with holds memory that they may be waiting for.
void EngineLoop::borrow(std::uint64_t tokens, Instant deadline, std::function<void(engine::Engine&)> use,
                        std::function<void(Status)> done) {
  const auto on_loop = [this, done = std::move(done)](const Status& status) {
    events_.post([done, status] { done(status); });
  };
  post([this, tokens, deadline, use = std::move(use), on_loop] {
    const auto begin = [this, use, on_loop]() -> Status {
      use(*engine_);
      on_loop(ok_status());
      return ok_status();
    };
    waiting_.push_front({{tokens, tokens, scheduler::Pinned::kAlways}, deadline, nullptr, begin, on_loop});
  });
}

void EngineLoop::post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

void EngineLoop::thread_main() {
  bool has_run = false;  // What a step has ended may be room for those who wait.
  while (run_commands(!has_run && scheduler_.next().empty())) {
    expire(now());
    start_waiting();
    has_run = step();
    remember_stats();
  }
}

// Runs what was posted; with nothing to do it waits for a command or the next deadline. False: stop.
bool EngineLoop::run_commands(bool may_wait) {
  std::deque<std::function<void()>> commands;
  // What peers still read of closed sequences comes back without a word.
  const bool is_missed = may_wait && (!waiting_.empty() || scheduler_.room().preempted > 0) &&
                         engine_->usage().blocks_lingering > 0;
  {
    std::unique_lock lock(mutex_);
    const auto awake = [this] { return stopping_ || !commands_.empty(); };
    if (may_wait && !awake()) {
      Instant next = is_missed ? now() + kLingeringPoll : kFarFuture;
      for (const Waiter& waiter : waiting_) next = std::min(next, waiter.deadline);
      if (next == kFarFuture) {
        wake_.wait(lock, awake);
      } else if (const Duration left = next - now(); left > Duration::zero()) {
        wake_.wait_for(lock, left, awake);
      }
    }
    if (stopping_) return false;
    commands.swap(commands_);
  }
  for (auto& command : commands) command();
  return true;
}

void EngineLoop::expire(Instant at) {
  std::deque<Waiter> kept;
  for (Waiter& waiter : waiting_) {
    if (waiter.deadline > at) {
      kept.push_back(std::move(waiter));
      continue;
    }
    Error error = not_begun();
    if (waiter.task) {
      fail_task(*waiter.task, std::move(error));
    } else {
      waiter.refused(std::move(error));
    }
  }
  waiting_.swap(kept);
  std::vector<std::shared_ptr<Task>> late, idle;
  for (const auto& [id, task] : tasks_) {
    if (task->job.start_by <= at) {
      idle.push_back(task);
    } else if (task->job.deadline <= at && task->kind != Kind::kPrefill) {
      late.push_back(task);
    }
  }
  for (const auto& task : idle) {
    task->job.start_by = kFarFuture;  // A prefill stays until its end was taken note of.
    fail_task(*task, not_begun());
  }
  for (const auto& task : late) {
    fail_task(*task, {Code::kDeadlineExceeded, "the request's deadline passed while it was decoding"});
  }
}

Result<engine::SequenceId> EngineLoop::open(const Job& job, std::uint64_t tokens_max) {
  if (engine::PrefixKeeper* const keeper = engine_->prefix_keeper())
    return keeper->open_known(tokens_max, job.prompt, job.salt);
  return open_empty(tokens_max);
}

Result<engine::SequenceId> EngineLoop::open_empty(std::uint64_t tokens_max) {
  if (engine::Parking* const parking = engine_->parking()) return parking->open_growing(tokens_max);
  return engine_->open(tokens_max);
}

void EngineLoop::close(engine::SequenceId sequence) {
  engine_->close(sequence);
  scheduler_.close(sequence);
  by_sequence_.erase(sequence);
}

Result<engine::SequenceId> EngineLoop::open(const engine::ArrivingState* state, kv::TokenRange range,
                                            std::uint64_t tokens_max) {
  if (state != nullptr) return engine_->prefix_keeper()->open_arriving(tokens_max, *state, range.begin);
  return open_empty(tokens_max);
}

Result<Destination> EngineLoop::open_destination(const scheduler::Claim& claim, kv::TokenRange range,
                                                 const engine::ArrivingState* state) {
  ISTHMUS_CHECK(engine_->kv_sink() != nullptr);
  Destination destination;
  ISTHMUS_TRY(destination.sequence, open(state, range, claim.tokens_max));
  scheduler_.open(destination.sequence, claim);
  Result<std::vector<kv::Binding>> bindings = engine_->kv_sink()->bind(destination.sequence, range);
  if (!bindings.ok()) {
    close(destination.sequence);
    return bindings.error();
  }
  destination.bindings = *std::move(bindings);
  return destination;
}

Status EngineLoop::start_task(const Waiter& waiter) {
  Task& task = *waiter.task;
  ISTHMUS_TRY(task.sequence, open(task.job, waiter.claim.tokens_max));
  scheduler_.open(task.sequence, waiter.claim);
  task.is_open = true;
  task.computed = engine_->length(task.sequence);
  open_task(waiter.task);
  return ok_status();
}

Status EngineLoop::start(const Waiter& waiter) {
  return waiter.task ? start_task(waiter) : waiter.begin();
}

// Choices of one prompt come together: but for this each would compute it. A prompt that runs advances or
// ends, so nobody waits for ever.
bool EngineLoop::is_being_computed(const Job& job) const {
  if (engine_->prefix_keeper() == nullptr) return false;
  const std::uint64_t block = info_.block_tokens;
  return std::ranges::any_of(tasks_, [&](const auto& entry) {
    const Task& task = *entry.second;
    if (task.computed >= task.job.prompt.size() || task.job.salt != job.salt) return false;
    const auto end = std::ranges::mismatch(task.job.prompt, job.prompt).in2;
    const auto common = static_cast<std::uint64_t>(end - job.prompt.begin());
    // All but two tokens may be known of a prompt, in whole blocks.
    const std::uint64_t useful =
        std::min<std::uint64_t>(common, std::max<std::size_t>(job.prompt.size(), 2) - 2);
    return useful / block * block > task.computed;
  });
}

// In order of arrival; the first that doesn't fit stops the rest, so that a large request isn't overtaken for
// ever. One whose beginning is being computed lets others pass until then.
void EngineLoop::start_waiting() {
  while (scheduler_.size() < info_.sequences_max) {
    const auto next = std::ranges::find_if(waiting_, [this](const Waiter& waiter) {
      return waiter.task == nullptr || !is_being_computed(waiter.task->job);
    });
    if (next == waiting_.end()) return;
    if (!scheduler_.admits(next->claim, engine_->usage().blocks_lingering)) return;
    const Status started = start(*next);
    if (started.code() == Code::kExhausted && engine_->usage().sequences > 0) return;
    const Waiter waiter = std::move(*next);
    waiting_.erase(next);
    if (started.ok()) continue;
    if (waiter.task) {
      fail_task(*waiter.task, started.error());
    } else {
      waiter.refused(started.error());
    }
  }
}

void EngineLoop::open_task(const std::shared_ptr<Task>& task) {
  tasks_[task->id] = task;
  by_sequence_[task->sequence] = task;
  const std::uint64_t prompt = task->job.prompt.size();
  if (task->kind == Kind::kResume) {
    task->job.start_by = kFarFuture;
    const std::uint64_t known = engine_->length(task->sequence);
    const Status adopted = engine_->kv_sink()->adopt(task->sequence, {known, prompt});
    if (!adopted.ok()) return fail_task(*task, adopted.error());
    task->computed = prompt;
    counted_.prompt_tokens_adopted += prompt - known;
    const engine::TokenId first = task->generated.back();
    task->generated.clear();
    accept_token(*task, {first});
    if (!tasks_.contains(task->id)) return;  // The first token ended it.
  } else {
    if (engine_->prefix_keeper() != nullptr) counted_.prefix_tokens_queried += prompt;
    counted_.prefix_tokens_known += task->computed;
    if (task->kind == Kind::kGenerate)
      deliver(*task, [known = task->computed](Task& t) { t.events.on_started(known); });
  }
  const Status added = scheduler_.add(task->sequence, prompt, task->computed);
  if (!added.ok()) fail_task(*task, added.error());
}

// What the scheduler has decided of memory.
void EngineLoop::make_room() {
  const scheduler::Moves moves = scheduler_.settle(engine_->usage().blocks_lingering);
  const auto moved = [this](scheduler::RequestId sequence, const Status& status) {
    const auto task = by_sequence_.find(static_cast<engine::SequenceId>(sequence));
    if (!status.ok() && task != by_sequence_.end()) fail_task(*std::shared_ptr(task->second), status.error());
  };
  for (const auto& [sequence, blocks] : moves.park)
    moved(sequence, engine_->parking()->park(static_cast<engine::SequenceId>(sequence), blocks));
  for (const scheduler::RequestId sequence : moves.unpark)
    moved(sequence, engine_->parking()->unpark(static_cast<engine::SequenceId>(sequence)));
}

bool EngineLoop::step() {
  make_room();
  const std::vector<scheduler::Item> items = scheduler_.next();
  if (items.empty()) return false;
  const std::optional<engine::TokenId> draft = draft_for(items);
  std::vector<engine::TokenId> drafted;  // The token that is due, and the draft.
  std::vector<engine::StepItem> batch;
  for (const scheduler::Item& item : items) {
    Task& task = *by_sequence_.at(static_cast<engine::SequenceId>(item.request));
    task.job.start_by = kFarFuture;  // It has begun.
    const std::span<const engine::TokenId> tokens =
        item.is_decode ? std::span(task.generated).last(1)
                       : std::span(task.job.prompt).subspan(item.begin, item.end - item.begin);
    batch.push_back({task.sequence, tokens, item.is_decode || item.completes_prompt ? 1u : 0u});
  }
  if (draft) {
    drafted = {batch.front().tokens.front(), *draft};
    batch.front().tokens = drafted;
    batch.front().logits = 2;
    batch.front().drafts = 1;
  }
  const Result<engine::StepOutput> output = engine_->step(batch);
  if (!output.ok()) {
    ISTHMUS_LOG(kError, "engine step failed", "why=\"{}\"", output.error().text());
    for (const engine::StepItem& item : batch) fail_task(*by_sequence_.at(item.sequence), output.error());
    return true;
  }
  scheduler_.ran(items);
  std::uint64_t row = 0;
  const auto next_row = [&] { return output->logits.subspan(row++ * info_.vocabulary, info_.vocabulary); };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto task = by_sequence_.at(batch[i].sequence);
    task->computed = items[i].end;
    if (!items[i].is_decode) {
      counted_.prompt_tokens_computed += items[i].end - items[i].begin;
      after_prefill_chunk(*task, items[i]);
    }
    if (batch[i].logits == 0) continue;
    take_token(*task, items[i].end, next_row());
  }
  if (draft) settle_draft(items.front(), *draft, next_row());
  return true;
}

void EngineLoop::take_token(Task& task, std::uint64_t position, std::span<const float> logits) {
  if (!tasks_.contains(task.id)) return;
  const Result<engine::TokenId> token = engine::sample(logits, task.job.sampling, position, task.generated);
  if (!token.ok()) return fail_task(task, token.error());
  GeneratedToken generated{*token};
  if (const auto top = task.job.scores) generated.scores = engine::score(logits, *token, *top);
  accept_token(task, std::move(generated));
}

std::optional<engine::TokenId> EngineLoop::draft_for(const std::vector<scheduler::Item>& items) const {
  if (engine_->speculation() == nullptr || items.size() != 1 || !items.front().is_decode) return std::nullopt;
  const scheduler::Item& item = items.front();
  // It takes no block that the scheduler doesn't know of.
  if (info_.block_tokens == 0 || item.end % info_.block_tokens == 0) return std::nullopt;
  const Task& task = *by_sequence_.at(static_cast<engine::SequenceId>(item.request));
  if (task.generated.size() + 2 > task.job.tokens_max) return std::nullopt;
  return draft_token(task.job.prompt, task.generated);
}

void EngineLoop::settle_draft(const scheduler::Item& item, engine::TokenId draft,
                              std::span<const float> logits) {
  ++counted_.draft_tokens;
  const auto at = by_sequence_.find(static_cast<engine::SequenceId>(item.request));
  if (at == by_sequence_.end()) return;  // The token before it ended the answer.
  const std::shared_ptr<Task> task = at->second;
  if (task->generated.back() != draft) return engine_->speculation()->take_back(task->sequence, 1);
  ++counted_.draft_tokens_accepted;
  task->computed = item.end + 1;
  scheduler_.ran({{item.request, item.end, item.end + 1, false, true}});
  take_token(*task, item.end + 1, logits);
}

// Hands out whole tiles as soon as they are computed, and the rest with the end of the prompt.
void EngineLoop::after_prefill_chunk(Task& task, const scheduler::Item& item) {
  if (task.kind != Kind::kPrefill) return;
  constexpr std::uint64_t kCut = scheduler::Limits{}.prefill_cut_tokens;
  const std::uint64_t until = item.completes_prompt ? item.end : item.end - item.end % kCut;
  if (until <= task.exported) return;
  const kv::TokenRange range{task.exported, until};
  Result<std::unique_ptr<engine::ExportedKv>> exported =
      engine_->kv_source()->export_range(task.sequence, range);
  if (!exported.ok()) return fail_task(task, exported.error());
  task.exported = until;
  auto shared = std::make_shared<std::unique_ptr<engine::ExportedKv>>(*std::move(exported));
  deliver(task, [range, shared](Task& t) { t.prefill.on_exported(range, std::move(*shared)); });
}

void EngineLoop::accept_token(Task& task, GeneratedToken token) {
  const bool ends = !task.job.ignores_end && is_end_(token.id);
  if (task.kind == Kind::kPrefill) {
    scheduler_.remove(task.sequence);  // It stays open: exports may point into it.
    deliver(task, [token = token.id, ends](Task& t) { t.prefill.on_prefilled(token, ends); });
    return;
  }
  task.generated.push_back(token.id);
  ++counted_.tokens_generated;
  if (!ends) deliver(task, [token = std::move(token)](Task& t) { t.events.on_token(token); });
  if (!ends && task.generated.size() < task.job.tokens_max) return;
  const FinishReason reason = ends ? FinishReason::kStop : FinishReason::kLength;
  deliver(task, [this, reason](Task& t) {
    live_.erase(t.id);
    t.events.on_finished(reason);
  });
  end_task(task);
}

void EngineLoop::end_task(Task& task) {
  const auto keep = tasks_.extract(task.id);
  if (task.is_open) close(task.sequence);
  task.is_open = false;
}

void EngineLoop::fail_task(Task& task, Error error) {
  deliver(task, [this, error](Task& t) {
    live_.erase(t.id);
    if (t.kind == Kind::kPrefill) {
      t.prefill.on_failed(error);
    } else {
      t.events.on_failed(error);
    }
  });
  if (task.kind == Kind::kPrefill && task.is_open) {
    scheduler_.remove(task.sequence);  // What was exported may be read until finish_prefill().
  } else {
    end_task(task);
  }
}

// Events reach the net loop in order, and none after cancel() there.
void EngineLoop::deliver(Task& task, std::function<void(Task&)> event) {
  events_.post([this, id = task.id, event = std::move(event)] {
    const auto at = live_.find(id);
    if (at == live_.end()) return;
    const std::shared_ptr<Task> keep = at->second;
    event(*keep);
  });
}

void EngineLoop::remember_stats() {
  counted_.usage = engine_->usage();
  counted_.jobs_running = static_cast<std::uint32_t>(tasks_.size());
  counted_.jobs_waiting = static_cast<std::uint32_t>(waiting_.size());
  const scheduler::Room::Usage room = scheduler_.room();
  counted_.jobs_preempted = static_cast<std::uint32_t>(room.preempted);
  counted_.preemptions = room.preemptions;
  const std::lock_guard lock(mutex_);
  stats_ = counted_;
  sequences_.clear();
  for (const auto& [id, task] : tasks_) {
    const std::string_view kind = task->kind == Kind::kGenerate  ? "generate"
                                  : task->kind == Kind::kPrefill ? "prefill"
                                                                 : "resume";
    sequences_.push_back({id, kind, task->job.prompt.size(), task->computed, task->generated.size(),
                          scheduler_.is_preempted(task->sequence)});
  }
}

}  // namespace isthmus::worker
