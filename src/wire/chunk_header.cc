// SPDX-License-Identifier: Apache-2.0
// Offsets of the chunk header are those of spec/handoff.md, "Chunk header".
#include "wire/chunk_header.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/check.h"
#include "wire/byte_writer.h"

namespace isthmus::wire {
namespace {

constexpr std::size_t kChecksumOffset = kChunkFixedBytes - 8;

Error malformed(std::string detail) {
  return {Code::kMalformed, "chunk header: " + std::move(detail)};
}

// What a header may say, before it is sent and after it has come.
Status check_header(const ChunkHeader& header, std::uint64_t tile_count, Code code) {
  const auto refuse = [code](std::string detail) {
    return Error{code, "chunk header: " + std::move(detail)};
  };
  if (header.codec > Codec::kZstdPlanes)
    return refuse(fmt::format("codec {} is unknown", static_cast<std::uint32_t>(header.codec)));
  if (header.codec != Codec::kNone && (header.stored_bytes == 0 || header.stored_bytes >= header.raw_bytes)) {
    return refuse(fmt::format("stored {} bytes of raw {} with a codec, which makes fewer",
                              header.stored_bytes, header.raw_bytes));
  }
  if (header.codec == Codec::kNone && header.raw_bytes != header.stored_bytes) {
    return refuse(
        fmt::format("stored {} bytes != raw {} without a codec", header.stored_bytes, header.raw_bytes));
  }
  if (header.address.attempt == 0 || header.address.attempt > kAttemptMax)
    return refuse(fmt::format("attempt {} is out of range", header.address.attempt));
  if (header.box.empty()) return refuse("its box is empty");
  if (tile_count > kChunkTilesMax)
    return refuse(fmt::format("{} tile digests, at most {} are allowed", tile_count, kChunkTilesMax));
  return ok_status();
}

void write_fixed(ByteWriter& writer, const ChunkHeader& header, std::uint64_t tiles_checksum) {
  writer.number(kChunkMagic);
  writer.number(kChunkVersion);
  writer.number(static_cast<std::uint16_t>(kChunkFixedBytes));
  writer.id(header.address.handoff.consumer);
  writer.number(header.address.handoff.sequence);
  writer.number(header.address.attempt);
  writer.number(header.address.generation);
  writer.digest(header.plan);
  writer.number(header.index);
  writer.number(header.slot);
  writer.number(header.group);
  writer.number(header.box.layer_begin);
  writer.number(header.box.layer_end);
  writer.number(header.box.head_begin);
  writer.number(header.box.head_end);
  writer.number(static_cast<std::uint32_t>(header.codec));
  writer.number(header.box.tokens.begin);
  writer.number(header.box.tokens.end);
  writer.number(header.raw_bytes);
  writer.number(header.stored_bytes);
  writer.number(header.body_checksum);
  writer.number(static_cast<std::uint32_t>(header.tiles.size()));
  writer.number(std::uint32_t{0});  // Flags: none yet; not zero is refused.
  writer.number(tiles_checksum);
  writer.number(std::uint64_t{0});  // Room.
}

// Header without digests; `tile_count` and `tiles_checksum` apart.
struct Fixed {
  ChunkHeader header;
  std::uint32_t tile_count = 0, flags = 0;
  std::uint64_t tiles_checksum = 0, room = 0;
};

Fixed read_fixed(ByteReader reader) {
  Fixed fixed;
  ChunkHeader& header = fixed.header;
  header.address.handoff.consumer = reader.id();
  header.address.handoff.sequence = reader.number<std::uint64_t>();
  header.address.attempt = reader.number<std::uint32_t>();
  header.address.generation = reader.number<std::uint32_t>();
  header.plan = reader.digest();
  header.index = reader.number<std::uint32_t>();
  header.slot = reader.number<std::uint32_t>();
  header.group = reader.number<std::uint32_t>();
  header.box.layer_begin = reader.number<std::uint32_t>();
  header.box.layer_end = reader.number<std::uint32_t>();
  header.box.head_begin = reader.number<std::uint32_t>();
  header.box.head_end = reader.number<std::uint32_t>();
  header.codec = static_cast<Codec>(reader.number<std::uint32_t>());
  header.box.tokens.begin = reader.number<std::uint64_t>();
  header.box.tokens.end = reader.number<std::uint64_t>();
  header.raw_bytes = reader.number<std::uint64_t>();
  header.stored_bytes = reader.number<std::uint64_t>();
  header.body_checksum = reader.number<std::uint64_t>();
  fixed.tile_count = reader.number<std::uint32_t>();
  fixed.flags = reader.number<std::uint32_t>();
  fixed.tiles_checksum = reader.number<std::uint64_t>();
  fixed.room = reader.number<std::uint64_t>();
  return fixed;
}

}  // namespace

Result<std::vector<std::byte>> encode_chunk_header(const ChunkHeader& header) {
  ISTHMUS_TRY(check_header(header, header.tiles.size(), Code::kInvalidArgument));
  ByteWriter tiles;
  for (const Digest128& tile : header.tiles) tiles.digest(tile);
  ByteWriter writer;
  write_fixed(writer, header, digest64(tiles.bytes()));
  ISTHMUS_CHECK(writer.bytes().size() == kChecksumOffset);
  writer.number(digest64(writer.bytes()));
  writer.raw(tiles.bytes());
  return writer.take();
}

Result<ChunkHeader> decode_chunk_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kChunkFixedBytes) {
    return malformed(
        fmt::format("{} bytes are fewer than the fixed part's {}", bytes.size(), kChunkFixedBytes));
  }
  const auto stated = load_le<std::uint64_t>(bytes.subspan(kChecksumOffset));
  const std::uint64_t computed = digest64(bytes.first(kChecksumOffset));
  if (stated != computed)
    return malformed(fmt::format("checksum {:016x} != computed {:016x}", stated, computed));
  ByteReader reader(bytes.first(kChecksumOffset));
  const auto magic = reader.number<std::uint32_t>();
  if (magic != kChunkMagic) return malformed(fmt::format("magic {:08x} != {:08x}", magic, kChunkMagic));
  const auto version = reader.number<std::uint16_t>();
  const auto fixed_bytes = reader.number<std::uint16_t>();
  if (version != kChunkVersion || fixed_bytes != kChunkFixedBytes) {
    return malformed(fmt::format("version {} with {} fixed bytes isn't version {} with {}", version,
                                 fixed_bytes, kChunkVersion, kChunkFixedBytes));
  }
  Fixed fixed = read_fixed(reader);
  if (fixed.flags != 0 || fixed.room != 0)
    return malformed(fmt::format("flags {:#x} are unknown", fixed.flags));
  ISTHMUS_TRY(check_header(fixed.header, fixed.tile_count, Code::kMalformed));
  const auto tiles = bytes.subspan(kChunkFixedBytes);
  if (tiles.size() != std::size_t{fixed.tile_count} * kTileDigestBytes) {
    return malformed(fmt::format("{} bytes follow the fixed part, {} digests take {}", tiles.size(),
                                 fixed.tile_count, std::size_t{fixed.tile_count} * kTileDigestBytes));
  }
  if (digest64(tiles) != fixed.tiles_checksum) return malformed("the tile digests' checksum differs");
  ByteReader digests(tiles);
  fixed.header.tiles.reserve(fixed.tile_count);
  for (std::uint32_t i = 0; i < fixed.tile_count; ++i) fixed.header.tiles.push_back(digests.digest());
  return std::move(fixed.header);
}

