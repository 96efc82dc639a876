// SPDX-License-Identifier: Apache-2.0
// Two files: do they hold the same state, and if not, where and by how much?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kvs/numbers.h"
#include "kvs/state.h"

namespace isthmus::kvs {

struct Comparison {
  std::vector<kv::Difference> descriptors;
  bool same_tokens = false, same_numbers = false;  // Ranges; decode forms and value transforms.
  // Tiles by key, only if the numbers are stored alike. Layout, blocks and ranks don't count.
  std::uint64_t tiles_equal = 0, tiles_different = 0, tiles_only_a = 0, tiles_only_b = 0;
  std::vector<std::string> first_tiles;  // The first ten that differ.
  std::vector<NumberDifference> numbers;
  std::string not_compared;  // Why `numbers` is empty.

  bool is_same_state() const {
    return same_tokens && same_numbers && tiles_different == 0 && tiles_only_a == 0 && tiles_only_b == 0;
  }
};

// Both are read to their ends. Errors: those of load.
Result<Comparison> compare(Reader& a, Reader& b, const Progress& progress = {});

}  // namespace isthmus::kvs
