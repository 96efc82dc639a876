// SPDX-License-Identifier: Apache-2.0
// The thread that moves memory: packing, placing and verifying chunks, away from the event loop.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/metrics.h"
#include "net/loop.h"
#include "net/poster.h"

namespace isthmus::handoff {

// Jobs run one at a time in order of posting; the queue is bounded by its users, who hold credits.
class Mover {
 public:
  explicit Mover(net::Loop& loop) : poster_(loop), thread_([this] { main(); }) {}
  // Runs what is queued, then ends; completions that haven't run are dropped.
  ~Mover();

  // Loop's thread. `done` runs on the loop's thread, later, after `work` has run on the mover's. Work on few
  // `bytes` runs here and now if the mover is idle: waking a thread twice would take longer.
  void run(std::uint64_t bytes, std::function<void()> work, std::function<void()> done);

 private:
  struct Job {
    std::function<void()> work, done;
  };
  void main();

  net::Poster poster_;
  std::mutex mutex_;  // Guards jobs_ and stopping_.
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::size_t unfinished_ = 0;  // Loop's thread: jobs whose `done` hasn't run.
  std::thread thread_;
};

// Runs `work` and adds the processor time that it took to `busy`.
template <typename Work>
auto timed(const Counter& busy, Work work) {
  const Duration begin = thread_time();
  auto result = work();
  busy.add(std::chrono::duration<double>(thread_time() - begin).count());
  return result;
}

}  // namespace isthmus::handoff
