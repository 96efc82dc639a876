// SPDX-License-Identifier: Apache-2.0
// Pairs of deployments that others have published, as descriptors for tests. Parallelism, formats and kinds
// of attention are theirs; sizes are those of the class of model where a publication gives none.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kv/catalogue.h"
#include "kv/descriptor.h"

namespace isthmus::kv::published {

struct Pair {
  std::string name;
  Descriptor prefill, decode;
};

inline Descriptor of_model(const std::string& architecture, double theta, const std::string& recipe) {
  Descriptor made;
  made.identity.architecture = architecture;
  made.identity.lineage = architecture + "-base";
  made.identity.config_digest = architecture + "-config";
  made.identity.tokenizer_digest = architecture + "-tokenizer";
  made.identity.position_scheme = "rope";
  made.identity.rope_theta = theta;
  made.identity.rope_scaling = "none";
  made.weights_recipe = recipe;
  made.weights_digest = recipe + "-digest";
  return made;
}

inline std::vector<std::uint32_t> layers_below(std::uint32_t count) {
  std::vector<std::uint32_t> layers(count);
  std::iota(layers.begin(), layers.end(), 0U);
  return layers;
}

// Appends a group as a storage of the catalogue holds it.
inline void add_group(Descriptor& to, const std::string& storage, LayerGroup group,
                      const StaticScales& scales = {}) {
  StoredGroup stored = represent(**find_storage(storage), std::move(group), scales).value();
  to.groups.push_back(std::move(stored.group));
  to.representation.push_back(std::move(stored.representation));
}

inline RankBox whole(const Descriptor& of, std::uint32_t group, std::uint32_t rank) {
  RankBox box;
  box.rank = rank;
  box.group = group;
  box.layer_end = static_cast<std::uint32_t>(of.groups[group].layers.size());
  box.head_end = of.groups[group].components.front().heads;
  return box;
}

// Each rank has an equal share of a group's heads; of fewer heads than ranks, one of equally many copies.
inline void split_heads(Descriptor& of, std::uint32_t group, std::uint32_t ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    RankBox box = whole(of, group, rank);
    const std::uint32_t copies = box.head_end < ranks ? ranks / box.head_end : 1;
    const std::uint32_t share = box.head_end * copies / ranks;
    box.head_begin = rank / copies * share;
    box.head_end = box.head_begin + share;
    box.gqa_replica = rank % copies;
    of.partition.push_back(box);
  }
}

inline Descriptor finished(Descriptor made) {
  made.schema_minor = made.minimum_minor();
  return made;
}

// Latent attention with an indexer's keys: tensor-parallel ranks hold copies, pipeline stages ranges of
// layers, context-parallel ranks stripes of one block.
inline Descriptor latent_prefill(std::uint32_t pipeline, std::uint32_t context, std::uint32_t tensor,
                                 std::uint32_t layers = 78) {
  Descriptor made = of_model("mla-sparse", 1000000, "vllm/int8-w8a8");
  add_group(made, "vllm:mla_bf16",
            {layers_below(layers),
             AttentionKind::kMla,
             0,
             {{"latent", 1, 512, true, {}}, {"rope", 1, 64, true, {"rope:interleaved"}}}});
  LayerGroup keys{layers_below(layers), AttentionKind::kSparseIndexed, 0, {{"index_k", 1, 128, true, {}}}};
  DecodeForm form;
  form.component = "index_k";
  form.codes = Format::kBf16;
  form.recipe = "nearest_even";
  made.groups.push_back(std::move(keys));
  made.representation.push_back({"region I per layer = blk slot dim index_k:bf16", 64, {form}});
  for (std::uint32_t rank = 0; rank < pipeline * context * tensor; ++rank) {
    const std::uint32_t stage = rank / (context * tensor), stripe = rank / tensor % context;
    for (const std::uint32_t group : {0U, 1U}) {
      RankBox box = whole(made, group, rank);
      box.layer_begin = layers * stage / pipeline;
      box.layer_end = layers * (stage + 1) / pipeline;
      box.mla_replica = rank % tensor;
      if (context > 1) {
        box.token_begin = std::uint64_t{stripe} * 64;
        box.token_end = box.token_begin + 64;
        box.token_period = std::uint64_t{context} * 64;
      }
      made.partition.push_back(box);
    }
  }
  return finished(std::move(made));
}

// Data-parallel attention: each rank holds whole states, of its own sequences.
inline Descriptor latent_decode(std::uint32_t data, bool is_fp8, std::uint32_t layers = 78) {
  Descriptor made = latent_prefill(1, 1, 1, layers);
  made.weights_recipe = "sglang/fp8-e4m3-block128";
  made.weights_digest = made.weights_recipe + "-digest";
  if (is_fp8) {
    for (std::uint32_t group : {0U, 1U}) {
      const char* storage = group == 0 ? "vllm:mla_fp8_656" : "vllm:index_k_fp8";
      made.representation[group] = represent(**find_storage(storage), made.groups[group])->representation;
    }
  }
  made.partition.clear();
  for (std::uint32_t rank = 0; rank < data; ++rank) {
    for (const std::uint32_t group : {0U, 1U}) {
      RankBox box = whole(made, group, rank);
      box.data_replica = rank;
      made.partition.push_back(box);
    }
  }
  return finished(std::move(made));
}

