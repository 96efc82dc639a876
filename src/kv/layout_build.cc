// SPDX-License-Identifier: Apache-2.0
// Sizes and strides from the inside out, then each part's digits in normal form, proven to tile every axis.
#include "kv/layout_build.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

namespace isthmus::kv {
namespace {

// No region or stride is larger; keeps every sum and product below in 64 bits.
constexpr std::uint64_t kBitsMax = std::uint64_t{1} << 56;

constexpr std::array<Axis, 4> kClosedAxes{Axis::kLayer, Axis::kSlot, Axis::kHead, Axis::kDim};

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

Error invalid(std::string detail) {
  return {Code::kInvalidArgument, "layout: " + std::move(detail)};
}

bool is_open(TextAxis axis) {
  return axis == TextAxis::kBlock || axis == TextAxis::kToken;
}

// A digit as written; `hd` isn't split yet.
struct RawDigit {
  TextAxis axis = TextAxis::kDim;
  std::uint64_t div = 1;
  std::uint64_t mod = 0;
  std::int64_t stride_bits = 0;
  bool open = false;
};

struct PlacedLeaf {
  Leaf leaf;
  std::uint64_t start_bits = 0;
  std::vector<RawDigit> digits;
};

struct Placed {
  std::uint64_t bits = 0;  // A coefficient of the open extent once the open axis has been crossed.
  bool open = false;
  std::vector<PlacedLeaf> leaves;
};

class RegionBuilder {
 public:
  RegionBuilder(const RegionText& text, const LayoutExtents& extents) : text_(text), extents_(extents) {
    region_.name = text.name;
    region_.per_layer = text.per_layer;
  }

  Result<Placed> build() {
    ISTHMUS_TRY(Placed placed, place(text_.node, false));
    if (!placed.open) return invalid(fmt::format("region {}: neither blk nor tok is there", text_.name));
    region_.open_size_bits = placed.bits;
    // Outer factors of extent 1 don't count: the open axis is outermost if nothing multiplied its stride.
    if (placed.bits != region_.open_stride_bits) region_.open_stride_bits = 0;
    return placed;
  }
  const RegionLayout& region() const { return region_; }

 private:
  Result<Placed> place(const Node& node, bool in_group) {
    Placed placed;
    if (node.leaf) {
      placed.bits = bits(node.leaf->format);
      placed.leaves.push_back({.leaf = *node.leaf, .start_bits = 0, .digits = {}});
    } else {
      ISTHMUS_TRY(placed, place_group(node.members));
    }
    for (auto factor = node.factors.rbegin(); factor != node.factors.rend(); ++factor) {
      ISTHMUS_TRY(is_open(factor->axis) ? apply_open(*factor, in_group, placed) : apply(*factor, placed));
    }
    return placed;
  }

  Result<Placed> place_group(const std::vector<Member>& members) {
    Placed sum;
    for (const Member& member : members) {
      if (member.kind == MemberKind::kPad) {
        sum.bits += member.bytes * 8;
      } else if (member.kind == MemberKind::kAlign) {
        sum.bits = divide_up(sum.bits, member.bytes * 8) * member.bytes * 8;
      } else {
        ISTHMUS_TRY(Placed inner, place(member.node.front(), true));
        if (inner.bits % 8 != 0) {
          return invalid(fmt::format("region {}: the member that holds {} has {} bits, not whole bytes",
                                     text_.name, inner.leaves.front().leaf.part, inner.bits));
        }
        for (PlacedLeaf& leaf : inner.leaves) {
          leaf.start_bits += sum.bits;
          sum.leaves.push_back(std::move(leaf));
        }
        sum.bits += inner.bits;
      }
      if (sum.bits > kBitsMax) return too_large();
    }
    if (sum.leaves.empty()) return invalid(fmt::format("region {}: a group holds no part", text_.name));
    return sum;
  }

  Status apply(const Factor& factor, Placed& placed) const {
    ISTHMUS_TRY(const std::uint64_t stride, stride_of(factor, placed));
    ISTHMUS_TRY(const std::uint64_t extent, extent_of(factor, placed));
    if (stride > kBitsMax / extent) return too_large();
    if (factor.descending && placed.open) {
      return invalid(fmt::format("region {}: {} stands outside the open axis and can't count downwards",
                                 text_.name, factor.text()));
    }
    for (PlacedLeaf& leaf : placed.leaves) {
      const auto signed_stride = static_cast<std::int64_t>(stride);
      if (factor.descending) leaf.start_bits += (extent - 1) * stride;
      leaf.digits.push_back({.axis = factor.axis,
                             .div = factor.div,
                             .mod = extent,
                             .stride_bits = factor.descending ? -signed_stride : signed_stride,
                             .open = placed.open});
    }
    placed.bits = stride * extent;
    return {};
  }

