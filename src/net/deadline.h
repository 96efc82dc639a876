// SPDX-License-Identifier: Apache-2.0
// A moment to be called at that is moved often: moving it later, or away, costs no system call.
#pragma once

#include <functional>
#include <memory>

#include "base/time.h"
#include "net/loop.h"

namespace isthmus::net {

// Loop's thread. The loop's own timer is set anew only for an earlier moment; one that fires too early is set
// for the rest.
class Deadline {
 public:
  Deadline(Loop& loop, std::function<void()> due);

  // kFarFuture: none. `due` is called once after `when`, which is kFarFuture by then.
  void set(Instant when);
  bool is_set() const { return when_ != kFarFuture; }

 private:
  void arm();

  Loop& loop_;
  std::function<void()> due_;
  Instant when_ = kFarFuture, armed_for_ = kFarFuture;
  std::unique_ptr<Loop::Timer> timer_;
};

}  // namespace isthmus::net
