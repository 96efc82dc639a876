// SPDX-License-Identifier: Apache-2.0
// An event loop: one thread runs it and owns everything attached to it. Asio stays behind this header.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "base/time.h"

namespace isthmus::net {

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Run until stop(). The calling thread is the loop's thread.
  void run();
  // Any thread. Pending work is dropped.
  void stop();
  // Any thread. Run `work` on the loop's thread, in order of posting.
  void post(std::function<void()> work);
  // Loop's thread. A timer that fires once; destroying the handle cancels it. If the loop itself was away
  // when it was due, what came meanwhile is handled before it fires.
  class Timer;
  [[nodiscard]] std::unique_ptr<Timer> after(Duration delay, std::function<void()> work);
  bool in_loop_thread() const;
  // SIGINT and SIGTERM run `work` on the loop's thread, once each time. Call once.
  void on_signal(std::function<void(int)> work);

  struct Asio;  // net/asio_internal.h
  Asio& asio() { return *asio_; }

 private:
  std::unique_ptr<Asio> asio_;
};

class Loop::Timer {
 public:
  virtual ~Timer() = default;
};

}  // namespace isthmus::net
