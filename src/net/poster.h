// SPDX-License-Identifier: Apache-2.0
// Posts to a loop in the name of an owner: what still waits when the owner is destroyed isn't run.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "net/loop.h"

namespace isthmus::net {

// A member of the owner, who is destroyed on the loop's thread.
class Poster {
 public:
  explicit Poster(Loop& loop) : loop_(loop) {}

  // Any thread, until the owner's destruction begins.
  void post(std::function<void()> work) const {
    loop_.post([owner = std::weak_ptr<const bool>(owner_), work = std::move(work)] {
      if (!owner.expired()) work();
    });
  }

 private:
  Loop& loop_;
  std::shared_ptr<const bool> owner_ = std::make_shared<const bool>(true);
};

}  // namespace isthmus::net
