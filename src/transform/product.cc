// SPDX-License-Identifier: Apache-2.0
// The proof that a product covers what is wanted exactly once, whole pieces on each rank.
#include "transform/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <string_view>

namespace isthmus::transform {
namespace {

Error refuse(std::string why) {
  return Error{Code::kInvalidArgument, std::move(why)};
}

// Cut points are a partition if they ascend from 0 to the extent.
Status check_cuts(std::string_view what, const std::vector<std::uint32_t>& cuts, std::uint64_t extent) {
  if (cuts.empty() || cuts.front() != 0)
    return refuse(fmt::format("no piece covers {} [0, {})", what, cuts.empty() ? extent : cuts.front()));
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i - 1] >= cuts[i]) {
      return refuse(fmt::format("{} [{}, {}) is {}", what, cuts[i - 1], cuts[i],
                                cuts[i - 1] == cuts[i] ? "empty" : "covered twice"));
    }
  }
  if (cuts.back() < extent)
    return refuse(fmt::format("no piece covers {} [{}, {})", what, cuts.back(), extent));
  if (cuts.back() == extent) return ok_status();
  return refuse(
      fmt::format("{} [{}, {}) leaves the wanted {}", what, cuts[cuts.size() - 2], cuts.back(), extent));
}

// Both ends must digest the same tiles, so a tile is the whole of what is wanted between two anchors.
Status check_tiles(const std::vector<kv::TokenRange>& tiles, kv::TokenRange tokens) {
  std::uint64_t at = tokens.begin;
  for (const kv::TokenRange& tile : tiles) {
    const std::uint64_t end = std::min((at / kTileTokens + 1) * kTileTokens, tokens.end);
    if (tile.begin >= tile.end) return refuse(fmt::format("tile [{}, {}) is empty", tile.begin, tile.end));
    if (tile.begin < at) {
      return refuse(tile.begin < tokens.begin
                        ? fmt::format("tile [{}, {}) leaves the wanted tokens [{}, {})", tile.begin, tile.end,
                                      tokens.begin, tokens.end)
                        : fmt::format("tile [{}, {}) covers tokens from {} a second time", tile.begin,
                                      tile.end, tile.begin));
    }
    if (tile.begin > at) return refuse(fmt::format("no tile covers tokens [{}, {})", at, tile.begin));
    if (tile.end > tokens.end || at == tokens.end) {
      return refuse(fmt::format("tile [{}, {}) leaves the wanted tokens [{}, {})", tile.begin, tile.end,
                                tokens.begin, tokens.end));
    }
    if (tile.end != end)
      return refuse(fmt::format("tile [{}, {}) isn't cut at {}", tile.begin, tile.end, end));
    at = tile.end;
  }
  if (at == tokens.end) return ok_status();
  return refuse(fmt::format("no tile covers tokens [{}, {})", at, tokens.end));
}

// Which pieces some rank of one end holds.
class Held {
 public:
  Held(const Product::Group& cuts, std::uint32_t group, std::string_view end)
      : cuts_(cuts), group_(group), end_(end), seen_((cuts.layers.size() - 1) * heads(), false) {}

  // Bounds within the group must be cut points, else a piece lies half on this rank.
  Status add(const kv::RankBox& rank) {
    const std::uint32_t layers = cuts_.layers.back(), heads_end = cuts_.heads.back();
    const std::uint32_t layer_end = std::min(rank.layer_end, layers),
                        head_end = std::min(rank.head_end, heads_end);
    if (rank.layer_begin >= layer_end || rank.head_begin >= head_end) return ok_status();
    const auto layer0 = at(cuts_.layers, rank.layer_begin), layer1 = at(cuts_.layers, layer_end);
    const auto head0 = at(cuts_.heads, rank.head_begin), head1 = at(cuts_.heads, head_end);
    for (const auto& [what, cuts, place, bound] :
         {std::tuple{"layers", &cuts_.layers, layer0, rank.layer_begin},
          {"layers", &cuts_.layers, layer1, layer_end},
          {"heads", &cuts_.heads, head0, rank.head_begin},
          {"heads", &cuts_.heads, head1, head_end}}) {
      if ((*cuts)[place] == bound) continue;
      return refuse(
          fmt::format("group {}, {} [{}, {}): isn't inside one rank of the {}; rank {} is cut at {}", group_,
                      what, (*cuts)[place - 1], (*cuts)[place], end_, rank.rank, bound));
    }
    for (std::size_t layer = layer0; layer < layer1; ++layer) {
      const auto row = seen_.begin() + static_cast<std::ptrdiff_t>(layer * heads());
      std::fill(row + static_cast<std::ptrdiff_t>(head0), row + static_cast<std::ptrdiff_t>(head1), true);
    }
    return ok_status();
  }

