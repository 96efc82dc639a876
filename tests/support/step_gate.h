// SPDX-License-Identifier: Apache-2.0
// Holds an engine's thread before a chosen step until a test lets it go on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

namespace isthmus::support {

// Any thread. Must be opened before the engine is destroyed, whose thread may stand here.
class StepGate {
 public:
  // `steps` more steps pass from now on, beside one that waits; the next one waits.
  void hold_after(std::uint64_t steps) {
    {
      const std::lock_guard lock(mutex_);
      allowed_ = begun_ + steps;
    }
    opened_.notify_all();
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      allowed_ = std::numeric_limits<std::uint64_t>::max();
    }
    opened_.notify_all();
  }
  // Engine's thread, at the begin of each step.
  void pass() {
    std::unique_lock lock(mutex_);
    const std::uint64_t step = begun_++;
    opened_.wait(lock, [&] { return step < allowed_; });
  }
  // Steps that have come here, the waiting one included.
  std::uint64_t begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable opened_;
  std::uint64_t begun_ = 0;
  std::uint64_t allowed_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace isthmus::support
