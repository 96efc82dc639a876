// SPDX-License-Identifier: Apache-2.0
// Where a KV state's bytes are now: addresses, tables, pool sizes. Never part of a descriptor or a digest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/geometry.h"

namespace isthmus::kv {

// Memory of one region of one layer (or of all layers, `layer` = 0, when the region isn't per layer).
struct RegionMemory {
  std::string region;
  std::uint32_t layer = 0;    // Index within the group's list on this rank.
  std::byte* base = nullptr;  // Not owned.
  std::uint64_t bytes = 0;
  std::uint64_t open_extent = 0;  // Blocks or rows that the memory holds.
};

// One sequence's state in one layer group on one rank. Positions are absolute.
//   paged:  position p lies in block blocks[(p - first_position) / B], slot (p - first_position) % B
//   rows:   position p lies in row   first_row + (p - first_position)
struct Binding {
  std::vector<RegionMemory> memory;
  std::vector<std::uint32_t> blocks;  // Physical block ids; empty for rows.
  std::uint64_t first_row = 0;
  std::uint64_t first_position = 0;
  TokenRange valid;  // Positions that may be read (source) or written (target).
};

}  // namespace isthmus::kv
