// SPDX-License-Identifier: Apache-2.0
// One rank's memory seen as chunks: checks a binding, then reads and writes tiles through the descriptor's
// layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "transform/part_address.h"
#include "transform/plan.h"

namespace isthmus::transform {

struct TileView;

// One component as one end stores it.
struct ComponentStorage {
  kv::WireComponent numbers;
  std::uint32_t dim = 0;
  std::vector<FormPart> parts;
  std::size_t first_part = 0;  // Index of parts[0] among the group's parts.
};

class ChunkAccess {
 public:
  // A group that the rank doesn't store has no components, and none of its chunks can be bound.
  // Errors: not_found (the rank stores nothing), unsupported (several boxes of one group on the
  // rank, or as PartAddress::make), invalid_argument (as PartAddress::make, or a layout that doesn't parse).
  static Result<ChunkAccess> make(const Plan& plan, const kv::Descriptor& descriptor, std::uint32_t rank);

  const std::vector<ComponentStorage>& components(std::uint32_t group) const {
    return groups_[group].components;
  }

  // Everything that gather() and scatter() of this chunk will touch lies inside the bound memory, or this
  // fails. Errors: invalid_argument naming the rank, block, row or region. Allocates nothing on success.
  Status bind(const Chunk& chunk, const kv::Binding& binding);
  // One head's tile of one part. The chunk is the one bound last; layer and head are as in its box; `part` is
  // an index among the group's parts.
  void gather(std::uint32_t layer, std::size_t part, std::uint32_t head, std::byte* canonical);
  void scatter(std::uint32_t layer, std::size_t part, std::uint32_t head, const std::byte* canonical);
  // True if each token's row of each of the component's parts is whole bytes in a row.
  bool has_whole_rows(std::uint32_t group, const ComponentStorage& component) const;
  // Appends the memory of such a tile in the order of its canonical bytes; neighbours are joined.
  void add_runs(std::uint32_t layer, std::size_t part, std::uint32_t head,
                std::vector<std::span<std::byte>>& runs);

 private:
  struct Group {
    kv::RankBox box;
    bool has_token_axis = true;
    std::uint32_t block_tokens = 0;
    std::vector<ComponentStorage> components;
    std::vector<PartAddress> parts;
    std::uint32_t granule_tokens = 1;  // The largest of the parts; all others divide it.
    std::vector<std::uint64_t>
        tabulated;  // Open extent of each part's tables; kStale if they are of another chunk.
  };
  struct Place {
    std::byte* base = nullptr;
    std::uint64_t open_extent = 0;
  };

  static Result<Group> make_group(const kv::Descriptor& descriptor, std::uint32_t group, std::uint32_t rank);
  Status check_chunk(const Chunk& chunk, const kv::Binding& binding) const;
  Status place_tokens(const Group& group, const Chunk& chunk, const kv::Binding& binding);
  Status place_in_blocks(const Group& group, std::uint64_t first, std::uint64_t count,
                         const kv::Binding& binding);
  Status check_distinct_blocks();
  Status bind_part(Group& group, std::size_t part, std::uint32_t layer, const kv::Binding& binding);
  Status check_tokens(const PartAddress& part, const kv::RegionMemory& memory) const;
  TokenPlaces places() const;
  void tabulate(Group& group, std::size_t part, std::uint64_t open_extent);
  TileView view(std::uint32_t layer, std::size_t part, std::uint32_t head);

  std::vector<Group> groups_;
  // Of the chunk bound last.
  std::uint32_t group_ = 0;
  kv::Box box_;
  std::vector<std::uint32_t> blocks_, slots_, sorted_blocks_;
  std::vector<std::uint64_t> rows_;
  std::uint64_t token_count_ = 0, last_entry_ = 0;
  std::uint32_t rank_ = 0;
  std::vector<Place> places_;  // [layer of the chunk][part].
};

}  // namespace isthmus::transform
