// SPDX-License-Identifier: Apache-2.0
// Byte layout: spec/kvs.md.
#include "kvs/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "wire/byte_writer.h"
#include "wire/chunk_header.h"
#include "wire/descriptor_codec.h"

namespace isthmus::kvs {
namespace {

// As the file states them; compared, never used for a size.
struct Stated {
  bool is_compressed = false;
  Digest128 plan;
  std::uint32_t chunks = 0;
};

Error malformed(std::string why) {
  return Error{Code::kMalformed, "kvs file: " + std::move(why)};
}

Result<std::uint32_t> manifest_length(std::span<const std::byte> head, std::uint64_t size) {
  wire::ByteReader reader(head);
  if (const auto magic = reader.number<std::uint64_t>(); magic != kMagic)
    return malformed(fmt::format("magic {:016x} != {:016x}", magic, kMagic));
  if (const auto version = reader.number<std::uint32_t>(); version != kVersion) {
    return Error{Code::kUnsupported,
                 fmt::format("kvs file: version {}; this side reads {}", version, kVersion)};
  }
  const auto length = reader.number<std::uint32_t>();
  if (length > kManifestBytesMax || length > size - kHeadBytes) {
    return malformed(
        fmt::format("manifest length {} in a file of {} bytes; at most {}", length, size, kManifestBytesMax));
  }
  return length;
}

Status read_fields(std::span<const std::byte> bytes, Manifest& manifest, Stated& stated) {
  wire::ByteReader reader(bytes);
  manifest.tokens.begin = reader.number<std::uint64_t>();
  manifest.tokens.end = reader.number<std::uint64_t>();
  const auto flags = reader.number<std::uint32_t>();
  const Digest128 chain = reader.digest();
  stated.plan = reader.digest();
  stated.chunks = reader.number<std::uint32_t>();
  manifest.note = reader.text(kNoteBytesMax);
  const auto length = reader.number<std::uint32_t>();
  if (!reader.ok()) return malformed("manifest: it ends within its fields, or the note is too long");
  if ((flags & ~(kHasChain | kIsCompressed)) != 0)
    return malformed(fmt::format("manifest: flags {:#x} are unknown", flags));
  const bool has_chain = (flags & kHasChain) != 0;
  if (!has_chain && chain != Digest128{}) return malformed("manifest: a token chain that its flag denies");
  if (has_chain) manifest.chain = chain;
  stated.is_compressed = (flags & kIsCompressed) != 0;
  const bool is_printable =
      std::all_of(manifest.note.begin(), manifest.note.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  if (!is_printable) return malformed("manifest: note: a character that isn't printable");
  if (length != reader.left()) {
    return malformed(
        fmt::format("manifest: descriptor length {} where {} bytes are left", length, reader.left()));
  }
  auto descriptor = wire::decode_descriptor(bytes.last(length));
  if (!descriptor.ok()) return descriptor.status().with_context("kvs file: manifest");
  manifest.descriptor = *std::move(descriptor);
  return ok_status();
}

}  // namespace

Result<Reader> Reader::open(ReadExactly read, std::uint64_t size) {
  if (size < kHeadBytes + kEndBytes)
    return malformed(fmt::format("{} bytes are fewer than head and end record", size));
  std::array<std::byte, kHeadBytes> head{};
  ISTHMUS_TRY(read(head));
  ISTHMUS_TRY(const std::uint32_t length, manifest_length(head, size));
  std::vector<std::byte> bytes(length);
  ISTHMUS_TRY(read(bytes));
  const auto checksum = load_le<std::uint64_t>(std::span<const std::byte>(head).last(8));
  if (checksum != digest64(bytes)) return malformed("manifest: its checksum differs");
  Reader reader;
  Stated stated;
  ISTHMUS_TRY(read_fields(bytes, reader.manifest_, stated));
  auto plan = plan_of(reader.manifest_);
  if (!plan.ok()) return plan.status().with_context("kvs file: manifest");
  reader.plan_ = *std::move(plan);
  if (stated.chunks != reader.plan_->chunk_count()) {
    return malformed(
        fmt::format("manifest: {} chunks where its plan has {}", stated.chunks, reader.plan_->chunk_count()));
  }
  if (stated.plan != reader.plan_->digest()) {
    return malformed(fmt::format("manifest: plan digest {} where descriptor and tokens give {}",
                                 stated.plan.hex(), reader.plan_->digest().hex()));
  }
  // Compressed chunks only make it smaller, but each has its header still.
  const std::uint64_t most = file_bytes(*reader.plan_, kHeadBytes + length);
  const std::uint64_t least = stated.is_compressed ? most - reader.plan_->total_bytes() : most;
  if (size > most || size < least) {
    return malformed(fmt::format("size {} where the manifest's plan takes {} bytes", size, most));
  }
  reader.read_ = std::move(read);
  reader.left_ = size - kHeadBytes - length;
  reader.body_.resize(reader.plan_->body_bytes_max());
  if (stated.is_compressed) {
    reader.stored_.resize(reader.plan_->body_bytes_max());
    reader.decoder_.emplace();
  }
  return reader;
}

Result<ReadChunk> Reader::next() {
  if (next_ >= plan_->chunk_count()) return Error{Code::kInvalidArgument, "kvs file: no chunk is left"};
  const transform::Chunk chunk = plan_->chunk(next_);
  header_.resize(wire::kChunkFixedBytes + chunk.tile_count() * wire::kTileDigestBytes);
  ISTHMUS_TRY(read_(header_));
  auto header = wire::decode_chunk_header(header_);
  if (!header.ok()) return header.status().with_context(fmt::format("kvs file: chunk {}", chunk.index));
  if (header->index != chunk.index || header->plan != plan_->digest()) {
    return malformed(fmt::format("chunk {}: its header is of chunk {} of plan {}", chunk.index, header->index,
                                 header->plan.hex()));
  }
  ISTHMUS_TRY(wire::equal_geometry(
      *header, {chunk.group, chunk.box, chunk.body_bytes, chunk.tile_count(), is_compressed()}));
  ISTHMUS_TRY(read_body(chunk, *header));
  left_ -= header_.size() + header->stored_bytes;
  tiles_ = std::move(header->tiles);
  ISTHMUS_TRY(check_body(chunk));
  for (std::size_t i = 0; i < tiles_.size(); ++i) root_.add(plan_->tile_key(chunk, i), tiles_[i]);
  ++next_;
  return ReadChunk{chunk, std::span(body_).first(chunk.body_bytes), tiles_};
}

// Raw, into body_. The header is the plan's, so no length is above the body's.
Status Reader::read_body(const transform::Chunk& chunk, const wire::ChunkHeader& header) {
  const std::span<std::byte> body = std::span(body_).first(chunk.body_bytes);
  if (header.codec == wire::Codec::kNone) return read_(body);
  const std::span<std::byte> stored = std::span(stored_).first(header.stored_bytes);
  ISTHMUS_TRY(read_(stored));
  if (digest64(stored) != header.body_checksum)
    return Error{Code::kCorrupt, fmt::format("kvs file: chunk {}: its body's checksum differs", chunk.index)};
  codec::plane_arrays(chunk, arrays_);
  return decoder_->decode(stored, arrays_, body).with_context(fmt::format("kvs file: chunk {}", chunk.index));
}

Status Reader::check_body(const transform::Chunk& chunk) const {
  const std::span<const std::byte> body = std::span(body_).first(chunk.body_bytes);
  const std::uint64_t heads = chunk.box.head_end - chunk.box.head_begin;
  for (std::size_t s = 0; s < chunk.sections.size(); ++s) {
    const transform::Section& section = chunk.sections[s];
    for (std::uint64_t h = 0; h < heads; ++h) {
      const auto tile = body.subspan(section.offset + h * section.head_bytes, section.head_bytes);
      if (digest128(tile) == tiles_[s * heads + h]) continue;
      return Error{Code::kCorrupt, fmt::format("kvs file: chunk {}, {}: its digest differs", chunk.index,
                                               plan_->tile_text(chunk, s * heads + h))};
    }
    const std::uint64_t end = section.offset + section.bytes;
    const std::uint64_t next =
        s + 1 < chunk.sections.size() ? chunk.sections[s + 1].offset : chunk.body_bytes;
    const auto pad = body.subspan(end, next - end);
    if (std::any_of(pad.begin(), pad.end(), [](std::byte byte) { return byte != std::byte{0}; })) {
      return Error{Code::kCorrupt, fmt::format("kvs file: chunk {}: the bytes behind section {} aren't zero",
                                               chunk.index, s)};
    }
  }
  return ok_status();
}

Result<Digest128> Reader::finish() {
  if (next_ != plan_->chunk_count())
    return Error{Code::kInvalidArgument,
                 fmt::format("kvs file: {} of {} chunks were read", next_, plan_->chunk_count())};
  std::array<std::byte, kEndBytes> bytes{};
  if (left_ != kEndBytes)
    return malformed(fmt::format("end record: {} bytes are left where it has {}", left_, kEndBytes));
  ISTHMUS_TRY(read_(bytes));
  wire::ByteReader reader(bytes);
  if (const auto magic = reader.number<std::uint32_t>(); magic != kEndMagic)
    return malformed(fmt::format("end record: magic {:08x} != {:08x}", magic, kEndMagic));
  if (const auto chunks = reader.number<std::uint32_t>(); chunks != next_)
    return malformed(fmt::format("end record: {} chunks, {} were read", chunks, next_));
  const Digest128 root = reader.digest();
  if (reader.number<std::uint64_t>() != digest64(std::span<const std::byte>(bytes).first(kEndBytes - 8)))
    return malformed("end record: its checksum differs");
  const Digest128 seen = root_.root();
  if (seen == root) return root;
  return Error{Code::kCorrupt,
               fmt::format("kvs file: end record: root {} where the tiles give {}", root.hex(), seen.hex())};
}

}  // namespace isthmus::kvs
