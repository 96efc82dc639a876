// SPDX-License-Identifier: Apache-2.0
// See convert.h.
#include "transform/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isthmus::transform {
namespace {

constexpr std::uint64_t kPieceElements = 4096;  // 16 KiB of f32: half of a small first-level data cache.

bool is_plain(const kv::DecodeForm& form) {
  return form.operation == kv::DecodeOperation::kPlain;
}

}  // namespace

bool same_numbers(const kv::WireComponent& a, const kv::WireComponent& b) {
  return a.form.same_form(b.form) && a.value_transforms == b.value_transforms;
}

bool is_invertible(const kv::WireComponent& from, const kv::WireComponent& to) {
  if (same_numbers(from, to)) return true;
  const auto steps = kv::value_steps(from.value_transforms, to.value_transforms);
  return from.non_finite == kv::NonFinite::kRefuse && steps.ok() && kv::only_moves(*steps) &&
         is_plain(from.form) && is_plain(to.form) && kv::embeds(from.form.codes, to.form.codes);
}

ComponentShape ComponentShape::of(const kv::LayerGroup& group, std::size_t component) {
  const kv::Component& one = group.components.at(component);
  return {one.dim, static_cast<std::uint32_t>(group.layers.size()), one.heads};
}

Result<RowConverter> RowConverter::make(const kv::WireComponent& from, const kv::WireComponent& to,
                                        const ComponentShape& shape) {
  const std::uint32_t dim = shape.dim;
  ISTHMUS_TRY(can_decode(from.form, dim));
  RowConverter converter;
  ISTHMUS_TRY(converter.from_, side(from.form, dim));
  ISTHMUS_TRY(converter.to_, side(to.form, dim));
  ISTHMUS_TRY(converter.steps_, kv::value_steps(from.value_transforms, to.value_transforms));
  if (kv::only_moves(converter.steps_) && kv::keeps_static_codes(from.form, to.form)) {
    // Products with real scales are rounded, and could come back as a neighbour's code.
    converter.from_.form.static_scales = {from.form.codes == to.form.codes ? 1.0f : 0.5f};
    converter.to_.form.static_scales = {1.0f};
    converter.to_.form.recipe = "nearest_even";
  }
  ISTHMUS_TRY(can_encode(converter.to_.form, dim));
  for (const kv::ValueStep& step : converter.steps_) ISTHMUS_TRY(can_step(step, dim));
  converter.one_pass_ = converter.steps_.empty() && can_recode(from.form, to.form);
  converter.replaces_ = from.non_finite == kv::NonFinite::kReplace;
  converter.shape_ = shape;
  // Whole token groups of both sides; each granule divides a tile's 256 tokens, hence the larger one the
  // other.
  const std::uint64_t group = std::max(from.form.granule_tokens, to.form.granule_tokens);
  converter.rows_at_once_ = std::max<std::uint64_t>(1, kPieceElements / dim / group) * group;
  converter.values_.resize(converter.rows_at_once_ * dim);
  converter.row_.resize(dim);
  return converter;
}

Result<RowConverter::Side> RowConverter::side(const kv::DecodeForm& form, std::uint32_t dim) {
  Side side{form, {}};
  ISTHMUS_TRY(side.parts, form_parts(form, dim));
  return side;
}

RowForm RowConverter::Side::of(const ComponentShape& shape, const TileOwner& owner) const {
  const std::vector<float>& scales = form.static_scales;
  if (scales.size() <= 1) return {form, scales.empty() ? 1.0f : scales.front()};
  const std::size_t at =
      scales.size() == shape.layers ? owner.layer : std::size_t{owner.layer} * shape.heads + owner.head;
  return {form, scales.at(at)};
}

template <typename Arrays>
Arrays RowConverter::at_row(const Side& side, const Arrays& arrays, std::uint64_t row) {
  const auto at = [&](auto* array, std::size_t part) {
    return array == nullptr || part >= side.parts.size() ? nullptr : array + side.parts[part].tile_bytes(row);
  };
  return {at(arrays.codes, 0), at(arrays.scales, 1), at(arrays.zeros, 2)};
}

Status RowConverter::convert(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to,
                             const TileOwner& owner, ConversionCounts& counts) {
  for (std::uint64_t row = 0; row < rows; row += rows_at_once_) {
    const std::uint64_t count = std::min(rows_at_once_, rows - row);
    Status done = convert_piece(count, at_row(from_, from, row), at_row(to_, to, row), owner, counts);
    if (!done.ok()) return std::move(done).with_context(fmt::format("rows from {} on", row));
  }
  return ok_status();
}

Status RowConverter::convert_piece(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to,
                                   const TileOwner& owner, ConversionCounts& counts) {
  const std::uint32_t dim = shape_.dim;
  const RowForm source = from_.of(shape_, owner), target = to_.of(shape_, owner);
  // What can't be converted in one pass, or has to be counted, is led through f32, which finds the values.
  if (one_pass_ && recode_rows(source, target, {dim, rows}, from, to)) return ok_status();
  const std::span<float> values = std::span<float>(values_).first(rows * dim);
  decode_rows(source, dim, rows, from, values);
  const std::uint64_t replaced = replaces_ ? replace_non_finite(from_.form, values) : 0;
  for (const kv::ValueStep& step : steps_) apply_step(step, dim, values, row_);
  ISTHMUS_TRY(const std::uint64_t saturated, encode_rows(target, dim, rows, values, to));
  counts += {saturated, replaced};
  return ok_status();
}

}  // namespace isthmus::transform
