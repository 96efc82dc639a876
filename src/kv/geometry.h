// SPDX-License-Identifier: Apache-2.0
// What a KV state holds, in model terms: token ranges, layer groups, components, boxes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::kv {

// Half-open range of absolute token positions.
struct TokenRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const { return end - begin; }
  bool contains(const TokenRange& other) const { return begin <= other.begin && other.end <= end; }
  friend auto operator<=>(const TokenRange&, const TokenRange&) = default;
};

// A product of half-open ranges in one layer group: layers are indices *within the group's list*, heads are
// global KV heads, tokens are absolute positions.
struct Box {
  std::uint32_t layer_begin = 0, layer_end = 0;
  std::uint32_t head_begin = 0, head_end = 0;
  TokenRange tokens;

  bool empty() const {
    return layer_begin >= layer_end || head_begin >= head_end || tokens.begin >= tokens.end;
  }
  friend bool operator==(const Box&, const Box&) = default;
};

enum class AttentionKind : std::uint8_t { kFull, kSlidingWindow, kMla, kSparseIndexed, kRecurrent };
// "full", "sliding", "mla", "sparse-indexed", "recurrent"
std::string_view name(AttentionKind kind);

// A stored quantity of each layer of a group: k, v, latent, …
struct Component {
  std::string name;         // "k", "v", "latent", "rope", "index_k"; the letter used in layouts.
  std::uint32_t heads = 0;  // Global KV heads.
  std::uint32_t dim = 0;    // Elements of one head's row.
  bool has_token_axis = true;
  std::vector<std::string>
      value_transforms;  // "rope:interleaved", "rope:halves", "hadamard:64"; order of application.
  friend bool operator==(const Component&, const Component&) = default;
};

// Layers whose states have one shape. All components of a group have the same number of heads: a box cuts
// them alike.
struct LayerGroup {
  std::vector<std::uint32_t> layers;  // Global layer indices, ascending.
  AttentionKind attention = AttentionKind::kFull;
  std::uint32_t window = 0;  // Tokens; 0 unless sliding.
  std::vector<Component> components;
  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

}  // namespace isthmus::kv
