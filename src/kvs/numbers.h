// SPDX-License-Identifier: Apache-2.0
// Two states as numbers, however each stores them: by how much do they differ, and where?
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"
#include "kvs/state.h"

namespace isthmus::kvs {

// Of one component over all heads and common tokens, value transforms but rope undone.
struct NumberDifference {
  std::uint32_t group = 0;
  std::string component;
  double max = 0;     // Largest |a - b|.
  double rms = 0;     // Root mean square of a - b, relative to that of a, over all layers.
  std::string where;  // Of the largest: "layer 3, head 1, position 17, element 5"; "" if there is none.
  std::vector<std::uint32_t> layers;  // The model's numbers.
  std::vector<double> layer_rms;      // As rms, of each of them.
  // Index of the layer that differs most; one that isn't a number comes first. 0 if there is none.
  std::size_t worst_layer() const;
};

// The same layers with the same components and heads: what can be compared.
bool keep_the_same(const kv::Descriptor& a, const kv::Descriptor& b);
// By group and component. Copies of both are made as f32. Errors: incompatible unless they keep the same;
// those of convert.
Result<std::vector<NumberDifference>> compare_numbers(const State& a, const State& b);

}  // namespace isthmus::kvs
