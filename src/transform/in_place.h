// SPDX-License-Identifier: Apache-2.0
// A plan's chunks as they lie in one end's memory: bodies that need no packing and no placing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "transform/chunk_access.h"
#include "transform/plan.h"

namespace isthmus::transform {

// Memory that holds a body's bytes in their order.
using BodyRuns = std::vector<std::span<std::byte>>;

// One end's view of a plan: sends a body from its source, receives one into its target, and reads it there.
// Thread: one at a time.
class InPlace {
 public:
  // Errors: those of ChunkAccess::make.
  static Result<InPlace> make(std::shared_ptr<const Plan> plan, const kv::Descriptor& descriptor,
                              std::uint32_t rank = 0);

  // True, and `runs` are the chunk's body, if this end stores the wire's numbers as they cross, in runs long
  // enough to be moved one by one; else false, and `runs` are unspecified. `pads` (kSectionAlign bytes, which
  // outlive the runs) stands for the bytes between sections. Errors: as ChunkAccess::bind.
  Result<bool> runs(const Chunk& chunk, const kv::Binding& binding, std::span<std::byte> pads,
                    BodyRuns& runs);
  // Tile digests of what the memory holds now; of a chunk that has runs. Errors: as ChunkAccess::bind.
  Status digest(const Chunk& chunk, const kv::Binding& binding, std::span<Digest128> tiles);
  // Reads such a chunk back. corrupt, naming the first tile that differs from `tiles`.
  Status verify(const Chunk& chunk, const kv::Binding& binding, std::span<const Digest128> tiles);

 private:
  struct Group {
    bool is_stored_as_it_crosses = false;
    std::vector<std::size_t> first_part;  // By component.
  };
  InPlace(std::shared_ptr<const Plan> plan, ChunkAccess access)
      : plan_(std::move(plan)), access_(std::move(access)) {}
  // Index among the group's parts of what a section holds.
  std::size_t part_of(const Chunk& chunk, std::size_t section) const;
  // Calls each(tile, digest) until it answers an error.
  template <typename Each>
  Status for_each_digest(const Chunk& chunk, const kv::Binding& binding, Each each);

  std::shared_ptr<const Plan> plan_;
  ChunkAccess access_;
  std::vector<Group> groups_;
  BodyRuns tile_;
  DigestStream stream_;
};

}  // namespace isthmus::transform
