// SPDX-License-Identifier: Apache-2.0
// The proof that a product covers what is wanted exactly once, whole pieces on each rank.
#include "transform/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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

}  // namespace

std::uint64_t token_begin_of(const kv::Descriptor& source, const kv::Descriptor& target, std::uint32_t group,
                             kv::TokenRange tokens) {
  const kv::LayerGroup& wanted = source.groups[group];
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
    for (const auto& [end, descriptor] : {std::pair{"source", &source}, std::pair{"target", &target}}) {
      Held held(cuts, group, end);
      for (const kv::RankBox& rank : descriptor->partition) {
        if (rank.group == group) ISTHMUS_TRY(held.add(rank));
      }
      ISTHMUS_TRY(held.complete());
    }
  }
  return ok_status();
}

}  // namespace isthmus::transform
