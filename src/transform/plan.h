// SPDX-License-Identifier: Apache-2.0
// What crosses, in which chunks: product boxes cut at fixed places, proven to cover before anything moves.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"

namespace isthmus::transform {

// Tiles are anchored at absolute positions, so that both ends cut alike whatever range moves.
inline constexpr std::uint64_t kTileTokens = 256;
// Consecutive layers merge into one chunk, and heads part, up to this many body bytes: a body that was packed
// or received is still in the second-level cache when it is sent or placed. One chunk holds at least one head
// of one layer.
inline constexpr std::uint64_t kChunkBytesMax = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kSectionAlign = 64;
// Bounds of one plan: beyond them, make() answers exhausted or invalid_argument instead of allocating.
inline constexpr std::uint32_t kChunksMax = 1u << 18;
inline constexpr std::uint64_t kPositionMax = std::uint64_t{1} << 40;

// One array of a chunk's body: one layer, one part, `[head][token group][unit]`, contiguous. A group is one
// token, or as many as share a scale.
struct Section {
  std::uint32_t layer = 0;      // Index within the group's list.
  std::uint32_t component = 0;  // Index within the group's components.
  std::string part;             // "k", "k.s", "k.z", …
  kv::Format format = kv::Format::kF16;
  std::uint32_t units = 0;       // Elements per (head, token group): dim for codes, dim/granule for scales.
  std::uint64_t offset = 0;      // Bytes from the body's start; a multiple of kSectionAlign.
  std::uint64_t head_bytes = 0;  // Bytes of one head's tile: token groups * units * bits / 8.
  std::uint64_t bytes = 0;       // heads * head_bytes; the pad up to the next section is zero.
  friend bool operator==(const Section&, const Section&) = default;
};

struct Chunk {
  std::uint32_t index = 0;
  std::uint32_t group = 0;
  kv::Box box;                    // Inside one token tile.
  std::vector<Section> sections;  // By layer, component, part (codes, scale, zero).
  std::uint64_t body_bytes = 0;
  // One tile digest per (section, head), in that order.
  std::uint64_t tile_count() const;
};

// Identifies one tile digest; keys sort in the order of the fields.
struct TileKey {
  std::uint32_t group = 0;
  std::uint32_t layer = 0;  // Global layer index.
  std::string part;
  std::uint32_t head = 0;  // Global head.
  kv::TokenRange tokens;
  friend auto operator<=>(const TileKey&, const TileKey&) = default;
};

// Of a plan's descriptors.
struct EndDigests {
  Digest128 source, target;
};

// Both ends build a plan from the same inputs and compare digests. Address-free; shared and immutable.
class Plan {
 public:
  // `tokens`: the range that moves. Errors: incompatible (verdict is a reject), invalid_argument (empty
  // range, one that begins inside a token group of either end's scales, or the proof fails), unsupported (a
  // group that isn't full attention), exhausted (more than kChunksMax chunks). `digests` from a caller who
  // has them spares most of a small plan's time.
  static Result<Plan> make(const kv::Descriptor& source, const kv::Descriptor& target,
                           const kv::Verdict& verdict, kv::TokenRange tokens,
                           const std::optional<EndDigests>& digests = std::nullopt);

  const kv::WireForm& wire() const { return wire_; }
  kv::TokenRange tokens() const { return tokens_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::uint64_t total_bytes() const;     // Sum of the chunks' bodies.
  std::uint64_t body_bytes_max() const;  // The largest body: the size of a staging slot.
  // Chunks wholly below `watermark` (absolute position): those that may move when P has published up to it.
  // Chunks are ordered by token tile, so this is a prefix of chunks().
  std::uint32_t chunks_below(std::uint64_t watermark) const;
  Digest128 digest() const { return digest_; }
  // Key of the tile digest number `i` of a chunk.
  TileKey tile_key(const Chunk& chunk, std::uint64_t i) const;
  // The same for people: "group 0, layer 7, part k, head 2, tokens [256, 300)".
  std::string tile_text(const Chunk& chunk, std::uint64_t i) const;
  // invalid_argument unless `chunk` equals the plan's chunk of that index.
  Status check_chunk(const Chunk& chunk) const;

  // Each wanted (group, layer, head, token) is covered exactly once by chunks inside one source rank and one
  // target rank; the error names the offending box. make() has called it; public so that it can be tested to
  // fail. Errors: invalid_argument.
  static Status prove(const std::vector<Chunk>& chunks, const kv::Descriptor& source,
                      const kv::Descriptor& target, kv::TokenRange tokens);

 private:
  kv::WireForm wire_;
  kv::TokenRange tokens_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<std::uint32_t>> group_layers_;
  Digest128 digest_;
};

// XXH3-128 over the key-sorted list of (key, digest): independent of layout, block size, chunking.
class TileRoot {
 public:
  void add(const TileKey& key, Digest128 digest);
  Digest128 root() const;

 private:
  std::vector<std::pair<TileKey, Digest128>> tiles_;
};

}  // namespace isthmus::transform
