// SPDX-License-Identifier: Apache-2.0
// Groups, storage, partition.
#include "engine/reference/representation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/digest.h"
#include "kv/catalogue.h"
#include "transform/ranks.h"

namespace isthmus::engine {
namespace {

constexpr double kRopeTheta = 10000;

Status check(const ReferenceShape& shape) {
  const bool is_mla = shape.attention == ReferenceAttention::kMla;
  if (shape.layers == 0 || shape.kv_heads == 0 || shape.query_heads == 0 || shape.vocabulary == 0 ||
      shape.dim == 0 || shape.dim % 2 != 0 || shape.query_heads % shape.kv_heads != 0) {
    return Error{Code::kInvalidArgument,
                 "layers, heads and vocabulary are at least 1, dim is even, kv_heads divides query_heads"};
  }
  if (is_mla && (shape.kv_heads != 1 || shape.rope_dim == 0 || shape.rope_dim % 2 != 0))
    return Error{Code::kInvalidArgument, "MLA has one kv head and an even rope_dim"};
  if (shape.attention == ReferenceAttention::kSlidingMix && (shape.layers < 2 || shape.window == 0))
    return Error{Code::kInvalidArgument, "a sliding mix has two layers at least, and a window"};
  return ok_status();
}

std::string shape_text(const ReferenceShape& shape) {
  return fmt::format(
      "attention={} layers={} query_heads={} kv_heads={} dim={} rope_dim={} window={} "
      "vocabulary={}",
      static_cast<int>(shape.attention), shape.layers, shape.query_heads, shape.kv_heads, shape.dim,
      shape.rope_dim, shape.window, shape.vocabulary);
}

std::string digest_of(const std::string& text) {
  return digest128(std::as_bytes(std::span(text.data(), text.size()))).hex();
}

kv::Component component(std::string name, std::uint32_t heads, std::uint32_t dim, bool has_rope) {
  kv::Component made;
  made.name = std::move(name);
  made.heads = heads;
  made.dim = dim;
  if (has_rope) made.value_transforms = {"rope:interleaved"};
  return made;
}

}  // namespace

LayerPlace place_of(const ReferenceShape& shape, std::uint32_t layer) {
  if (shape.attention != ReferenceAttention::kSlidingMix) return {0, layer};
  return {layer % 2, layer / 2};
}

std::vector<kv::LayerGroup> groups_of(const ReferenceShape& shape) {
  kv::LayerGroup whole;
  if (shape.attention == ReferenceAttention::kMla) {
    whole.attention = kv::AttentionKind::kMla;
    whole.components = {component("latent", 1, shape.dim, false), component("rope", 1, shape.rope_dim, true)};
  } else {
    whole.components = {component("k", shape.kv_heads, shape.dim, true),
                        component("v", shape.kv_heads, shape.dim, false)};
  }
  std::vector<kv::LayerGroup> groups{whole};
  if (shape.attention == ReferenceAttention::kSlidingMix) {
    groups.push_back(whole);
    groups[1].attention = kv::AttentionKind::kSlidingWindow;
    groups[1].window = shape.window;
  }
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
    groups[place_of(shape, layer).group].layers.push_back(layer);
  return groups;
}

Result<kv::Descriptor> describe(const ReferenceOptions& options) {
  const ReferenceShape& shape = options.shape;
  ISTHMUS_TRY(check(shape));
  if (options.tensor_ranks == 0 || options.pipeline_ranks == 0)
    return Error{Code::kInvalidArgument, "there is one rank at least"};
  ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage(options.storage));
  kv::Descriptor descriptor;
  descriptor.identity = {.architecture = "isthmus-reference",
                         .lineage = digest_of(fmt::format("{} seed={}", shape_text(shape), shape.seed)),
                         .config_digest = digest_of(shape_text(shape)),
                         .tokenizer_digest = "none",
                         .adapters = {},
                         .position_scheme = "rope",
                         .rope_theta = kRopeTheta,
                         .rope_scaling = "none"};
  descriptor.weights_recipe = "f32";
  descriptor.weights_digest = descriptor.identity.lineage;
  for (kv::LayerGroup& group : groups_of(shape)) {
    ISTHMUS_TRY(kv::StoredGroup stored, kv::represent(*storage, std::move(group)));
    if (options.block_tokens != 0) stored.representation.block_tokens = options.block_tokens;
    descriptor.groups.push_back(std::move(stored.group));
    descriptor.representation.push_back(std::move(stored.representation));
  }
  ISTHMUS_TRY(transform::split_ranks(descriptor, {options.tensor_ranks, options.pipeline_ranks}));
  ISTHMUS_TRY(descriptor.validate());
  return descriptor;
}

}  // namespace isthmus::engine
