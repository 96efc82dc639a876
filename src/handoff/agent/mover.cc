// SPDX-License-Identifier: Apache-2.0
// One thread, one queue.
#include "handoff/agent/mover.h"

#include <utility>

namespace isthmus::handoff {
namespace {

// Some ten microseconds of work: the loop can spare them.
constexpr std::uint64_t kBytesAtOnce = std::uint64_t{32} << 10;

}  // namespace

Mover::~Mover() {
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
  ++unfinished_;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(work), [this, done = std::move(done)] {
                       --unfinished_;
                       done();
                     }});
  }
  wake_.notify_one();
}

void Mover::main() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.work();
    job.work = nullptr;  // What it holds is let go on the loop's thread, by `done`.
    poster_.post(std::move(job.done));
  }
}

}  // namespace isthmus::handoff
