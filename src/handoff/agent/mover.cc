// SPDX-License-Identifier: Apache-2.0
// One thread, one queue.
#include "handoff/agent/mover.h"

#include <utility>

#include "base/clock.h"

namespace isthmus::handoff {

Mover::~Mover() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Mover::run(Counter busy, std::function<void()> work, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({busy, std::move(work), std::move(done)});
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
    const Duration begin = thread_time();
    job.work();
    job.busy.add(std::chrono::duration<double>(thread_time() - begin).count());
    job.work = nullptr;  // What it holds is let go on the loop's thread, by `done`.
    poster_.post(std::move(job.done));
  }
}

}  // namespace isthmus::handoff
