// SPDX-License-Identifier: Apache-2.0
// Element access.
#include "support/state_view.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace isthmus::support {

StateView::StateView(const kv::Descriptor& descriptor, const kv::Binding& binding)
    : layers_(static_cast<std::uint32_t>(descriptor.groups.at(0).layers.size())),
      heads_(descriptor.groups.at(0).components.at(0).heads),
      dim_(descriptor.groups.at(0).components.at(0).dim),
      layout_(*descriptor.layout(0, 0)),
      binding_(binding) {}

bool StateView::has(const std::string& part) const {
  const auto& parts = layout_.parts();
  return std::any_of(parts.begin(), parts.end(), [&](const auto& each) { return each.part == part; });
}

std::size_t StateView::bytes(const std::string& part) const {
  return kv::bits((*layout_.part(part))->format) / 8;
}

StateView::Place StateView::place(const std::string& part, std::uint32_t layer) const {
  const kv::PartLayout* where = *layout_.part(part);
  const auto memory =
      std::find_if(binding_.memory.begin(), binding_.memory.end(), [&](const kv::RegionMemory& region) {
        return region.region == where->region && region.layer == layer;
      });
  ISTHMUS_CHECK(memory != binding_.memory.end());
  return {where, &*memory};
}

std::byte* StateView::element(const Place& place, std::uint32_t layer, std::uint64_t position,
                              std::uint32_t head, std::uint32_t dim) const {
  const std::uint64_t offset = position - binding_.first_position;
  const std::uint64_t block_tokens = std::max(1u, layout_.extents().block_tokens);
  const kv::ElementIndex index{
      .layer = layer,
      .block = binding_.blocks.empty() ? 0 : binding_.blocks.at(offset / block_tokens),
      .slot = offset % block_tokens,
      .token = binding_.first_row + offset,
      .head = head,
      .dim = dim};
  return place.memory->base + kv::bit_offset(*place.part, index, place.memory->open_extent) / 8;
}

std::vector<float> StateView::read_row(const std::string& component, std::uint32_t layer,
                                       std::uint64_t position, std::uint32_t head) const {
  std::vector<float> row(dim_);
  const kv::Format format = (*layout_.part(component))->format;
  float scale = 1, zero = 0;
  if (has(component + ".s")) std::memcpy(&scale, at(component + ".s", layer, position, head, 0), 4);
  if (has(component + ".z")) std::memcpy(&zero, at(component + ".z", layer, position, head, 0), 4);
  const Place where = place(component, layer);
  for (std::uint32_t d = 0; d < dim_; ++d) {
    const std::byte* from = element(where, layer, position, head, d);
    if (format == kv::Format::kF32) {
      std::memcpy(&row[d], from, 4);
    } else if (format == kv::Format::kF16) {
      _Float16 half = 0;
      std::memcpy(&half, from, 2);
      row[d] = static_cast<float>(half);
    } else {
      ISTHMUS_CHECK(format == kv::Format::kU8);
      row[d] = (static_cast<float>(std::to_integer<int>(*from)) - zero) * scale;
    }
  }
  return row;
}

void StateView::write_row(const std::string& component, std::uint32_t layer, std::uint64_t position,
                          std::uint32_t head, const std::vector<float>& row) const {
  const kv::Format format = (*layout_.part(component))->format;
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  const float scale = *high == *low ? 1e-4f : (*high - *low) / 255;
  const float zero = -*low / scale;
  if (has(component + ".s")) std::memcpy(at(component + ".s", layer, position, head, 0), &scale, 4);
  if (has(component + ".z")) std::memcpy(at(component + ".z", layer, position, head, 0), &zero, 4);
  const Place where = place(component, layer);
  for (std::uint32_t d = 0; d < dim_; ++d) {
    std::byte* to = element(where, layer, position, head, d);
    if (format == kv::Format::kF32) {
      std::memcpy(to, &row[d], 4);
    } else if (format == kv::Format::kF16) {
      const auto half = static_cast<_Float16>(row[d]);
      std::memcpy(to, &half, 2);
    } else {
      *to = static_cast<std::byte>(std::clamp(std::nearbyintf(row[d] / scale + zero), 0.0f, 255.0f));
    }
  }
}

}  // namespace isthmus::support
