// SPDX-License-Identifier: Apache-2.0
// The header before each chunk's body on a data channel: fixed little-endian struct, tile digests after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/geometry.h"
#include "wire/frames.h"

namespace isthmus::wire {

inline constexpr std::uint32_t kChunkMagic = 0x43485349;  // "ISHC" read as bytes.
inline constexpr std::uint16_t kChunkVersion = 1;
inline constexpr std::size_t kChunkFixedBytes = 160;
inline constexpr std::size_t kTileDigestBytes = 16;
inline constexpr std::uint32_t kChunkTilesMax =
    65536;  // 128 layers × 128 heads × 4 arrays: 1 MiB of digests.

struct ChunkHeader {
  Address address;
  Digest128 plan;
  std::uint32_t index = 0;  // Within the plan.
  std::uint32_t slot = 0;   // The consumer's staging slot.
  std::uint32_t group = 0;
  kv::Box box;
  Codec codec = Codec::kNone;
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;   // Of the payload that follows: raw_bytes, fewer with a codec.
  std::uint64_t body_checksum = 0;  // XXH3-64 of the payload with a codec; tile digests cover a plain body.
  std::vector<Digest128> tiles;     // One a (section, head), in the plan's order.
  friend bool operator==(const ChunkHeader&, const ChunkHeader&) = default;
};

// What the plan says of a chunk.
struct ChunkGeometry {
  std::uint32_t group = 0;
  kv::Box box;
  std::uint64_t body_bytes = 0;
  std::uint64_t tile_count = 0;
  bool may_have_codec = false;
};

// invalid_argument for what decode_chunk_header() would refuse: an attempt out of range, an empty box, more
// than kChunkTilesMax digests.
Result<std::vector<std::byte>> encode_chunk_header(const ChunkHeader& header);

// The checksum is checked before any field is read: malformed otherwise, naming the field at fault. The
// result holds at most as many digests as `bytes` has room for.
Result<ChunkHeader> decode_chunk_header(std::span<const std::byte> bytes);

// malformed, naming the first value that isn't the plan's. Nothing may be sized from a header before this.
Status equal_geometry(const ChunkHeader& header, const ChunkGeometry& planned);

}  // namespace isthmus::wire
