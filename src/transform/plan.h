// SPDX-License-Identifier: Apache-2.0
// What crosses, in which chunks: a product of cut lists that is proven to cover before anything moves. No
// list of chunks is kept; each is computed when asked for.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "transform/members.h"
#include "transform/product.h"

namespace isthmus::transform {

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
  std::uint32_t layer = 0;      // From the chunk's first layer.
  std::uint32_t component = 0;  // Index within the group's components.
  std::string part;             // "k", "k.s", "k.z", …
  kv::Format format = kv::Format::kF16;
  std::uint32_t units = 0;       // Elements per (head, token group): dim for codes, dim/granule for scales.
  std::uint64_t offset = 0;      // Bytes from the body's start; a multiple of kSectionAlign.
  std::uint64_t head_bytes = 0;  // Bytes of one head's tile: token groups * units * bits / 8.
  std::uint64_t bytes = 0;       // heads * head_bytes; the pad up to the next section is zero.
  friend bool operator==(const Section&, const Section&) = default;
};

// A view of one chunk of a plan, which must outlive it.
struct Chunk {
  std::uint32_t index = 0;
  std::uint32_t group = 0;
  kv::Box box;                        // Inside one token tile.
  std::span<const Section> sections;  // By layer, component, part (codes, scale, zero); the plan's.
  std::uint64_t body_bytes = 0;
  // What the chunk has of box.tokens, first and last among them: all of them in one run, unless ranks deal
  // out positions. Runs ascend and count from box.tokens.begin; the plan's.
  std::span<const kv::TokenRange> runs;
  std::uint64_t token_count = 0;
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

// The last position not above `position` that begins a token group of every scale of both ends: from there a
// consumer asks that has the tokens below `position`, and what it had of the group is written anew.
std::uint64_t whole_groups_from(const kv::Descriptor& source, const kv::Descriptor& target,
                                std::uint64_t position);

// Both ends build a plan from the same inputs and compare digests. Address-free; immutable.
class Plan {
 public:
  // `tokens`: the range that moves. Errors: incompatible (verdict is a reject), invalid_argument (empty
  // range, one that begins inside a token group of either end's scales: whole_groups_from(), or the proof
  // fails), exhausted (more than kChunksMax chunks). `digests` from a caller who has them spares most of a
  // small plan's time.
  static Result<Plan> make(const kv::Descriptor& source, const kv::Descriptor& target,
                           const kv::Verdict& verdict, kv::TokenRange tokens,
                           const std::optional<EndDigests>& digests = std::nullopt);
  // One member of a handoff between ranks: what `route` moves of such a plan, which may be nothing. Between
  // ends of one rank each it is the whole plan. invalid_argument too if an end hasn't got the rank.
  static Result<Plan> make_member(const kv::Descriptor& source, const kv::Descriptor& target,
                                  const kv::Verdict& verdict, kv::TokenRange tokens, const Route& route,
                                  const std::optional<EndDigests>& digests = std::nullopt);
  // The routes that move something, ascending: whose members together are the whole state on each rank.
  // Errors: as make().
  static Result<std::vector<Route>> members(const kv::Descriptor& source, const kv::Descriptor& target,
                                            const kv::Verdict& verdict, kv::TokenRange tokens);

  const kv::WireForm& wire() const { return wire_; }
  kv::TokenRange tokens() const { return tokens_; }
  const Product& product() const { return product_; }
  std::uint32_t chunk_count() const { return chunk_count_; }
  // Computed: a few comparisons and a division or two. `index` is below chunk_count().
  Chunk chunk(std::uint32_t index) const;
  // chunk(0), chunk(1), …, each made when it is looked at.
  auto chunks() const {
    return std::views::iota(std::uint32_t{0}, chunk_count_) |
           std::views::transform([this](std::uint32_t index) { return chunk(index); });
  }
  std::uint64_t total_bytes() const { return total_bytes_; }        // Sum of the chunks' bodies.
  std::uint64_t body_bytes_max() const { return body_bytes_max_; }  // The largest: size of a staging slot.
  std::uint32_t chunk_layers_max(std::uint32_t group) const;        // Layers of the group's largest chunk.
  // Chunks wholly below `watermark` (absolute position): those that may move when P has published up to it.
  // Chunks are ordered by token tile, so these are the first ones.
  std::uint32_t chunks_below(std::uint64_t watermark) const;
  Digest128 digest() const { return digest_; }
  // Key of the tile digest number `i` of a chunk.
  TileKey tile_key(const Chunk& chunk, std::uint64_t i) const;
  // The same for people: "group 0, layer 7, part k, head 2, tokens [256, 300)".
  std::string tile_text(const Chunk& chunk, std::uint64_t i) const;
  // invalid_argument unless `chunk` equals the plan's chunk of that index.
  Status check_chunk(const Chunk& chunk) const;

 private:
  // The sections of a chunk of some heads and tokens; one of fewer layers has the first of them.
  struct Sections {
    std::uint32_t group = 0, heads = 0, layers = 0;
    std::uint64_t tokens = 0, layer_bytes = 0;
    std::uint32_t parts = 0;  // Of one layer.
    std::vector<Section> list;
  };
  // Tokens of a group that a tile has together.
  struct Tokens {
    std::uint64_t first = 0, count = 0;  // The first counts from the group's first in the tile.
    std::uint64_t end = 0;               // Of the last run, counted likewise.
    std::vector<kv::TokenRange> runs;    // Counted from the first.
    bool is_tile = true;                 // All that the group has there.
  };
  // One layer piece and head piece of such tokens, cut into runs of layers or, below one, of heads.
  struct Piece {
    std::uint32_t group = 0;
    std::uint32_t tokens = 0;  // Index into tokens_of_pieces_.
    std::uint32_t layer_begin = 0, layer_end = 0, head_begin = 0, head_end = 0;
    std::uint32_t layers = 0, heads = 0;  // Of a chunk; the last ones have what is left.
    std::uint32_t head_chunks = 0;
    std::uint32_t first_chunk = 0;      // Within the tile.
    std::uint32_t whole = 0, rest = 0;  // Indices into sections_, of `heads` heads and of the last ones.
  };
  // Tiles in which each group has as many tokens, cut by the same pattern, are cut alike.
  struct TileClass {
    std::vector<std::uint64_t> tokens;    // By group; 0 for one that has none there.
    std::vector<std::uint32_t> patterns;  // By group; 0 for one that isn't cut.
    std::vector<Piece> pieces;
    std::uint32_t chunks = 0;
    std::uint64_t bytes = 0;
  };
  struct Tile {
    kv::TokenRange tokens;
    std::uint32_t first_chunk = 0, tile_class = 0;
  };
  friend class PlanBuilder;

  kv::WireForm wire_;
  kv::TokenRange tokens_;
  Product product_;
  std::vector<Sections> sections_;
  std::vector<Tokens> tokens_of_pieces_;
  std::vector<TileClass> classes_;
  std::vector<Tile> tiles_;
  std::vector<std::vector<std::uint32_t>> group_layers_;
  std::uint32_t chunk_count_ = 0;
  std::uint64_t total_bytes_ = 0, body_bytes_max_ = 0;
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
