// SPDX-License-Identifier: Apache-2.0
// The thread that moves memory: packing, placing and verifying chunks, away from the event loop.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

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

  // Loop's thread. `done` runs on the loop's thread after `work` has run on the mover's. The seconds that
  // `work` took are added to `busy`.
  void run(Counter busy, std::function<void()> work, std::function<void()> done);

 private:
  struct Job {
    Counter busy;
    std::function<void()> work, done;
  };
  void main();

  net::Poster poster_;
  std::mutex mutex_;  // Guards jobs_ and stopping_.
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace isthmus::handoff
