// SPDX-License-Identifier: Apache-2.0
// One queue, served by a thread or by turns of the loop.
#include "handoff/agent/mover.h"

#include <utility>

namespace isthmus::handoff {
namespace {

// Some ten microseconds of work: the loop can spare them.
constexpr std::uint64_t kBytesAtOnce = std::uint64_t{32} << 10;

}  // namespace

Mover::Mover(net::Loop& loop, bool has_thread) : poster_(loop) {
  if (has_thread) thread_ = std::thread([this] { main(); });
}

Mover::~Mover() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Mover::run(std::uint64_t bytes, std::function<void()> work, std::function<void()> done) {
  if (bytes <= kBytesAtOnce && unfinished_ == 0) {
    work();
    return poster_.post(std::move(done));
  }
  const bool is_first = unfinished_++ == 0;
  bool is_asleep = false;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(work), std::move(done)});
    is_asleep = std::exchange(is_waiting_, false);
  }
  if (is_asleep) wake_.notify_one();
  if (is_first && !thread_.joinable()) poster_.post([this] { step(); });
}

// One job, then others have their turn.
void Mover::step() {
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  job.work();
  if (--unfinished_ > 0) poster_.post([this] { step(); });
  job.done();
}

void Mover::main() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      is_waiting_ = true;
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      is_waiting_ = false;
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.work();
    job.work = nullptr;  // What it holds is let go on the loop's thread, by `done`.
    bool is_first = false;
    {
      const std::lock_guard lock(mutex_);
      is_first = done_.empty();
      done_.push_back(std::move(job.done));
    }
    if (is_first) poster_.post([this] { report(); });
  }
}

void Mover::report() {
  std::vector<std::function<void()>> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  unfinished_ -= done.size();
  for (const auto& each : done) each();
}

}  // namespace isthmus::handoff
