// SPDX-License-Identifier: Apache-2.0
// The usual ways to share a state among ranks.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kv/descriptor.h"

namespace isthmus::transform {

// Tensor ranks take heads, pipeline ranks layers; rank = pipeline rank · tensor + tensor rank.
struct Degrees {
  std::uint32_t tensor = 1, pipeline = 1;
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

// Replaces the partition: each group's layers and heads in runs as equal as can be, the first ones longer;
// where there are fewer heads than tensor ranks, tensor / heads copies of each. invalid_argument if that
// doesn't go up, if a degree is 0 or there are fewer layers than pipeline ranks.
Status split_ranks(kv::Descriptor& descriptor, Degrees degrees);

}  // namespace isthmus::transform
