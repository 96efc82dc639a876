// SPDX-License-Identifier: Apache-2.0
// Reads a .kvs file from whoever made it: nothing is believed before it is compared, nothing is sized by a
// length that the file's own size doesn't bear out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "codec/zstd_planes.h"
#include "kvs/manifest.h"
#include "wire/chunk_header.h"

namespace isthmus::kvs {

// Fills the whole span with the next bytes, or fails.
using ReadExactly = std::function<Status(std::span<std::byte>)>;

// One chunk; both spans last until the next call.
struct ReadChunk {
  transform::Chunk chunk;
  std::span<const std::byte> body;
  std::span<const Digest128> tiles;
};

class Reader {
 public:
  // Reads the head. `size` is the file's. Errors, each naming the field: malformed (magic, lengths, checksum,
  // a descriptor or digest that doesn't fit, a file of another size than the manifest gives), unsupported
  // (version), and those of plan_of.
  static Result<Reader> open(ReadExactly read, std::uint64_t size);

  const Manifest& manifest() const { return manifest_; }
  const std::shared_ptr<const transform::Plan>& plan() const { return plan_; }
  bool is_compressed() const { return decoder_.has_value(); }
  std::uint32_t next_index() const { return next_; }  // chunk_count() when all are read.

  // The next chunk, its header equal to the plan's and each tile to its digest. Errors: malformed (header, or
  // what a codec stored), corrupt (naming the tile, or bytes between sections that aren't zero),
  // invalid_argument (none is left).
  Result<ReadChunk> next();
  // After the last chunk: the end record. corrupt if its root isn't that of the tiles read. Returns the root.
  Result<Digest128> finish();

 private:
  Status read_body(const transform::Chunk& chunk, const wire::ChunkHeader& header);
  Status check_body(const transform::Chunk& chunk) const;

  ReadExactly read_;
  Manifest manifest_;
  std::shared_ptr<const transform::Plan> plan_;
  std::uint32_t next_ = 0;
  transform::TileRoot root_;
  std::vector<std::byte> header_, body_, stored_;
  std::uint64_t left_ = 0;                           // Bytes of the file that weren't read.
  std::optional<codec::ZstdPlanesDecoder> decoder_;  // Of a file whose chunks may be compressed.
  std::vector<codec::PlaneArray> arrays_;
  std::vector<Digest128> tiles_;
};

}  // namespace isthmus::kvs
