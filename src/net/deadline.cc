// SPDX-License-Identifier: Apache-2.0
// Lazy re-arming.
#include "net/deadline.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace isthmus::net {

Deadline::Deadline(Loop& loop, std::function<void()> due) : loop_(loop), due_(std::move(due)) {}

void Deadline::set(Instant when) {
  when_ = when;
  if (when_ < armed_for_) arm();
}

void Deadline::arm() {
  armed_for_ = when_;
  timer_ = loop_.after(std::max(Duration::zero(), when_ - now()), [this] {
    armed_for_ = kFarFuture;
    if (!is_set()) return;
    if (now() < when_) return arm();
    when_ = kFarFuture;
    const auto due = due_;  // It may destroy this object.
    due();
  });
}

}  // namespace isthmus::net