  Status complete() const {
    const auto hole = std::find(seen_.begin(), seen_.end(), false);
    if (hole == seen_.end()) return ok_status();
    const auto piece = static_cast<std::size_t>(hole - seen_.begin());
    const std::size_t layer = piece / heads(), head = piece % heads();
    return refuse(fmt::format("group {}, layers [{}, {}), heads [{}, {}): no rank of the {} holds them",
                              group_, cuts_.layers[layer], cuts_.layers[layer + 1], cuts_.heads[head],
                              cuts_.heads[head + 1], end_));
  }

 private:
  std::size_t heads() const { return cuts_.heads.size() - 1; }
  // The first cut point that isn't below; there is one, as bounds are clipped.
  static std::size_t at(const std::vector<std::uint32_t>& cuts, std::uint32_t bound) {
    return static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), bound) - cuts.begin());
  }

  const Product::Group& cuts_;
  std::uint32_t group_ = 0;
  std::string_view end_;
  std::vector<bool> seen_;
};

// Every rank of one end holds a cut whole or nothing of it; the answer says which do, in the partition's
// order.
Result<std::vector<bool>> holders_of(const TokenCut& cut, kv::TokenRange tokens, const kv::Descriptor& end,
                                     std::string_view name, std::uint32_t group) {
  std::vector<bool> holders;
  for (const kv::RankBox& rank : end.partition) {
    if (rank.group != group) continue;
    holders.push_back(rank.has_token(tokens.begin + cut.runs.front().begin));
    for (const kv::TokenRange& run : cut.runs) {
      const kv::TokenRange at{tokens.begin + run.begin, tokens.begin + run.end};
      const std::uint64_t held = rank.tokens_below(at.end) - rank.tokens_below(at.begin);
      if (held == (holders.back() ? at.size() : 0)) continue;
      return refuse(fmt::format("group {}, tokens [{}, {}): aren't inside one rank of the {}; rank {} has {}",
                                group, at.begin, at.end, name, rank.rank, rank.text()));
    }
  }
  return holders;
}

// The cuts of one tile have each of its tokens once.
Status check_pattern(const TokenPattern& pattern, kv::TokenRange tokens, std::uint32_t group) {
  std::vector<kv::TokenRange> runs;
  for (const TokenCut& cut : pattern) {
    if (cut.runs.empty())
      return refuse(fmt::format("group {}, tokens [{}, {}): an empty cut", group, tokens.begin, tokens.end));
    for (std::size_t i = 0; i < cut.runs.size(); ++i) {
      const kv::TokenRange& run = cut.runs[i];
      if (run.begin < run.end && (i == 0 || cut.runs[i - 1].end < run.begin)) continue;
      return refuse(fmt::format("group {}: run [{}, {}) of the tokens from {} on is empty or out of order",
                                group, run.begin, run.end, tokens.begin));
    }
    runs.insert(runs.end(), cut.runs.begin(), cut.runs.end());
  }
  std::sort(runs.begin(), runs.end());
  std::uint64_t at = 0;
  for (const kv::TokenRange& run : runs) {
    if (run.begin != at) {
      return refuse(
          fmt::format("group {}: {} tokens [{}, {})", group, run.begin > at ? "no cut has" : "two cuts have",
                      tokens.begin + std::min(at, run.begin), tokens.begin + std::max(at, run.begin)));
    }
    at = run.end;
  }
  if (at == tokens.size()) return ok_status();
  return refuse(fmt::format("group {}: the cuts of tokens [{}, {}) end at {}", group, tokens.begin,
                            tokens.end, tokens.begin + at));
}

// Layers and heads on some of one end's ranks: `members` in the partition's order, all if null.
Status check_ranks(const Product::Group& cuts, std::uint32_t group, const kv::Descriptor& end,
                   std::string_view name, const std::vector<bool>* members) {
  Held held(cuts, group, name);
  std::size_t next = 0;
  for (const kv::RankBox& rank : end.partition) {
    if (rank.group != group) continue;
    if (members == nullptr || (*members)[next]) ISTHMUS_TRY(held.add(rank));
    ++next;
  }
  return held.complete();
}

