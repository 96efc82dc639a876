// SPDX-License-Identifier: Apache-2.0
// One received chunk body into the destination, whoever owns the memory that it lies in.
#pragma once

#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/status.h"
#include "device/host/buffer.h"
#include "kv/binding.h"
#include "transform/plan.h"
#include "transform/program.h"
#include "transport/api/transport.h"

namespace isthmus::handoff {

// A chunk's body with what its header says of it.
struct ChunkBody {
  const transform::Chunk& chunk;
  const transport::Received& received;
  std::span<const Digest128> tiles;
};

// Checks where that is due, and places; errors as Placer::place().
// A peer may change a view at any time. Where the target restores the wire's bits exactly, the later
// read-back against the tile digests decides, whatever was read here. Where it doesn't, what was checked must
// be what is converted: such a view is first copied to `copy`, which is made or grown as needed and stays in
// cache.
Status place_body(transform::Placer& placer, const ChunkBody& body, const kv::Binding& target,
                  std::span<Digest128> stored, device::HostBuffer& copy);

}  // namespace isthmus::handoff
