// SPDX-License-Identifier: Apache-2.0
// Tile copies for rows that are stored as records: elements in equal runs, or 4-bit elements two to a byte.
#pragma once

#include <cstddef>

#include "transform/tile_copy.h"

namespace isthmus::transform {

// As gather() and scatter() if the rows have one of these shapes, whatever lies between the runs; else
// nothing happens and the answer is false.
//   - runs of at least 8 bytes of neighbours, all of one length;
//   - 4-bit elements, each pair in one byte with the even one high;
//   - 4-bit elements in blocks of 2·h, the first h in the low nibbles of h bytes, the others in the high
//   ones.
bool gather_runs(const TileView& memory, std::byte* canonical);
bool scatter_runs(const TileView& memory, const std::byte* canonical);

}  // namespace isthmus::transform
