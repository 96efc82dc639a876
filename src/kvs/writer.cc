// SPDX-License-Identifier: Apache-2.0
// Byte layout: spec/kvs.md.
#include "kvs/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/negotiate.h"
#include "wire/byte_writer.h"
#include "wire/chunk_header.h"
#include "wire/descriptor_codec.h"

namespace isthmus::kvs {

Result<std::shared_ptr<const transform::Plan>> plan_of(const Manifest& manifest) {
  ISTHMUS_TRY(manifest.descriptor.validate());
  const kv::Verdict verdict = kv::negotiate(manifest.descriptor, manifest.descriptor, {});
  ISTHMUS_TRY(transform::Plan plan,
              transform::Plan::make(manifest.descriptor, manifest.descriptor, verdict, manifest.tokens));
  return std::make_shared<const transform::Plan>(std::move(plan));
}

std::uint64_t file_bytes(const transform::Plan& plan, std::uint64_t head) {
  std::uint64_t bytes = head + kEndBytes;
  for (const transform::Chunk& chunk : plan.chunks())
    bytes += wire::kChunkFixedBytes + chunk.tile_count() * wire::kTileDigestBytes + chunk.body_bytes;
  return bytes;
}

Result<Writer> Writer::make(WriteAll write, const Manifest& manifest, Compression compression) {
  const bool is_printable =
      std::all_of(manifest.note.begin(), manifest.note.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  if (!is_printable || manifest.note.size() > kNoteBytesMax) {
    return Error{Code::kInvalidArgument, fmt::format("note: {} bytes; at most {} printable ones",
                                                     manifest.note.size(), kNoteBytesMax)};
  }
  Writer writer;
  ISTHMUS_TRY(writer.plan_, plan_of(manifest));
  ISTHMUS_TRY(const std::vector<std::byte> descriptor, wire::encode_descriptor(manifest.descriptor));
  wire::ByteWriter body;
  body.number(manifest.tokens.begin);
  body.number(manifest.tokens.end);
  body.number((manifest.chain.has_value() ? kHasChain : 0) |
              (compression == Compression::kZstd ? kIsCompressed : 0));
  body.digest(manifest.chain.value_or(Digest128{}));
  body.digest(writer.plan_->digest());
  body.number(writer.plan_->chunk_count());
  body.text(manifest.note);
  body.number(static_cast<std::uint32_t>(descriptor.size()));
  body.raw(descriptor);
  if (body.bytes().size() > kManifestBytesMax) {
    return Error{Code::kExhausted,
                 fmt::format("manifest of {} bytes; at most {}", body.bytes().size(), kManifestBytesMax)};
  }
  wire::ByteWriter head;
  head.number(kMagic);
  head.number(kVersion);
  head.number(static_cast<std::uint32_t>(body.bytes().size()));
  head.number(digest64(body.bytes()));
  ISTHMUS_TRY(write(head.bytes()));
  ISTHMUS_TRY(write(body.bytes()));
  writer.write_ = std::move(write);
  if (compression == Compression::kZstd) writer.encoder_.emplace();
  return writer;
}

Status Writer::add(const transform::Chunk& chunk, std::span<const std::byte> body,
                   std::span<const Digest128> tiles) {
  ISTHMUS_TRY(plan_->check_chunk(chunk));
  if (chunk.index != next_ || body.size() != chunk.body_bytes || tiles.size() != chunk.tile_count()) {
    return Error{Code::kInvalidArgument, fmt::format("chunk {} with {} bytes and {} tiles isn't chunk {}",
                                                     chunk.index, body.size(), tiles.size(), next_)};
  }
  wire::ChunkHeader header;
  header.address.attempt = 1;
  header.plan = plan_->digest();
  header.index = chunk.index;
  header.group = chunk.group;
  header.box = chunk.box;
  header.raw_bytes = header.stored_bytes = chunk.body_bytes;
  if (encoder_) {
    codec::plane_arrays(chunk, arrays_);
    if (const auto stored = encoder_->encode(body, arrays_)) {
      body = *stored;
      header.codec = wire::Codec::kZstdPlanes;
      header.stored_bytes = body.size();
      header.body_checksum = digest64(body);
    }
  }
  header.tiles.assign(tiles.begin(), tiles.end());
  ISTHMUS_TRY(const std::vector<std::byte> bytes, wire::encode_chunk_header(header));
  ISTHMUS_TRY(write_(bytes));
  ISTHMUS_TRY(write_(body));
  for (std::size_t i = 0; i < tiles.size(); ++i) root_.add(plan_->tile_key(chunk, i), tiles[i]);
  ++next_;
  return ok_status();
}

Result<Digest128> Writer::finish() {
  if (next_ != plan_->chunk_count()) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{} of {} chunks were written", next_, plan_->chunk_count())};
  }
  wire::ByteWriter end;
  end.number(kEndMagic);
  end.number(next_);
  const Digest128 root = root_.root();
  end.digest(root);
  end.number(digest64(end.bytes()));
  ISTHMUS_TRY(write_(end.bytes()));
  return root;
}

}  // namespace isthmus::kvs
