// SPDX-License-Identifier: Apache-2.0
// Moves memory: packs, places and verifies chunks, one job at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "net/loop.h"
#include "net/poster.h"

namespace isthmus::handoff {

// Jobs run in order of posting; the queue is bounded by its users, who hold credits. A thread of its own lets
// the loop send and receive meanwhile. Where there are no processors to spare, jobs run on the loop's thread
// instead, one a turn: threads that share a processor only wake each other.
class Mover {
 public:
  Mover(net::Loop& loop, bool has_thread);
  // Runs what its thread has queued, then ends; completions that haven't run are dropped.
  ~Mover();

  // Loop's thread. `done` runs on the loop's thread, later, after `work` has run. Work on few `bytes` runs
  // here and now if nothing is queued. Whoever is behind is woken once for all that has come meanwhile.
  void run(std::uint64_t bytes, std::function<void()> work, std::function<void()> done);

 private:
  struct Job {
    std::function<void()> work, done;
  };
  void step();
  void main();
  void report();

  net::Poster poster_;
  std::size_t unfinished_ = 0;  // Loop's thread: jobs whose `done` hasn't run.
  std::mutex mutex_;            // Guards the five below.
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::vector<std::function<void()>> done_;  // Of finished jobs; report() is posted while there are any.
  bool is_waiting_ = false;                  // The thread sleeps, and nobody has woken it.
  bool stopping_ = false;
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