  Status apply_open(const Factor& factor, bool in_group, Placed& placed) {
    const std::string where = fmt::format("region {}: open axis {}", text_.name, factor.text());
    if (in_group) return invalid(where + " stands inside a group");
    if (placed.open) return invalid(where + " is the second one");
    if (factor.descending || factor.div != 1 || factor.mod) {
      return invalid(where + " takes neither ~ nor / nor %: its extent isn't known here");
    }
    if (factor.axis == TextAxis::kBlock && extents_.block_tokens == 0) {
      return invalid(where + " needs a block size, and it is 0");
    }
    ISTHMUS_TRY(const std::uint64_t stride, stride_of(factor, placed));
    for (PlacedLeaf& leaf : placed.leaves) {
      leaf.digits.push_back({.axis = factor.axis, .stride_bits = static_cast<std::int64_t>(stride)});
    }
    region_.open_axis = factor.axis == TextAxis::kBlock ? Axis::kBlock : Axis::kToken;
    region_.open_stride_bits = stride;
    placed.bits = stride;
    placed.open = true;
    return {};
  }

  Result<std::uint64_t> stride_of(const Factor& factor, const Placed& placed) const {
    if (!factor.stride_bytes) return placed.bits;
    const std::uint64_t stride = *factor.stride_bytes * 8;
    if (placed.open) {
      return invalid(
          fmt::format("region {}: {} gives a stride across an open axis", text_.name, factor.text()));
    }
    if (stride < placed.bits) {
      return invalid(fmt::format("region {}: part {}, axis {}: {} is smaller than the {} bits that follow",
                                 text_.name, placed.leaves.front().leaf.part, name(factor.axis),
                                 factor.text(), placed.bits));
    }
    return stride;
  }

  // The factor's extent, which must be the same for every part behind it.
  Result<std::uint64_t> extent_of(const Factor& factor, const Placed& placed) const {
    std::uint64_t extent = 0;
    for (const PlacedLeaf& leaf : placed.leaves) {
      ISTHMUS_TRY(const std::uint64_t whole, axis_extent(factor, leaf.leaf));
      const std::uint64_t one = factor.mod ? *factor.mod : divide_up(whole, factor.div);
      if (extent != 0 && one != extent) {
        return invalid(fmt::format(
            "region {}: {} has extent {} for {} and {} for {}; write it inside the group", text_.name,
            factor.text(), extent, placed.leaves.front().leaf.part, one, leaf.leaf.part));
      }
      extent = one;
    }
    return extent;
  }

  Result<std::uint64_t> axis_extent(const Factor& factor, const Leaf& leaf) const {
    const auto found = extents_.components.find(leaf.component);
    if (found == extents_.components.end()) {
      return invalid(fmt::format("part {}: the layer group has no component {}", leaf.part, leaf.component));
    }
    const auto& component = found->second;
    switch (factor.axis) {
      case TextAxis::kLayer:
        if (!text_.per_layer) return extents_.layers;
        return invalid(
            fmt::format("region {}: it is per layer, and {} stands in it", text_.name, factor.text()));
      case TextAxis::kSlot:
        if (extents_.block_tokens != 0) return extents_.block_tokens;
        return invalid(
            fmt::format("region {}: {} needs a block size, and it is 0", text_.name, factor.text()));
      case TextAxis::kHead:
        return component.heads;
      case TextAxis::kHeadDim:
        return std::uint64_t{component.heads} * component.dim;
      default:
        return component.dim;
    }
  }

  Error too_large() const {
    return invalid(fmt::format("region {}: larger than {} bits", text_.name, kBitsMax));
  }

