// SPDX-License-Identifier: Apache-2.0
// What the bytes of a KV state mean, without addresses. Long-lived, one per engine configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/format.h"
#include "kv/geometry.h"
#include "kv/layout.h"

namespace isthmus::kv {

inline constexpr std::uint32_t kSchemaMajor = 1;
inline constexpr std::uint32_t kSchemaMinor = 1;  // The newest that this code writes.

// Bounds of a descriptor that a peer may send; each is checked by validate().
inline constexpr std::size_t kGroupsMax = 64;
inline constexpr std::size_t kLayersMax = 4096;   // Of one group; global indices are below it too.
inline constexpr std::size_t kComponentsMax = 8;  // Of one group.
inline constexpr std::size_t kTransformsMax = 8;  // Of one component.
inline constexpr std::size_t kAdaptersMax = 64;
inline constexpr std::size_t kBoxesMax = 1024;         // Of the partition.
inline constexpr std::size_t kTextMax = 255;           // Bytes of a name, digest, recipe.
inline constexpr std::size_t kStaticScalesMax = 8192;  // Of one component.
inline constexpr std::uint32_t kHeadsMax = 1U << 16;
inline constexpr std::uint32_t kDimMax = 1U << 16;
inline constexpr std::uint32_t kBlockTokensMax = 1U << 16;
inline constexpr std::uint32_t kReplicasMax = 1024;  // Of one kind.
inline constexpr std::uint64_t kPositionMax = std::uint64_t{1} << 40;

struct Adapter {
  std::string name;
  std::string digest;
  friend bool operator==(const Adapter&, const Adapter&) = default;
};

// Invariants: may never be transformed.
struct Identity {
  std::string architecture;   // "llama"
  std::string lineage;        // Digest of the base checkpoint; sha256 of the GGUF file here.
  std::string config_digest;  // Layers, heads, dims, norms, window pattern.
  std::string tokenizer_digest;
  std::vector<Adapter> adapters;  // Ordered; empty means none.
  // Position.
  std::string position_scheme;  // "rope"
  double rope_theta = 0;
  std::string rope_scaling;  // "none" or the scaling's digest.
  bool key_after_rotation = true;
  std::uint64_t first_position = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

enum class DecodeOperation : std::uint8_t {
  kPlain,               // x = q
  kScaled,              // x = q · s
  kScaledZeroPoint,     // x = (q − z) · s, z stored beside s
  kScaledConstantZero,  // x = (q − c) · s, c the same for all codes
  kStaticScaled,        // x = q · c, c of the descriptor: nothing is stored beside the codes
};
// True if scales are stored beside the codes, hence part of the layout and of what crosses.
constexpr bool has_stored_scale(DecodeOperation operation) {
  return operation != DecodeOperation::kPlain && operation != DecodeOperation::kStaticScaled;
}

// Exactly which number each stored code means.
struct DecodeForm {
  std::string component;  // "k", "v"
  Format codes = Format::kF16;
  DecodeOperation operation = DecodeOperation::kPlain;
  Format scale = Format::kF32;      // Meaningful unless kPlain.
  Format zero = Format::kF32;       // Meaningful for kScaledZeroPoint.
  std::uint32_t zero_constant = 0;  // c of kScaledConstantZero, a code; 0 for all others.
  std::uint32_t granule_dim = 0;    // Elements of a row that share a stored scale; 0 without one.
  std::uint32_t granule_tokens = 1;
  bool high_nibble_first = false;  // 4-bit codes: even element in the high nibble, as the layout's ~dim%2.
  std::string recipe;              // How codes were made; recorded, not compared: "openvino.u8.by_token".
  // Of kStaticScaled: one for the group, or one a layer, or one a layer and global head, layers outermost; in
  // the shortest of these ways.
  std::vector<float> static_scales = {};
  // Everything that `text()` says, hence all but `recipe`.
  bool same_form(const DecodeForm& other) const;
  // "k codes=f16 op=q", "k codes=u8 op=(q-z)*s scale=f32 zero=f32 granule=dim:64,tok:1"; " nibble=high" after
  // the codes when high_nibble_first; "(q-8)*s" for a constant zero point of 8; "q*c static=2:9f86…" with
  // count and digest of static scales.
  std::string text() const;
  friend bool operator==(const DecodeForm&, const DecodeForm&) = default;
};

// Which box of a layer group lives on which rank. Pipeline, tensor and context parallelism are ranges of
// layers, heads and tokens; copies of one box are told apart by typed replica numbers.
struct RankBox {
  std::uint32_t rank = 0;
  std::uint32_t group = 0;
  std::uint32_t layer_begin = 0, layer_end = 0;  // Within the group's list.
  std::uint32_t head_begin = 0, head_end = 0;
  // More ranks than KV heads: each of the copies is needed by its rank.
  std::uint32_t gqa_replica = 0;
  // Tensor-parallel ranks of a state without heads: each of the copies is needed by its rank.
  std::uint32_t mla_replica = 0;
  // Data-parallel ranks serve other sequences: a state is on the ranks of one of these numbers only.
  std::uint32_t data_replica = 0;
  // Positions p with token_begin <= p (or p mod token_period, unless that is 0) < token_end; a token_end of 0
  // without a period is no end.
  std::uint64_t token_begin = 0, token_end = 0, token_period = 0;

