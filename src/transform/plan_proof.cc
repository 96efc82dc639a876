// SPDX-License-Identifier: Apache-2.0
// The proof that a plan covers what is wanted exactly once, inside one rank at each end.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "transform/plan.h"

namespace isthmus::transform {
namespace {

std::string text(const Chunk& chunk) {
  const kv::Box& box = chunk.box;
  return fmt::format("chunk {} (group {}, layers [{}, {}), heads [{}, {}), tokens [{}, {}))", chunk.index,
                     chunk.group, box.layer_begin, box.layer_end, box.head_begin, box.head_end,
                     box.tokens.begin, box.tokens.end);
}

Error refuse(const Chunk& chunk, std::string_view why) {
  return Error{Code::kInvalidArgument, fmt::format("{} {}", text(chunk), why)};
}

// Layers x heads of a group, each cell to be covered once by the chunks of every token tile.
struct GroupExtent {
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
};

Result<std::vector<GroupExtent>> extents_of(const kv::Descriptor& descriptor) {
  std::vector<GroupExtent> extents;
  for (const kv::LayerGroup& group : descriptor.groups) {
    if (group.layers.empty() || group.components.empty()) {
      return Error{Code::kInvalidArgument,
                   fmt::format("group {} has no layers or no components", extents.size())};
    }
    extents.push_back({static_cast<std::uint32_t>(group.layers.size()), group.components.front().heads});
  }
  return extents;
}

bool inside_one_rank(const Chunk& chunk, const kv::Descriptor& descriptor) {
  return std::any_of(descriptor.partition.begin(), descriptor.partition.end(), [&](const kv::RankBox& rank) {
    return rank.group == chunk.group && rank.layer_begin <= chunk.box.layer_begin &&
           chunk.box.layer_end <= rank.layer_end && rank.head_begin <= chunk.box.head_begin &&
           chunk.box.head_end <= rank.head_end;
  });
}

Status check_box(const Chunk& chunk, const GroupExtent& extent, kv::TokenRange tokens) {
  const kv::Box& box = chunk.box;
  if (box.empty()) return refuse(chunk, "is empty");
  if (box.layer_end > extent.layers || box.head_end > extent.heads || !tokens.contains(box.tokens)) {
    return refuse(chunk, fmt::format("leaves the wanted box: {} layers, {} heads, tokens [{}, {})",
                                     extent.layers, extent.heads, tokens.begin, tokens.end));
  }
  // Both ends must digest the same tiles, so a chunk is the whole of what is wanted of one tile.
  const std::uint64_t tile = box.tokens.begin / kTileTokens;
  const kv::TokenRange whole{std::max(tile * kTileTokens, tokens.begin),
                             std::min((tile + 1) * kTileTokens, tokens.end)};
  if (box.tokens != whole) {
    return refuse(chunk, fmt::format("isn't cut at its token tile [{}, {})", whole.begin, whole.end));
  }
  return ok_status();
}

// Coverage of one (token tile, group).
class Cover {
 public:
  explicit Cover(GroupExtent extent)
      : heads_(extent.heads), seen_(std::size_t{extent.layers} * extent.heads, false) {}

  Status mark(const Chunk& chunk) {
    for (std::uint32_t layer = chunk.box.layer_begin; layer < chunk.box.layer_end; ++layer) {
      for (std::uint32_t head = chunk.box.head_begin; head < chunk.box.head_end; ++head) {
        const std::size_t cell = std::size_t{layer} * heads_ + head;
        if (seen_[cell])
          return refuse(chunk, fmt::format("covers layer {}, head {} a second time", layer, head));
        seen_[cell] = true;
      }
    }
    return ok_status();
  }

  Status complete(std::uint64_t tile, std::uint32_t group) const {
    const auto hole = std::find(seen_.begin(), seen_.end(), false);
    if (hole == seen_.end()) return ok_status();
    const auto cell = static_cast<std::size_t>(hole - seen_.begin());
    return Error{Code::kInvalidArgument,
                 fmt::format("no chunk covers group {}, layer {}, head {} of token tile {} (tokens from {})",
                             group, cell / heads_, cell % heads_, tile, tile * kTileTokens)};
  }

 private:
  std::uint32_t heads_;
  std::vector<bool> seen_;
};

}  // namespace

Status Plan::prove(const std::vector<Chunk>& chunks, const kv::Descriptor& source,
                   const kv::Descriptor& target, kv::TokenRange tokens) {
  if (tokens.begin >= tokens.end) {
    return Error{Code::kInvalidArgument,
                 fmt::format("token range [{}, {}) is empty", tokens.begin, tokens.end)};
  }
  ISTHMUS_TRY(const std::vector<GroupExtent> extents, extents_of(source));
  std::map<std::pair<std::uint64_t, std::uint32_t>, Cover> covers;  // By (token tile, group).
  for (const Chunk& chunk : chunks) {
    if (chunk.group >= extents.size())
      return refuse(chunk, fmt::format("names one of {} groups", extents.size()));
    ISTHMUS_TRY(check_box(chunk, extents[chunk.group], tokens));
    if (!inside_one_rank(chunk, source)) return refuse(chunk, "isn't inside one rank of the source");
    if (!inside_one_rank(chunk, target)) return refuse(chunk, "isn't inside one rank of the target");
    const auto key = std::pair{chunk.box.tokens.begin / kTileTokens, chunk.group};
    ISTHMUS_TRY(covers.try_emplace(key, extents[chunk.group]).first->second.mark(chunk));
  }
  for (std::uint64_t tile = tokens.begin / kTileTokens; tile * kTileTokens < tokens.end; ++tile) {
    for (std::uint32_t group = 0; group < extents.size(); ++group) {
      const auto at = covers.find({tile, group});
      ISTHMUS_TRY(at == covers.end() ? Cover(extents[group]).complete(tile, group)
                                     : at->second.complete(tile, group));
    }
  }
  return ok_status();
}

}  // namespace isthmus::transform