  const RegionText& text_;
  const LayoutExtents& extents_;
  RegionLayout region_;
};

Axis plain_axis(TextAxis axis) {
  constexpr std::array<Axis, 6> kPlain{Axis::kLayer, Axis::kBlock, Axis::kSlot,
                                       Axis::kToken, Axis::kHead,  Axis::kDim};
  return kPlain.at(static_cast<std::size_t>(axis));
}

// ⌊hd/n⌋ mod m as digits of head and dim, where n and D divide one way or the other.
Result<std::vector<Digit>> split_head_dim(const RawDigit& raw, std::uint64_t dim, const std::string& part) {
  if (raw.div % dim == 0) {
    return std::vector<Digit>{{Axis::kHead, raw.div / dim, raw.mod, raw.stride_bits, raw.open}};
  }
  const std::uint64_t units = dim / raw.div;  // Digits of one head's row.
  if (dim % raw.div == 0 && raw.mod % units == 0) {
    const auto head_stride = raw.stride_bits * static_cast<std::int64_t>(units);
    return std::vector<Digit>{{Axis::kHead, 1, raw.mod / units, head_stride, raw.open},
                              {Axis::kDim, raw.div, units, raw.stride_bits, raw.open}};
  }
  if (dim % raw.div == 0 && units % raw.mod == 0) {
    return std::vector<Digit>{{Axis::kDim, raw.div, raw.mod, raw.stride_bits, raw.open}};
  }
  return Error{Code::kUnsupported,
               fmt::format("layout: part {}, axis hd: hd/{}%{} crosses rows of {} elements unevenly", part,
                           raw.div, raw.mod, dim)};
}

class PartBuilder {
 public:
  PartBuilder(const PlacedLeaf& placed, const RegionLayout& region, const LayoutExtents& extents)
      : placed_(placed),
        region_(region),
        extents_(extents),
        component_(extents.components.at(placed.leaf.component)) {}

  Result<PartLayout> build() {
    part_.part = placed_.leaf.part;
    part_.format = placed_.leaf.format;
    part_.region = region_.name;
    part_.start_bits = placed_.start_bits;
    ISTHMUS_TRY(split());
    for (const Axis axis : kClosedAxes) ISTHMUS_TRY(check_axis(axis));
    merge();
    return part_;
  }

 private:
  Status split() {
    for (const RawDigit& raw : placed_.digits) {
      if (raw.axis == TextAxis::kHeadDim) {
        ISTHMUS_TRY(auto halves, split_head_dim(raw, component_.dim, part_.part));
        part_.digits.insert(part_.digits.end(), halves.begin(), halves.end());
      } else {
        part_.digits.push_back({plain_axis(raw.axis), raw.div, raw.mod, raw.stride_bits, raw.open});
      }
    }
    std::erase_if(part_.digits, [](const Digit& digit) { return digit.mod == 1; });
    std::sort(part_.digits.begin(), part_.digits.end(), [](const Digit& a, const Digit& b) {
      return std::pair(a.axis, a.div) < std::pair(b.axis, b.div);
    });
    return {};
  }

  std::uint64_t extent(Axis axis) const {
    switch (axis) {
      case Axis::kLayer:
        return region_.per_layer ? 1 : extents_.layers;
      case Axis::kSlot:
        return region_.open_axis == Axis::kBlock ? extents_.block_tokens : 1;
      case Axis::kHead:
        return component_.heads;
      default:
        return component_.dim;
    }
  }

  bool is_codes() const { return part_.part == placed_.leaf.component; }

  // Digits of `axis` must run without gap or overlap from the granule to the extent.
  Status check_axis(Axis axis) {
    const std::uint64_t whole = extent(axis);
    const std::string where = fmt::format("part {}, axis {}", part_.part, name(axis));
    std::uint64_t granule = 0, reached = 0, last = 1;
    for (const Digit& digit : part_.digits) {
      if (digit.axis != axis) continue;
      if (axis == Axis::kSlot && region_.open_axis == Axis::kToken) {
        return invalid(where + ": a region of rows has no slots");
      }
      if (granule == 0) {
        granule = reached = digit.div;
      } else if (digit.div != reached) {
        return invalid(
            fmt::format("{}: digits tile up to {}, then one starts at {}", where, reached, digit.div));
      }
      if (digit.mod > kBitsMax / digit.div) return invalid(where + ": the digits' product is too large");
      last = digit.div;
      reached = digit.div * digit.mod;
    }
    const bool has_granule = !is_codes() && axis != Axis::kLayer;
    if (granule == 0) granule = reached = has_granule ? whole : 1;
    if (granule != 1 && !has_granule) {
      return invalid(fmt::format("{}: digits start at {}, not 1", where, granule));
    }
    if (reached < whole) return invalid(fmt::format("{}: digits cover {} of {}", where, reached, whole));
    if (reached > whole && reached - last >= whole) {
      return invalid(fmt::format("{}: digits cover {} but there are only {}", where, reached, whole));
    }
    set_granule(axis, static_cast<std::uint32_t>(std::min(granule, whole)));
    clamp_top(axis, whole);
    return {};
  }