  bool has_all_tokens() const { return token_begin == 0 && token_end == 0 && token_period == 0; }
  bool has_token(std::uint64_t position) const;
  // How many of the box's positions are below `position`: the number of one that it has. All four functions
  // are for a valid box and positions up to kPositionMax.
  std::uint64_t tokens_below(std::uint64_t position) const;
  // The position of that number.
  std::uint64_t token_at(std::uint64_t number) const;
  // The next position after this one at which a run of the box's positions begins or ends; kPositionMax if
  // there is none.
  std::uint64_t token_bound_after(std::uint64_t position) const;
  bool is_replicated() const { return gqa_replica != 0 || mla_replica != 0 || data_replica != 0; }
  // "layers=0..4 heads=0..3 replica=0"; "replica=gqa:1,data:2", and "tokens=16..32%64" behind it where there
  // is something to say.
  std::string text() const;
  friend bool operator==(const RankBox&, const RankBox&) = default;
};

struct GroupRepresentation {
  std::string layout_text;         // The notation, as the catalogue has it.
  std::uint32_t block_tokens = 0;  // Tokens a block; 0 for rows.
  std::vector<DecodeForm> forms;   // One a component, in the group's component order.
  friend bool operator==(const GroupRepresentation&, const GroupRepresentation&) = default;
};

// name=value lines, sorted; floats as bit patterns. The text that is digested, compared and printed as a
// diff.
using CanonicalLines = std::vector<std::pair<std::string, std::string>>;

struct Descriptor {
  std::uint32_t schema_major = kSchemaMajor;
  std::uint32_t schema_minor = 0;  // The lowest that has all its fields: see minimum_minor().
  Identity identity;
  std::string weights_recipe;  // "gguf-q4_1"; not an invariant.
  std::string weights_digest;
  std::vector<LayerGroup> groups;
  std::vector<GroupRepresentation> representation;  // Parallel to groups.
  std::vector<RankBox> partition;

  // Everything checked: bounds, known names, forms for each component, layouts that parse and agree with the
  // forms, partition that covers each group exactly once a replica. Safe on whatever a peer sent. Errors,
  // each naming the path: invalid_argument (contradictory or out of bounds), unsupported (a format, transform
  // or scheme not known), incompatible (schema major).
  Status validate() const;
  // The lowest schema minor that has every field that is in use.
  std::uint32_t minimum_minor() const;
  // The parsed layout of one group for one rank's local extents. The notation's parameters are D (elements of
  // a row, if all components have the same) and B (block_tokens, unless 0). Rows of a state without a token
  // axis are states. not_found if the rank holds
  // nothing of the group.
  Result<Layout> layout(std::uint32_t group, std::uint32_t rank) const;
  CanonicalLines canonical_lines() const;
  std::string canonical_text() const;  // "path = value\n" lines.
  Digest128 digest() const;            // XXH3-128 of canonical_text().
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};

// Lines that differ: path, value in a ("" if absent), value in b.
struct Difference {
  std::string path, a, b;
};
std::vector<Difference> diff(const Descriptor& a, const Descriptor& b);

// Bytes that one token adds, all groups, layers, heads and parts; padding of layouts isn't counted.
double bytes_per_token(const std::vector<LayerGroup>& groups,
                       const std::vector<std::vector<DecodeForm>>& forms);

// Chain digest over token ids: deterministic, independent of process, equal for equal prefixes. state' =
// XXH3-128 of 20 bytes: state low half, state high half, token, each little-endian; the state of no tokens is
// 0.
class TokenChain {
 public:
  TokenChain() = default;
  explicit TokenChain(std::span<const std::int32_t> tokens);
  // One that was told.
  TokenChain(Digest128 digest, std::uint64_t size) : state_(digest), size_(size) {}
  void append(std::int32_t token);
  Digest128 digest() const { return state_; }
  std::uint64_t size() const { return size_; }

 private:
  Digest128 state_{};
  std::uint64_t size_ = 0;
};

}  // namespace isthmus::kv
