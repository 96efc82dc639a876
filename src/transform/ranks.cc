// SPDX-License-Identifier: Apache-2.0
// See ranks.h.
#include "transform/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::transform {
namespace {

// First index of each run, and the end.
std::uint32_t cut(std::uint32_t total, std::uint32_t ranks, std::uint32_t at) {
  return total / ranks * at + std::min(at, total % ranks);
}

Error refuse(std::string why) {
  return Error{Code::kInvalidArgument, std::move(why)};
}

void set_tokens(kv::RankBox& box, const Degrees& degrees, std::uint32_t context) {
  box.token_begin = std::uint64_t{context} * degrees.run;
  box.token_end = box.token_begin + degrees.run;
  if (degrees.is_striped) {
    box.token_period = std::uint64_t{degrees.context} * degrees.run;
  } else if (context + 1 == degrees.context) {
    box.token_end = 0;
  }
}

Status add_boxes(const kv::LayerGroup& group, std::uint32_t index, const Degrees& degrees,
                 std::vector<kv::RankBox>& boxes) {
  const std::uint32_t heads = group.components.front().heads;
  const auto layers = static_cast<std::uint32_t>(group.layers.size());
  const bool is_copied = heads < degrees.tensor;
  if (degrees.tensor == 0 || (is_copied && degrees.tensor % heads != 0))
    return refuse(fmt::format("{} heads on {} tensor ranks", heads, degrees.tensor));
  if (degrees.pipeline == 0) return refuse(fmt::format("{} layers on no pipeline rank", layers));
  if (degrees.context == 0 || (degrees.context > 1 && degrees.run == 0))
    return refuse(fmt::format("{} context ranks, {} tokens in a row", degrees.context, degrees.run));
  const std::uint64_t ranks = std::uint64_t{degrees.pipeline} * degrees.context * degrees.tensor;
  if (degrees.pipeline > kv::kBoxesMax || degrees.context > kv::kBoxesMax || ranks > kv::kBoxesMax)
    return refuse(fmt::format("more than {} ranks", kv::kBoxesMax));
  const std::uint32_t copies = is_copied ? degrees.tensor / heads : 1;
  const std::uint32_t runs = is_copied ? heads : degrees.tensor;
  const bool has_tokens = group.attention != kv::AttentionKind::kRecurrent;
  const bool is_latent =
      group.attention == kv::AttentionKind::kMla || group.attention == kv::AttentionKind::kSparseIndexed;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t tensor = rank % degrees.tensor, context = rank / degrees.tensor % degrees.context;
    const std::uint32_t pipeline = rank / degrees.tensor / degrees.context;
    const std::uint32_t run = tensor / copies;
    kv::RankBox box{.rank = rank,
                    .group = index,
                    .layer_begin = cut(layers, degrees.pipeline, pipeline),
                    .layer_end = cut(layers, degrees.pipeline, pipeline + 1),
                    .head_begin = cut(heads, runs, run),
                    .head_end = cut(heads, runs, run + 1)};
    std::uint32_t copy = tensor % copies;
    if (degrees.context > 1 && has_tokens) set_tokens(box, degrees, context);
    if (!has_tokens) copy += context * copies;
    (is_latent ? box.mla_replica : box.gqa_replica) = copy;
    if (box.layer_begin < box.layer_end) boxes.push_back(box);
  }
  return ok_status();
}

}  // namespace

Status split_ranks(kv::Descriptor& descriptor, Degrees degrees) {
  std::vector<kv::RankBox> boxes;
  for (std::uint32_t g = 0; g < descriptor.groups.size(); ++g)
    ISTHMUS_TRY(add_boxes(descriptor.groups[g], g, degrees, boxes));
  descriptor.partition = std::move(boxes);
  descriptor.schema_minor = std::max(descriptor.schema_minor, descriptor.minimum_minor());
  return ok_status();
}

}  // namespace isthmus::transform
