// SPDX-License-Identifier: Apache-2.0
// See ranks.h.
#include "transform/ranks.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::transform {
namespace {

// First index of each run, and the end.
std::uint32_t cut(std::uint32_t total, std::uint32_t ranks, std::uint32_t at) {
  return total / ranks * at + std::min(at, total % ranks);
}

}  // namespace

Status split_ranks(kv::Descriptor& descriptor, Degrees degrees) {
  std::vector<kv::RankBox> boxes;
  for (std::uint32_t g = 0; g < descriptor.groups.size(); ++g) {
    const kv::LayerGroup& group = descriptor.groups[g];
    const std::uint32_t heads = group.components.front().heads;
    const auto layers = static_cast<std::uint32_t>(group.layers.size());
    if (degrees.tensor == 0 || (heads < degrees.tensor && degrees.tensor % heads != 0))
      return Error{Code::kInvalidArgument, fmt::format("{} heads on {} tensor ranks", heads, degrees.tensor)};
    if (degrees.pipeline == 0 || layers < degrees.pipeline)
      return Error{Code::kInvalidArgument,
                   fmt::format("{} layers on {} pipeline ranks", layers, degrees.pipeline)};
    const std::uint32_t copies = std::max(1u, degrees.tensor / heads);
    const std::uint32_t runs = heads < degrees.tensor ? heads : degrees.tensor;
    for (std::uint32_t l = 0; l < degrees.pipeline; ++l) {
      for (std::uint32_t t = 0; t < degrees.tensor; ++t) {
        const bool is_copied = heads < degrees.tensor;
        const std::uint32_t run = is_copied ? t / copies : t;
        kv::RankBox box{.rank = l * degrees.tensor + t,
                        .group = g,
                        .layer_begin = cut(layers, degrees.pipeline, l),
                        .layer_end = cut(layers, degrees.pipeline, l + 1),
                        .head_begin = cut(heads, runs, run),
                        .head_end = cut(heads, runs, run + 1)};
        const bool has_heads = group.attention == kv::AttentionKind::kFull ||
                               group.attention == kv::AttentionKind::kSlidingWindow;
        (has_heads ? box.gqa_replica : box.mla_replica) = is_copied ? t % copies : 0;
        boxes.push_back(box);
      }
    }
  }
  descriptor.partition = std::move(boxes);
  descriptor.schema_minor = std::max(descriptor.schema_minor, descriptor.minimum_minor());
  return ok_status();
}

}  // namespace isthmus::transform
