// SPDX-License-Identifier: Apache-2.0
// Layout's answers: parts, canonical text, sizes and the plain offset formula.
#include "kv/layout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "kv/layout_build.h"
#include "kv/layout_text.h"

namespace isthmus::kv {
namespace {

std::uint64_t index_of(const ElementIndex& index, Axis axis) {
  switch (axis) {
    case Axis::kLayer:
      return index.layer;
    case Axis::kBlock:
      return index.block;
    case Axis::kSlot:
      return index.slot;
    case Axis::kToken:
      return index.token;
    case Axis::kHead:
      return index.head;
    case Axis::kDim:
      return index.dim;
  }
  return 0;
}

}  // namespace

std::string_view name(Axis axis) {
  constexpr std::array<std::string_view, 6> kNames{"layer", "blk", "slot", "tok", "head", "dim"};
  return kNames.at(static_cast<std::size_t>(axis));
}

Result<Layout> Layout::parse(std::string_view text, const LayoutExtents& extents) {
  ISTHMUS_TRY(const LayoutText parsed, parse_layout_text(text, extents.parameters));
  ISTHMUS_TRY(BuiltLayout built, build_layout(parsed.regions, extents));
  Layout layout;
  layout.source_text_ = std::string(text);
  layout.extents_ = extents;
  layout.regions_ = std::move(built.regions);
  layout.parts_ = std::move(built.parts);
  return layout;
}

Result<const PartLayout*> Layout::part(std::string_view name) const {
  std::string known;
  for (const PartLayout& part : parts_) {
    if (part.part == name) return &part;
    known += fmt::format("{}{}", known.empty() ? "" : " ", part.part);
  }
  return Error{Code::kInvalidArgument, fmt::format("the layout has no part \"{}\"; it has {}", name, known)};
}

const RegionLayout& Layout::region(std::string_view name) const {
  const auto found = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const RegionLayout& region) { return region.name == name; });
  ISTHMUS_CHECK(found != regions_.end());
  return *found;
}

std::string PartLayout::text() const {
  std::string out = fmt::format("{} {} region={} start={}", part, name(format), region, start_bits);
  for (const Digit& digit : digits) {
    out += fmt::format(" {}/{}", name(digit.axis), digit.div);
    if (digit.mod != 0) out += fmt::format("%{}", digit.mod);
    out += fmt::format(":{}{}", digit.stride_bits, digit.open ? ".open" : "");
  }
  return out;
}

std::string Layout::canonical_text() const {
  std::string out;
  for (const PartLayout& part : parts_) out += part.text() + "\n";
  return out;
}

std::uint64_t Layout::region_bytes(std::string_view region_name, std::uint64_t open_extent) const {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t bits = region(region_name).open_size_bits;
  // Saturates: a caller that compares it with a memory's size then refuses.
  if (open_extent != 0 && bits > kMax / open_extent) return kMax;
  const std::uint64_t total = bits * open_extent;
  return total / 8 + (total % 8 == 0 ? 0 : 1);
}

std::uint64_t bit_offset(const PartLayout& part, const ElementIndex& index, std::uint64_t open_extent) {
  auto offset = static_cast<std::int64_t>(part.start_bits);
  for (const Digit& digit : part.digits) {
    std::uint64_t value = index_of(index, digit.axis) / digit.div;
    if (digit.mod != 0) value %= digit.mod;
    const auto step = static_cast<std::int64_t>(value) * digit.stride_bits;
    offset += digit.open ? step * static_cast<std::int64_t>(open_extent) : step;
  }
  return static_cast<std::uint64_t>(offset);
}

}  // namespace isthmus::kv
