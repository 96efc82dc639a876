// SPDX-License-Identifier: Apache-2.0
// Which of a tile's tokens lie on one rank of each end, where context-parallel ranks deal out positions.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
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

// After how many positions all stripes repeat: tiles that begin as far into it are cut alike. 0 if some never
// do, or only after more than 2^20.
std::uint64_t period_of(const std::vector<kv::RankBox>& stripes);

// Cuts tiles of one group.
class TokenCutter {
 public:
  explicit TokenCutter(std::vector<kv::RankBox> stripes)
      : stripes_(std::move(stripes)), period_(period_of(stripes_)) {}
  // `tokens` lie within a tile; none have no cut. Tokens of one cut have the same stripes. exhausted if the
  // ranks deal out positions so finely that cutting would take too long.
  Result<TokenPattern> cut(kv::TokenRange tokens);

 private:
  Result<TokenPattern> cut_anew(kv::TokenRange tokens);

  std::vector<kv::RankBox> stripes_;
  std::uint64_t period_ = 0, steps_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, TokenPattern>
      known_;  // By place in the period, and tokens.
};

}  // namespace isthmus::transform
