// SPDX-License-Identifier: Apache-2.0
// Which of a tile's tokens lie on one rank of each end, where context-parallel ranks deal out positions.
#pragma once

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/geometry.h"

namespace isthmus::transform {

// Tokens that every rank of either end has together or not at all.
struct TokenCut {
  // Ascending, apart, not empty; counted from the first token of what was cut.
  std::vector<kv::TokenRange> runs;
  std::uint64_t tokens() const {
    std::uint64_t count = 0;
    for (const kv::TokenRange& run : runs) count += run.size();
    return count;
  }
  friend auto operator<=>(const TokenCut&, const TokenCut&) = default;
};

// The cuts of one tile, by first token; together each token once.
using TokenPattern = std::vector<TokenCut>;

// Positions of one box of each kind among the group's ranks of both ends; none if each rank has all.
std::vector<kv::RankBox> stripes_of(const kv::Descriptor& source, const kv::Descriptor& target,
                                    std::uint32_t group);

// Cuts tiles of one group.
class TokenCutter {
 public:
  explicit TokenCutter(std::vector<kv::RankBox> stripes) : stripes_(std::move(stripes)) {}
  // `tokens` lie within a tile; none have no cut. Tokens of one cut have the same stripes. exhausted if the
  // ranks deal out positions so finely that cutting would take too long.
  Result<TokenPattern> cut(kv::TokenRange tokens);

 private:
  std::vector<kv::RankBox> stripes_;
  std::uint64_t steps_ = 0;
};

}  // namespace isthmus::transform
