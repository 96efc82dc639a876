// SPDX-License-Identifier: Apache-2.0
// Ways in which a state can be wrong while every byte count is right, done to a destination's memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kv/binding.h"
#include "kv/descriptor.h"

namespace isthmus::crossing {

struct Damage {
  std::string name;
  std::function<void(const kv::Descriptor&, const kv::Binding&)> apply;
};

// Those that a state of this descriptor can have.
std::vector<Damage> damages(const kv::Descriptor& descriptor);

}  // namespace isthmus::crossing
