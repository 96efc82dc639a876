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

// One sequence's state in one layer group on one rank. Positions are absolute. With n = how many positions
// from first_position on and below p the rank has (RankBox::tokens_below), p - first_position if it has all:
//   paged:  position p lies in block blocks[n / B], slot n % B
//   rows:   position p lies in row   first_row + n
// A state without a token axis is bound as the row of its last token: after t tokens, first_position = t - 1,
// valid = [t - 1, t).
struct Binding {
  std::vector<RegionMemory> memory;
  std::vector<std::uint32_t> blocks;  // Physical block ids; empty for rows.
  std::uint64_t first_row = 0;
  std::uint64_t first_position = 0;
  TokenRange valid;  // Positions that may be read (source) or written (target).
};

}  // namespace isthmus::kv
