// SPDX-License-Identifier: Apache-2.0
// Bodies of chunks under a codec (spec/wire-form.md §11): made smaller behind the packer, made whole before
// the placer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "codec/zstd_planes.h"
#include "device/host/buffer.h"
#include "transform/plan.h"
#include "wire/chunk_header.h"

namespace isthmus::handoff {

// A body as it crosses.
struct StoredBody {
  wire::Codec codec = wire::Codec::kNone;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // 0 without a codec.
};

// One an agent, for its mover, which runs one job at a time: memory grows to the largest body met and stays.
class Compression {
 public:
  // What a body becomes in its place: its first bytes, or all as they are where no fewer would do.
  StoredBody shrink(const transform::Chunk& chunk, std::span<std::byte> body);

  // The body that `header`, which is of this chunk by the plan, says was stored so; valid until the next
  // call. `stored` is memory that no peer can change. Errors: corrupt (another checksum), malformed (it isn't
  // one frame of exactly the plan's body), exhausted.
  Result<std::span<const std::byte>> restore(const transform::Chunk& chunk, const wire::ChunkHeader& header,
                                             std::span<const std::byte> stored);

 private:
  // Made when the first body needs them: most agents never do.
  std::optional<codec::ZstdPlanesEncoder> encoder_;
  std::optional<codec::ZstdPlanesDecoder> decoder_;
  std::vector<codec::PlaneArray> arrays_;
  device::HostBuffer body_;
};

}  // namespace isthmus::handoff