// Where ranks deal out positions, layers and heads must be held for each cut of the tokens.
Status check_stripes(const Product& product, std::uint32_t group, const kv::Descriptor& end,
                     std::string_view name) {
  const Product::Group& cuts = product.groups[group];
  std::set<std::vector<bool>> proved;
  std::vector<kv::RankBox> stripes;
  for (const kv::RankBox& rank : end.partition) {
    if (rank.group == group && !rank.has_all_tokens()) stripes.push_back(rank);
  }
  // Tiles of one pattern at one place of the period lie on the ranks alike.
  const std::uint64_t period = period_of(stripes);
  std::set<std::pair<std::uint32_t, std::uint64_t>> alike;
  for (std::size_t tile = 0; tile < product.tiles.size(); ++tile) {
    const kv::TokenRange tokens = Product::tokens_of(cuts, product.tiles[tile]);
    if (period != 0 && !alike.emplace(cuts.tile_patterns[tile], tokens.begin % period).second) continue;
    for (const TokenCut& cut : cuts.patterns[cuts.tile_patterns[tile]]) {
      ISTHMUS_TRY(std::vector<bool> members, holders_of(cut, tokens, end, name, group));
      const auto [at, is_new] = proved.insert(std::move(members));
      if (!is_new) continue;
      Status held = check_ranks(cuts, group, end, name, &*at);
      if (held.ok()) continue;
      const std::uint64_t first = tokens.begin + cut.runs.front().begin;
      return std::move(held).with_context(fmt::format("position {}", first));
    }
  }
  return ok_status();
}

Status check_tokens(const Product& product, std::uint32_t group) {
  const Product::Group& cuts = product.groups[group];
  if (cuts.tile_patterns.size() != product.tiles.size()) {
    return refuse(fmt::format("group {}: {} tiles are cut, there are {}", group, cuts.tile_patterns.size(),
                              product.tiles.size()));
  }
  std::set<std::pair<std::uint32_t, std::uint64_t>> alike;
  for (std::size_t tile = 0; tile < product.tiles.size(); ++tile) {
    if (cuts.tile_patterns[tile] >= cuts.patterns.size())
      return refuse(fmt::format("group {}: tile {} is cut by no pattern", group, tile));
    const kv::TokenRange tokens = Product::tokens_of(cuts, product.tiles[tile]);
    if (alike.emplace(cuts.tile_patterns[tile], tokens.size()).second)
      ISTHMUS_TRY(check_pattern(cuts.patterns[cuts.tile_patterns[tile]], tokens, group));
  }
  return ok_status();
}

}  // namespace

std::uint64_t token_begin_of(const kv::Descriptor& source, const kv::Descriptor& target, std::uint32_t group,
                             kv::TokenRange tokens) {
  const kv::LayerGroup& wanted = source.groups[group];
  if (wanted.attention == kv::AttentionKind::kRecurrent) return tokens.end - 1;
  if (wanted.attention != kv::AttentionKind::kSlidingWindow || tokens.end <= wanted.window)
    return tokens.begin;
  std::uint64_t granule = 1;
  for (const kv::Descriptor* end : {&source, &target}) {
    if (group >= end->representation.size()) continue;
    for (const kv::DecodeForm& form : end->representation[group].forms)
      granule = std::lcm(granule, std::max<std::uint64_t>(form.granule_tokens, 1));
  }
  return std::max(tokens.begin, (tokens.end - wanted.window) / granule * granule);
}

Status prove(const Product& product, const kv::Descriptor& source, const kv::Descriptor& target,
             kv::TokenRange tokens) {
  if (tokens.begin >= tokens.end)
    return refuse(fmt::format("token range [{}, {}) is empty", tokens.begin, tokens.end));
  ISTHMUS_TRY(check_tiles(product.tiles, tokens));
  if (product.groups.size() != source.groups.size()) {
    return refuse(
        fmt::format("{} groups are cut, {} are wanted", product.groups.size(), source.groups.size()));
  }
  for (std::uint32_t group = 0; group < product.groups.size(); ++group) {
    const Product::Group& cuts = product.groups[group];
    const kv::LayerGroup& wanted = source.groups[group];
    if (wanted.layers.empty() || wanted.components.empty())
      return refuse(fmt::format("group {} has no layers or no components", group));
    ISTHMUS_TRY(check_cuts(fmt::format("group {}, layers", group), cuts.layers, wanted.layers.size()));
    ISTHMUS_TRY(
        check_cuts(fmt::format("group {}, heads", group), cuts.heads, wanted.components.front().heads));
    if (const std::uint64_t begin = token_begin_of(source, target, group, tokens);
        cuts.token_begin != begin) {
      return refuse(fmt::format("group {} is cut from token {}, wanted is [{}, {})", group, cuts.token_begin,
                                begin, tokens.end));
    }
    const bool is_striped = !stripes_of(source, target, group).empty();
    if (is_striped) {
      ISTHMUS_TRY(check_tokens(product, group));
    } else if (!cuts.patterns.empty() || !cuts.tile_patterns.empty()) {
      return refuse(fmt::format("group {}: tokens are cut, and each rank has all", group));
    }
    for (const auto& [end, descriptor] : {std::pair{"source", &source}, std::pair{"target", &target}}) {
      ISTHMUS_TRY(is_striped ? check_stripes(product, group, *descriptor, end)
                             : check_ranks(cuts, group, *descriptor, end, nullptr));
    }
  }
  return ok_status();
}

}  // namespace isthmus::transform
