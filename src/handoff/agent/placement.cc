// SPDX-License-Identifier: Apache-2.0
// Check, copy where a peer could still write, place.
#include "handoff/agent/placement.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::handoff {

Status place_body(transform::Placer& placer, const transform::Chunk& chunk, const transport::Received& body,
                  std::uint64_t checksum, std::span<const Digest128> tiles, const kv::Binding& target,
                  std::span<Digest128> stored, device::HostBuffer& copy) {
  std::span<const std::byte> bytes = body.bytes;
  if (body.view != nullptr && !placer.exact()) {
    if (copy.bytes().size() < bytes.size()) {
      ISTHMUS_TRY(copy, device::HostBuffer::allocate(bytes.size()));
    }
    std::copy(bytes.begin(), bytes.end(), copy.bytes().begin());
    bytes = copy.bytes().first(bytes.size());
  }
  if (digest64(bytes) != checksum)
    return Error{Code::kCorrupt, fmt::format("chunk {}: body checksum differs", chunk.index)};
  return placer.place(chunk, bytes, tiles, target, stored);
}

}  // namespace isthmus::handoff
