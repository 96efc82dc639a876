// SPDX-License-Identifier: Apache-2.0
// Writes a .kvs file in one pass.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "codec/zstd_planes.h"
#include "kvs/manifest.h"

namespace isthmus::kvs {

using WriteAll = std::function<Status(std::span<const std::byte>)>;

class Writer {
 public:
  // Writes the head. Errors: those of plan_of, invalid_argument (a note that isn't printable or too long).
  static Result<Writer> make(WriteAll write, const Manifest& manifest,
                             Compression compression = Compression::kNone);
  const std::shared_ptr<const transform::Plan>& plan() const { return plan_; }

  // The plan's chunks in order, as Packer makes them. invalid_argument for another one.
  Status add(const transform::Chunk& chunk, std::span<const std::byte> body,
             std::span<const Digest128> tiles);
  // After the last chunk; returns the root. invalid_argument if chunks are missing.
  Result<Digest128> finish();

 private:
  WriteAll write_;
  std::shared_ptr<const transform::Plan> plan_;
  std::uint32_t next_ = 0;
  transform::TileRoot root_;
  std::optional<codec::ZstdPlanesEncoder> encoder_;
  std::vector<codec::PlaneArray> arrays_;
};

}  // namespace isthmus::kvs