Status equal_geometry(const ChunkHeader& header, const ChunkGeometry& planned) {
  const auto differs = [&](std::string_view field, std::uint64_t seen, std::uint64_t wanted) -> Status {
    if (seen == wanted) return ok_status();
    return malformed(fmt::format("chunk {}: {} {} isn't the plan's {}", header.index, field, seen, wanted));
  };
  if (header.codec != Codec::kNone && !planned.may_have_codec)
    return malformed(fmt::format("chunk {}: codec {} wasn't agreed on", header.index,
                                 static_cast<std::uint32_t>(header.codec)));
  ISTHMUS_TRY(differs("group", header.group, planned.group));
  ISTHMUS_TRY(differs("first layer", header.box.layer_begin, planned.box.layer_begin));
  ISTHMUS_TRY(differs("layer end", header.box.layer_end, planned.box.layer_end));
  ISTHMUS_TRY(differs("first head", header.box.head_begin, planned.box.head_begin));
  ISTHMUS_TRY(differs("head end", header.box.head_end, planned.box.head_end));
  ISTHMUS_TRY(differs("first token", header.box.tokens.begin, planned.box.tokens.begin));
  ISTHMUS_TRY(differs("token end", header.box.tokens.end, planned.box.tokens.end));
  ISTHMUS_TRY(differs("raw bytes", header.raw_bytes, planned.body_bytes));
  return differs("tile digests", header.tiles.size(), planned.tile_count);
}

}  // namespace isthmus::wire
