// SPDX-License-Identifier: Apache-2.0
// See compression.h.
#include "handoff/agent/compression.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/digest.h"

namespace isthmus::handoff {

StoredBody Compression::shrink(const transform::Chunk& chunk, std::span<std::byte> body) {
  codec::plane_arrays(chunk, arrays_);
  if (!encoder_) encoder_.emplace();
  const auto stored = encoder_->encode(body, arrays_);
  if (!stored) return {wire::Codec::kNone, body.size(), 0};
  std::copy(stored->begin(), stored->end(), body.begin());
  return {wire::Codec::kZstdPlanes, stored->size(), digest64(*stored)};
}

Result<std::span<const std::byte>> Compression::restore(const transform::Chunk& chunk,
                                                        const wire::ChunkHeader& header,
                                                        std::span<const std::byte> stored) {
  const std::uint64_t checksum = digest64(stored);
  if (checksum != header.body_checksum) {
    return Error{Code::kCorrupt, fmt::format("the stored body has checksum {:016x}, its header says {:016x}",
                                             checksum, header.body_checksum)};
  }
  if (body_.bytes().size() < chunk.body_bytes) {
    ISTHMUS_TRY(body_, device::HostBuffer::allocate(chunk.body_bytes));
  }
  codec::plane_arrays(chunk, arrays_);
  const std::span<std::byte> body = body_.bytes().first(chunk.body_bytes);
  if (!decoder_) decoder_.emplace();
  ISTHMUS_TRY(decoder_->decode(stored, arrays_, body));
  return std::span<const std::byte>(body);
}

}  // namespace isthmus::handoff
