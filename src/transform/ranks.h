// SPDX-License-Identifier: Apache-2.0
// The usual ways to share a state among ranks.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kv/descriptor.h"

namespace isthmus::transform {

// Tensor ranks take heads, pipeline ranks layers, context ranks positions;
// rank = (pipeline rank · context + context rank) · tensor + tensor rank.
struct Degrees {
  std::uint32_t tensor = 1, pipeline = 1, context = 1;
  // Tokens that a context rank has in a row; unused with one of them. Stripes: in turn, again and again. Else
  // each rank has one run, the last one all that follow.
  std::uint32_t run = 0;
  bool is_striped = true;
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

// Replaces the partition: each group's layers and heads in runs as equal as can be, the first ones longer;
// where there are fewer heads than tensor ranks, tensor / heads copies of each. A state without a token axis
// is copied to each context rank. Of a group with fewer layers than pipeline ranks the
// last ranks hold nothing. invalid_argument if copies don't go up, if a degree is 0, if there's no run of
// several context ranks, or for more than kv::kBoxesMax ranks.
Status split_ranks(kv::Descriptor& descriptor, Degrees degrees);

}  // namespace isthmus::transform
