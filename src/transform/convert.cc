// SPDX-License-Identifier: Apache-2.0
// See convert.h.
#include "transform/convert.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace isthmus::transform {
namespace {

constexpr std::uint64_t kPieceElements = 4096;  // 16 KiB of f32: half of a small first-level data cache.

bool is_plain(const kv::DecodeForm& form) {
  return form.operation == kv::DecodeOperation::kPlain;
}

template <typename Byte>
auto floats_at(Byte* at, std::uint64_t count) {
  return view_as<float>(std::span<Byte>(at, count * sizeof(float)));
}

}  // namespace

bool is_exact(const kv::DecodeForm& from, const kv::DecodeForm& to) {
  return from.same_form(to) || (is_plain(from) && is_plain(to) && kv::embeds(from.codes, to.codes));
}

Result<RowConverter> RowConverter::make(const kv::DecodeForm& from, const kv::DecodeForm& to,
                                        std::uint32_t dim) {
  ISTHMUS_TRY(can_decode(from, dim));
  ISTHMUS_TRY(can_encode(to, dim));
  RowConverter converter;
  ISTHMUS_TRY(const auto from_parts, form_parts(from, dim));
  ISTHMUS_TRY(const auto to_parts, form_parts(to, dim));
  converter.from_ = side(from, from_parts);
  converter.to_ = side(to, to_parts);
  converter.dim_ = dim;
  converter.rows_at_once_ = std::max<std::uint64_t>(1, kPieceElements / dim);
  converter.values_.resize(converter.rows_at_once_ * dim);
  return converter;
}

RowConverter::Side RowConverter::side(const kv::DecodeForm& form, const std::vector<FormPart>& parts) {
  Side side{form, parts[0].token_bytes, 0, 0, is_plain(form) && form.codes == kv::Format::kF32};
  if (parts.size() > 1) side.scale_bytes = parts[1].token_bytes;
  if (parts.size() > 2) side.zero_bytes = parts[2].token_bytes;
  return side;
}

template <typename Arrays>
Arrays RowConverter::at_row(const Side& side, const Arrays& arrays, std::uint64_t row) {
  return {arrays.codes + row * side.code_bytes,
          arrays.scales == nullptr ? nullptr : arrays.scales + row * side.scale_bytes,
          arrays.zeros == nullptr ? nullptr : arrays.zeros + row * side.zero_bytes};
}

Status RowConverter::convert(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to) {
  for (std::uint64_t row = 0; row < rows; row += rows_at_once_) {
    const std::uint64_t count = std::min(rows_at_once_, rows - row);
    Status done = convert_piece(count, at_row(from_, from, row), at_row(to_, to, row));
    if (!done.ok()) return std::move(done).with_context(fmt::format("rows from {} on", row));
  }
  return ok_status();
}

Status RowConverter::convert_piece(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to) {
  const std::uint64_t elements = rows * dim_;
  if (from_.plain_f32 && is_aligned(from.codes, alignof(float))) {
    return encode_rows(to_.form, dim_, rows, floats_at(from.codes, elements), to);
  }
  const bool in_place = to_.plain_f32 && is_aligned(to.codes, alignof(float));
  const std::span<float> values =
      in_place ? floats_at(to.codes, elements) : std::span<float>(values_).first(elements);
  decode_rows(from_.form, dim_, rows, from, values);
  return encode_rows(to_.form, dim_, rows, values, to);
}

}  // namespace isthmus::transform