// Grouped queries, 8 KV heads, over tensor-parallel ranks.
inline Descriptor grouped(const std::string& storage, std::uint32_t tensor) {
  Descriptor made = of_model("qwen3", 1000000, "sglang/bf16");
  add_group(made, storage,
            {layers_below(64),
             AttentionKind::kFull,
             0,
             {{"k", 8, 128, true, {"rope:halves"}}, {"v", 8, 128, true, {}}}},
            {{"k", {1}}, {"v", {1}}});
  split_heads(made, 0, tensor);
  return finished(std::move(made));
}

// One layer of full attention after five of a window.
inline Descriptor windowed(const std::string& storage, std::uint32_t window, std::uint32_t tensor) {
  Descriptor made = of_model("gemma3", 1000000, "bf16");
  std::vector<std::uint32_t> full, sliding;
  for (std::uint32_t layer = 0; layer < 62; ++layer) (layer % 6 == 5 ? full : sliding).push_back(layer);
  const std::vector<Component> components{{"k", 16, 128, true, {"rope:halves"}}, {"v", 16, 128, true, {}}};
  add_group(made, storage, {full, AttentionKind::kFull, 0, components});
  add_group(made, storage, {sliding, AttentionKind::kSlidingWindow, window, components});
  for (const std::uint32_t group : {0U, 1U}) split_heads(made, group, tensor);
  return finished(std::move(made));
}

// One layer of full attention after three with a recurrent state: a convolution's last inputs, and a matrix a
// head.
inline Descriptor hybrid(Format state, std::uint32_t tensor) {
  Descriptor made = of_model("qwen3-next", 10000000, "bf16");
  std::vector<std::uint32_t> full, recurrent;
  for (std::uint32_t layer = 0; layer < 48; ++layer) (layer % 4 == 3 ? full : recurrent).push_back(layer);
  add_group(made, "vllm:flash_nhd",
            {full, AttentionKind::kFull, 0, {{"k", 2, 256, true, {"rope:halves"}}, {"v", 2, 256, true, {}}}});
  made.groups.push_back({recurrent,
                         AttentionKind::kRecurrent,
                         0,
                         {{"conv", 32, 768, false, {}}, {"state", 32, 16384, false, {}}}});
  DecodeForm conv, matrix;
  conv.component = "conv";
  conv.codes = Format::kBf16;
  matrix.component = "state";
  matrix.codes = state;
  conv.recipe = matrix.recipe = "nearest_even";
  const std::string text =
      "region C per layer = tok head dim conv:bf16\nregion S per layer = tok head dim state:";
  made.representation.push_back({text + std::string(name(state)), 0, {conv, matrix}});
  for (const std::uint32_t group : {0U, 1U}) split_heads(made, group, tensor);
  return finished(std::move(made));
}

inline std::vector<Pair> pairs() {
  return {
      {"latent-tp4-cp4-pp4-to-dp16", latent_prefill(4, 4, 4), latent_decode(16, false)},
      {"latent-tp4-cp4-pp4-to-dp16-fp8", latent_prefill(4, 4, 4), latent_decode(16, true)},
      {"latent-tp4-pp4-to-dp16", latent_prefill(4, 1, 4), latent_decode(16, false)},
      {"latent-tp4-pp4-to-dp16-fp8", latent_prefill(4, 1, 4), latent_decode(16, true)},
      {"grouped-tp8-to-tp4", grouped("sglang:page", 8), grouped("sglang:page", 4)},
      {"grouped-tp4-to-tp8-hnd", grouped("sglang:page", 4), grouped("vllm:flash_hnd", 8)},
      {"grouped-tp8-to-tp4-fp8", grouped("sglang:page", 8), grouped("vllm:flash_nhd_fp8", 4)},
      {"windowed-tp4-to-tp2", windowed("vllm:flash_nhd", 1024, 4), windowed("vllm:flash_hnd", 1024, 2)},
      {"windowed-unlike-window", windowed("vllm:flash_nhd", 1024, 4), windowed("vllm:flash_nhd", 512, 4)},
      {"hybrid-equal-state", hybrid(Format::kF32, 2), hybrid(Format::kF32, 2)},
      {"hybrid-tp4-to-tp2", hybrid(Format::kF32, 4), hybrid(Format::kF32, 2)},
      {"hybrid-rounded-state", hybrid(Format::kF32, 2), hybrid(Format::kBf16, 2)},
  };
}

}  // namespace isthmus::kv::published
