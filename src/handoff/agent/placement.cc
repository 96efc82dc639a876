// SPDX-License-Identifier: Apache-2.0
// Check, copy where a peer could still write, place.
#include "handoff/agent/placement.h"

#include <algorithm>

namespace isthmus::handoff {

Status place_body(transform::Placer& placer, const ChunkBody& body, const kv::Binding& target,
                  std::span<Digest128> stored, device::HostBuffer& copy) {
  std::span<const std::byte> bytes = body.received.bytes;
  if (body.received.view != nullptr && !placer.exact()) {
    if (copy.bytes().size() < bytes.size()) {
      ISTHMUS_TRY(copy, device::HostBuffer::allocate(bytes.size()));
    }
    std::copy(bytes.begin(), bytes.end(), copy.bytes().begin());
    bytes = copy.bytes().first(bytes.size());
  }
  return placer.place(body.chunk, bytes, body.tiles, target, stored);
}

}  // namespace isthmus::handoff
