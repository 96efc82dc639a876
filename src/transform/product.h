// SPDX-License-Identifier: Apache-2.0
// What moves as a product of cut lists: layers x heads of each group x token tiles. Small whatever is moved.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/geometry.h"
#include "transform/token_cuts.h"

namespace isthmus::transform {

// Tiles are anchored at absolute positions, so that both ends cut alike whatever range moves.
inline constexpr std::uint64_t kTileTokens = 256;

struct Product {
  // Of one layer group; cut points ascend and hold both ends. A piece is what lies between neighbours.
  struct Group {
    std::vector<std::uint32_t> layers, heads;
    // What moves of the group begins here: later than elsewhere for a window, and the last token alone for a
    // state without a token axis.
    std::uint64_t token_begin = 0;
    // Only where ranks deal out positions: how each tile, from token_begin on, is cut; no cuts of a tile
    // that the group has nothing of. Empty: each tile is whole.
    std::vector<TokenPattern> patterns = {};
    std::vector<std::uint32_t> tile_patterns = {};  // Index into patterns, by tile.
    friend bool operator==(const Group&, const Group&) = default;
  };
  std::vector<Group> groups;          // Parallel to the descriptors' groups.
  std::vector<kv::TokenRange> tiles;  // Consecutive.
  // What a group has of a tile; begin = end for nothing.
  static kv::TokenRange tokens_of(const Group& group, kv::TokenRange tile) {
    return {std::clamp(group.token_begin, tile.begin, tile.end), tile.end};
  }
  friend bool operator==(const Product&, const Product&) = default;
};

// First position of `tokens` that a group's next step reads: the window's, begun where a token group of both
// ends' scales begins; the last one of a state without a token axis, which stands for all; else tokens.begin.
std::uint64_t token_begin_of(const kv::Descriptor& source, const kv::Descriptor& target, std::uint32_t group,
                             kv::TokenRange tokens);

// Each wanted (group, layer, head, token) is in exactly one piece, tile and cut of its tokens; none lies
// across the bound of a rank of either end, so that each rank reads or writes them whole; each is held by a
// rank at each end. The error names the offending box. Its time depends on cuts, tiles and ranks, not on
// layers or tokens. Errors: invalid_argument.
Status prove(const Product& product, const kv::Descriptor& source, const kv::Descriptor& target,
             kv::TokenRange tokens);

}  // namespace isthmus::transform
