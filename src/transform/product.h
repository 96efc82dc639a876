// SPDX-License-Identifier: Apache-2.0
// What moves as a product of cut lists: layers x heads of each group x token tiles. Small whatever is moved.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/geometry.h"

namespace isthmus::transform {

// Tiles are anchored at absolute positions, so that both ends cut alike whatever range moves.
inline constexpr std::uint64_t kTileTokens = 256;

struct Product {
  // Of one layer group; cut points ascend and hold both ends. A piece is what lies between neighbours.
  struct Group {
    std::vector<std::uint32_t> layers, heads;
    std::uint64_t token_begin = 0;  // What moves of the group begins here: later than elsewhere for a window.
    friend bool operator==(const Group&, const Group&) = default;
  };
  std::vector<Group> groups;          // Parallel to the descriptors' groups.
  std::vector<kv::TokenRange> tiles;  // Consecutive.
  friend bool operator==(const Product&, const Product&) = default;
};

// First position of `tokens` that a group's next step reads: the window's, begun where a token group of both
// ends' scales begins; tokens.begin without a window.
std::uint64_t token_begin_of(const kv::Descriptor& source, const kv::Descriptor& target, std::uint32_t group,
                             kv::TokenRange tokens);

// Each wanted (group, layer, head, token) is in exactly one piece and tile; no piece lies across the bound of
// a rank of either end, so that each rank reads or writes whole pieces; each is held by a rank at each end.
// The error names the offending box. Its time depends on cuts, tiles and ranks, not on layers or tokens.
// Errors: invalid_argument.
Status prove(const Product& product, const kv::Descriptor& source, const kv::Descriptor& target,
             kv::TokenRange tokens);

}  // namespace isthmus::transform
