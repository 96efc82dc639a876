// SPDX-License-Identifier: Apache-2.0
// Sample descriptors for tests: one small model in any storage of the catalogue.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kv/catalogue.h"
#include "kv/descriptor.h"

namespace isthmus::kv::sample {

inline constexpr std::uint32_t kLayers = 4;
inline constexpr std::uint32_t kHeads = 3;
inline constexpr std::uint32_t kDim = 64;

// Of k and v; a model may have rows of unlike sizes.
struct Shape {
  std::uint32_t heads = kHeads, k_dim = kDim, v_dim = kDim;
};

// Components as the storage holds them; MLA parts have one head and their own sizes.
inline LayerGroup group_for(const Storage& storage, const Shape& shape = {}) {
  LayerGroup group;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) group.layers.push_back(layer);
  for (const DecodeForm& form : storage.forms) {
    Component component{
        .name = form.component, .heads = shape.heads, .dim = shape.k_dim, .value_transforms = {}};
    if (form.component == "k") component.value_transforms = {"rope:interleaved"};
    if (form.component == "v") component.dim = shape.v_dim;
    if (form.component != "k" && form.component != "v") component.heads = 1;
    if (form.component == "latent") component.dim = storage.name == "vllm:mla_fp8_584" ? 448 : 512;
    if (form.component == "rope") component.dim = 64;
    if (form.component == "index_k") component.dim = 128;
    group.components.push_back(component);
  }
  return group;
}

// Static scales of unlike layers; those of v serve all layers.
inline StaticScales static_scales() {
  return {{"k", {0.1F, 0.2F, 0.2F, 0.7F}}, {"v", {0.03F}}};
}

inline Descriptor descriptor(const std::string& storage_name, const Shape& shape = {}) {
  const Storage& storage = *find_storage(storage_name).value();
  Descriptor descriptor;
  descriptor.identity.architecture = "llama";
  descriptor.identity.lineage = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
  descriptor.identity.config_digest = "00112233445566778899aabbccddeeff";
  descriptor.identity.tokenizer_digest = "ffeeddccbbaa99887766554433221100";
  descriptor.identity.position_scheme = "rope";
  descriptor.identity.rope_theta = 100000;
  descriptor.identity.rope_scaling = "none";
  descriptor.weights_recipe = "gguf-q4_1";
  descriptor.weights_digest = "b179c952";
  StoredGroup stored = represent(storage, group_for(storage, shape), static_scales()).value();
  descriptor.groups = {std::move(stored.group)};
  descriptor.representation = {std::move(stored.representation)};
  descriptor.partition = {{.rank = 0,
                           .group = 0,
                           .layer_begin = 0,
                           .layer_end = kLayers,
                           .head_begin = 0,
                           .head_end = descriptor.groups.front().components.front().heads}};
  descriptor.schema_minor = descriptor.minimum_minor();
  return descriptor;
}

}  // namespace isthmus::kv::sample
