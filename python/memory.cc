// SPDX-License-Identifier: Apache-2.0
// Binding arrays to a layout's regions.
#include "memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "failure.h"

namespace isthmus::python {

Memory::Memory(const kv::Descriptor& descriptor, std::uint32_t rank) : descriptor_(descriptor) {
  const bool is_known =
      std::ranges::any_of(descriptor.partition, [&](const kv::RankBox& box) { return box.rank == rank; });
  if (!is_known) fail({Code::kNotFound, fmt::format("no rank {} in the descriptor's partition", rank)});
  memory_.rank = rank;
  memory_.groups.resize(descriptor.groups.size());
}

void Memory::bind(std::uint32_t group, const std::map<std::pair<std::string, std::uint32_t>, Array>& arrays,
                  std::uint64_t extent, Placement placement) {
  if (group >= descriptor_.groups.size())
    fail({Code::kInvalidArgument, fmt::format("group {} of {}", group, descriptor_.groups.size())});
  const kv::Layout layout = unwrap(descriptor_.layout(group, memory_.rank));
  kv::Binding binding;
  std::vector<Array> kept;
  std::size_t used = 0;
  for (const kv::RegionLayout& region : layout.regions()) {
    const std::uint32_t layers = region.per_layer ? layout.extents().layers : 1;
    const std::uint64_t bytes = layout.region_bytes(region.name, extent);
    for (std::uint32_t layer = 0; layer < layers; ++layer, ++used) {
      const auto at = arrays.find({region.name, layer});
      if (at == arrays.end())
        fail({Code::kInvalidArgument, fmt::format("no array for region {}, layer {}", region.name, layer)});
      const Array& array = at->second;
      if (array.nbytes() != bytes) {
        fail({Code::kInvalidArgument,
              fmt::format("region {}, layer {}: {} bytes for an extent of {}, the array has {}", region.name,
                          layer, bytes, extent, array.nbytes())});
      }
      binding.memory.push_back({region.name, layer, static_cast<std::byte*>(array.data()), bytes, extent});
      kept.push_back(array);
    }
  }
  if (used != arrays.size())
    fail({Code::kInvalidArgument, fmt::format("{} arrays for {} regions and layers", arrays.size(), used)});
  binding.blocks = std::move(placement.blocks);
  binding.first_row = placement.first_row;
  binding.first_position = placement.first_position;
  binding.valid = placement.valid;
  memory_.groups[group] = std::move(binding);
  kept_[group] = std::move(kept);
}

}  // namespace isthmus::python