  void set_granule(Axis axis, std::uint32_t granule) {
    if (axis == Axis::kSlot) part_.token_granule = granule;
    if (axis == Axis::kHead) part_.head_granule = granule;
    if (axis == Axis::kDim) part_.dim_granule = granule;
  }

  // Values of the top digit that no element has are storage's padding, not part of the address formula.
  void clamp_top(Axis axis, std::uint64_t whole) {
    for (auto digit = part_.digits.rbegin(); digit != part_.digits.rend(); ++digit) {
      if (digit->axis != axis) continue;
      digit->mod = std::min(digit->mod, divide_up(whole, digit->div));
      return;
    }
  }

  void merge() {
    std::vector<Digit> merged;
    for (const Digit& digit : part_.digits) {
      if (!merged.empty() && merged.back().axis == digit.axis && merged.back().mod != 0 &&
          merged.back().open == digit.open && digit.div == merged.back().div * merged.back().mod &&
          digit.stride_bits == merged.back().stride_bits * static_cast<std::int64_t>(merged.back().mod)) {
        merged.back().mod *= digit.mod;
      } else {
        merged.push_back(digit);
      }
    }
    part_.digits = std::move(merged);
    // Merging rounds the top digit up again (5 units of 16 and a last one of 3 are 80 elements, not 83).
    for (const Axis axis : kClosedAxes) clamp_top(axis, extent(axis));
  }

  const PlacedLeaf& placed_;
  const RegionLayout& region_;
  const LayoutExtents& extents_;
  const LayoutExtents::ComponentExtent& component_;
  PartLayout part_;
};

Status check_extents(const LayoutExtents& extents) {
  if (extents.layers == 0) return invalid("the rank stores no layer of the group");
  if (extents.components.empty()) return invalid("the layer group has no components");
  for (const auto& [component, extent] : extents.components) {
    if (extent.heads == 0 || extent.dim == 0) {
      return invalid(
          fmt::format("component {}: {} heads of {} elements", component, extent.heads, extent.dim));
    }
    if (is_axis(component)) return invalid(fmt::format("component {}: the name is an axis", component));
  }
  return {};
}

Status check_parts(const std::vector<PartLayout>& parts, const LayoutExtents& extents) {
  const auto count = [&](const std::string& wanted) {
    return std::count_if(parts.begin(), parts.end(),
                         [&](const PartLayout& part) { return part.part == wanted; });
  };
  for (const PartLayout& part : parts) {
    if (count(part.part) > 1)
      return invalid(fmt::format("part {} is placed {} times", part.part, count(part.part)));
  }
  for (const auto& [component, extent] : extents.components) {
    if (count(component) == 0) return invalid(fmt::format("part {} is missing", component));
    if (count(component + ".z") != 0 && count(component + ".s") == 0) {
      return invalid(fmt::format("part {0}.s is missing, but {0}.z is there", component));
    }
  }
  return {};
}

}  // namespace

Result<BuiltLayout> build_layout(const std::vector<RegionText>& regions, const LayoutExtents& extents) {
  ISTHMUS_TRY(check_extents(extents));
  BuiltLayout built;
  for (const RegionText& text : regions) {
    RegionBuilder builder(text, extents);
    ISTHMUS_TRY(const Placed placed, builder.build());
    for (const PlacedLeaf& leaf : placed.leaves) {
      if (!extents.components.contains(leaf.leaf.component)) {
        return invalid(
            fmt::format("part {}: the layer group has no component {}", leaf.leaf.part, leaf.leaf.component));
      }
      ISTHMUS_TRY(PartLayout part, PartBuilder(leaf, builder.region(), extents).build());
      built.parts.push_back(std::move(part));
    }
    built.regions.push_back(builder.region());
  }
  ISTHMUS_TRY(check_parts(built.parts, extents));
  // "k" < "k.s" < "k.z", and components in the map's order.
  std::sort(built.parts.begin(), built.parts.end(),
            [](const PartLayout& a, const PartLayout& b) { return a.part < b.part; });
  return built;
}

}  // namespace isthmus::kv
