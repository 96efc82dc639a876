// SPDX-License-Identifier: Apache-2.0
// How values that were stored after some value transforms become values after others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace isthmus::kv {

enum class ValueStepKind : std::uint8_t {
  kHadamard,             // Orthonormal Sylvester matrix on each `size` elements; its own inverse.
  kHalvesToInterleaved,  // out[2i] = in[i], out[2i + 1] = in[i + D/2]
  kInterleavedToHalves,
};

struct ValueStep {
  ValueStepKind kind = ValueStepKind::kHadamard;
  std::uint32_t size = 0;  // Elements of a block; 0 for orders of whole rows.
  friend bool operator==(const ValueStep&, const ValueStep&) = default;
};

// Steps that undo `from` where it differs from `to` and apply the rest of `to`, in order; none if both are
// equal. Transforms that both lists begin with stay applied. unsupported, naming the transform, if there is
// no such way: an unknown name, or a rotation by position that only one end has applied.
Result<std::vector<ValueStep>> value_steps(const std::vector<std::string>& from,
                                           const std::vector<std::string>& to);

// True if the steps only move values: nothing is rounded.
bool only_moves(const std::vector<ValueStep>& steps);

}  // namespace isthmus::kv
