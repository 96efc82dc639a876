// SPDX-License-Identifier: Apache-2.0
// See part_address.h.
#include "transform/part_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "transform/plan.h"

namespace isthmus::transform {
namespace {

// Every term of an address stays below 2^57 bits; with at most 32 terms a sum stays below 2^62.
constexpr std::uint64_t kTermMax = std::uint64_t{1} << 57;
constexpr std::size_t kDigitsMax = 32;

bool is_open_axis(kv::Axis axis) {
  return axis == kv::Axis::kBlock || axis == kv::Axis::kToken;
}

std::int64_t term(const kv::Digit& digit, std::uint64_t index, std::uint64_t open_extent) {
  const std::uint64_t quotient = index / digit.div;
  const std::uint64_t value = digit.mod == 0 ? quotient : quotient % digit.mod;
  return static_cast<std::int64_t>(value) * digit.stride_bits *
         (digit.open ? static_cast<std::int64_t>(open_extent) : 1);
}

}  // namespace

Result<PartAddress> PartAddress::make(const kv::Layout& layout, const FormPart& form) {
  ISTHMUS_TRY(const kv::PartLayout* part, layout.part(form.part));
  PartAddress address;
  address.layout_ = *part;
  const kv::RegionLayout& region = layout.region(part->region);
  address.per_layer_ = region.per_layer;
  address.paged_ = region.open_axis == kv::Axis::kBlock;
  address.element_bits_ = kv::bits(form.format);
  address.granule_ = form.granule;
  address.granule_tokens_ = form.granule_tokens;
  ISTHMUS_TRY(address.check(form));
  ISTHMUS_TRY(address.bound_digits(address.element_bits_));
  if (address.paged_ && layout.extents().block_tokens == 0) {
    return Error{Code::kInvalidArgument,
                 fmt::format("part {} is paged, but blocks have no tokens", form.part)};
  }
  if (form.granule_tokens > 1 &&
      (!address.paged_ || layout.extents().block_tokens % form.granule_tokens != 0)) {
    return Error{
        Code::kUnsupported,
        fmt::format("part {}: groups of {} tokens share elements, and blocks of {} tokens aren't whole "
                    "groups",
                    form.part, form.granule_tokens, layout.extents().block_tokens)};
  }
  address.token_bits_.reserve(kTileTokens);
  address.unit_bits_.resize(form.units);
  address.slot_bits_.resize(address.paged_ ? layout.extents().block_tokens : 0);
  bool on_bytes = address.layout_.start_bits % 8 == 0;
  for (const kv::Digit& digit : address.layout_.digits) {
    address.open_units_ |= digit.axis == kv::Axis::kDim && digit.open;
    address.open_slots_ |= digit.axis == kv::Axis::kSlot && digit.open;
    on_bytes &= digit.axis == kv::Axis::kDim || digit.stride_bits % 8 == 0;
  }
  address.tabulate_units();
  address.tabulate_slots();
  bool contiguous = !address.open_units_ && address.unit_bits_[0] % 8 == 0;
  for (std::uint32_t unit = 0; unit < form.units; ++unit) {
    contiguous &=
        address.unit_bits_[unit] == address.unit_bits_[0] + std::int64_t{unit} * address.element_bits_;
  }
  address.whole_rows_ = contiguous && on_bytes;
  return address;
}

Status PartAddress::check(const FormPart& form) const {
  if (layout_.format != form.format) {
    return Error{Code::kInvalidArgument,
                 fmt::format("part {}: the layout stores {}, the decode form says {}", form.part,
                             kv::name(layout_.format), kv::name(form.format))};
  }
  if (layout_.head_granule > 1) {
    return Error{Code::kUnsupported,
                 fmt::format("part {}: one element serves {} heads", form.part, layout_.head_granule)};
  }
  if (layout_.token_granule != form.granule_tokens) {
    return Error{Code::kInvalidArgument,
                 fmt::format("part {}: one element serves {} tokens in the layout and {} in the decode form",
                             form.part, layout_.token_granule, form.granule_tokens)};
  }
  // Units of the layout and of the form must be the same, else elements would be taken from the wrong place.
  std::uint64_t stored_units = 1;
  for (const kv::Digit& digit : layout_.digits) {
    if (digit.axis == kv::Axis::kDim) stored_units *= digit.mod;
    if (digit.div == 0 || (digit.mod == 0 && !is_open_axis(digit.axis))) {
      return Error{Code::kInvalidArgument,
                   fmt::format("part {}: a digit of axis {} has no extent", form.part, kv::name(digit.axis))};
    }
  }
  if (stored_units != form.units) {
    return Error{Code::kInvalidArgument,
                 fmt::format("part {}: the layout stores {} elements a row, the decode form says {}",
                             form.part, stored_units, form.units)};
  }
  return ok_status();
}

Status PartAddress::bound_digits(std::uint32_t element_bits) {
  std::uint64_t open_reach = 1;
  bool fits = layout_.start_bits < kTermMax && layout_.digits.size() <= kDigitsMax;
  for (const kv::Digit& digit : layout_.digits) {
    const std::uint64_t stride = static_cast<std::uint64_t>(std::llabs(digit.stride_bits));
    const std::uint64_t extent = std::max<std::uint64_t>(digit.mod, 1);
    fits = fits && stride < kTermMax / extent && !(digit.open && is_open_axis(digit.axis));
    if (!fits) break;
    if (digit.open || is_open_axis(digit.axis)) open_reach = std::max(open_reach, stride * extent);
    if (element_bits >= 8 && digit.stride_bits % 8 != 0) {
      return Error{Code::kUnsupported,
                   fmt::format("part {}: a digit of axis {} has stride {} bits, which isn't whole bytes",
                               layout_.part, kv::name(digit.axis), digit.stride_bits)};
    }
  }
  if (!fits || (element_bits >= 8 && layout_.start_bits % 8 != 0)) {
    return Error{Code::kUnsupported,
                 fmt::format("part {}: offsets are too large or don't start on bytes", layout_.part)};
  }
  open_extent_max_ = kTermMax / open_reach;
  return ok_status();
}

std::int64_t PartAddress::sum(kv::Axis axis, std::uint64_t index) const {
  std::int64_t bits = 0;
  for (const kv::Digit& digit : layout_.digits) {
    if (digit.axis == axis) bits += term(digit, index, open_extent_);
  }
  return bits;
}

void PartAddress::tabulate(const TokenPlaces& places, std::uint64_t open_extent) {
  open_extent_ = open_extent;
  token_bits_.resize((places.tokens + granule_tokens_ - 1) / granule_tokens_);
  if (open_units_) tabulate_units();
  if (open_slots_) tabulate_slots();
  if (paged_) {
    tabulate_blocks(places);
  } else {
    tabulate_rows(places);
  }
}

void PartAddress::tabulate_units() {
  for (std::size_t unit = 0; unit < unit_bits_.size(); ++unit) {
    unit_bits_[unit] = sum(kv::Axis::kDim, unit * std::uint64_t{granule_});
  }
}

void PartAddress::tabulate_slots() {
  for (std::size_t slot = 0; slot < slot_bits_.size(); ++slot) slot_bits_[slot] = sum(kv::Axis::kSlot, slot);
}

void PartAddress::tabulate_blocks(const TokenPlaces& places) {
  std::int64_t block_bits = 0;
  for (std::size_t group = 0; group < token_bits_.size(); ++group) {
    const std::size_t token = group * granule_tokens_;
    if (group == 0 || places.blocks[token] != places.blocks[token - granule_tokens_]) {
      block_bits = sum(kv::Axis::kBlock, places.blocks[token]);
    }
    token_bits_[group] = block_bits + slot_bits_[places.slots[token]];
  }
}

void PartAddress::tabulate_rows(const TokenPlaces& places) {
  for (std::size_t token = 0; token < token_bits_.size(); ++token) {
    token_bits_[token] = sum(kv::Axis::kToken, places.rows[token]);
  }
}

std::int64_t PartAddress::origin_bits(std::uint64_t layer, std::uint64_t head) const {
  return static_cast<std::int64_t>(layout_.start_bits) + (per_layer_ ? 0 : sum(kv::Axis::kLayer, layer)) +
         sum(kv::Axis::kHead, head);
}

PartAddress::Reach PartAddress::reach(std::uint64_t layer, std::uint32_t head_begin,
                                      std::uint32_t head_end) const {
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  std::int64_t highest = std::numeric_limits<std::int64_t>::min();
  for (std::uint32_t head = head_begin; head < head_end; ++head) {
    const std::int64_t origin = origin_bits(layer, head);
    lowest = std::min(lowest, origin);
    highest = std::max(highest, origin);
  }
  const auto tokens = std::minmax_element(token_bits_.begin(), token_bits_.end());
  const auto units = std::minmax_element(unit_bits_.begin(), unit_bits_.end());
  return {lowest + *tokens.first + *units.first, highest + *tokens.second + *units.second + element_bits_};
}

}  // namespace isthmus::transform
