// SPDX-License-Identifier: Apache-2.0
// Number conversion of contiguous rows: decode to f32, encode from f32. Vector kernels (Highway) and scalar
// twins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kv/descriptor.h"
#include "kv/value_transforms.h"

namespace isthmus::transform {

// Stored arrays of `rows` consecutive rows of `dim` elements in one decode form.
//   codes [rows][dim] in form.codes; scales, zeros [row groups][dim/granule], empty if the form has none. A
//   row group is granule_tokens rows, the last one what is left; the first row begins a group.
struct RowArrays {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::byte* zeros = nullptr;
};

// The same arrays, read only.
struct ConstRowArrays {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* zeros = nullptr;

  // NOLINTNEXTLINE(*-explicit-*) plain arrays are rows without scales
  ConstRowArrays(const std::byte* code_array, const std::byte* scale_array = nullptr,
                 const std::byte* zero_array = nullptr)
      : codes(code_array), scales(scale_array), zeros(zero_array) {}
  ConstRowArrays(const RowArrays& rows)  // NOLINT(*-explicit-*)
      : codes(rows.codes), scales(rows.scales), zeros(rows.zeros) {}
};

// A decode form, and of one with static scales the scale of these rows.
struct RowForm {
  const kv::DecodeForm& form;
  float static_scale = 1;

  // NOLINTNEXTLINE(*-explicit-*) most forms have no static scale
  RowForm(const kv::DecodeForm& decode_form, float scale = 1) : form(decode_form), static_scale(scale) {}
};

enum class KernelChoice : std::uint8_t { kVector, kScalar };  // kScalar: the oracle, bit-equal to kVector.

// x[rows*dim] = decoded values. The form must pass can_decode(). 4-bit codes: low nibble first.
void decode_rows(const RowForm& form, std::uint32_t dim, std::uint64_t rows, const ConstRowArrays& from,
                 std::span<float> to, KernelChoice choice = KernelChoice::kVector);
// Encode by the form's recipe (kv/encoding.h; plain forms round to nearest even, finite values beyond the
// largest of the format become the largest). `to.codes` may be `from` for a plain f32 form. The
// form must pass can_encode(); arrays need no alignment. Recipes: spec/wire-form.md §7. Returns how many
// values saturated: lay beyond the numbers of a plain or static format. Errors: corrupt on a
// non-finite input, with its row and element, or on values without a finite scale or zero point.
Result<std::uint64_t> encode_rows(const RowForm& form, std::uint32_t dim, std::uint64_t rows,
                                  std::span<const float> from, const RowArrays& to,
                                  KernelChoice choice = KernelChoice::kVector);
// Infinities become the largest finite number that `form` stores without scales (f32's for one with scales)
// of their sign, NaNs +0; returns how many there were.
std::uint64_t replace_non_finite(const kv::DecodeForm& form, std::span<float> values);
struct RowShape {
  std::uint32_t dim = 0;
  std::uint64_t rows = 0;
};
// The same in one pass from numbers stored as one plain form to any, or from any form to a plain one
// (can_recode()); false, with `to` unspecified, where encode_rows(decode_rows()) would fail or perhaps count
// a value, which then says which.
bool can_recode(const kv::DecodeForm& from, const kv::DecodeForm& to);
bool recode_rows(const RowForm& from_form, const RowForm& to_form, RowShape shape, const ConstRowArrays& from,
                 const RowArrays& to, KernelChoice choice = KernelChoice::kVector);
// unsupported, naming the form, if encode_rows can't make it (decode_rows can't read it).
Status can_encode(const kv::DecodeForm& form, std::uint32_t dim);
Status can_decode(const kv::DecodeForm& form, std::uint32_t dim);

// One step of a change of value transforms, in place; `row` is scratch of `dim` elements. The step must pass
// can_step().
void apply_step(const kv::ValueStep& step, std::uint32_t dim, std::span<float> values, std::span<float> row,
                KernelChoice choice = KernelChoice::kVector);
// unsupported if rows of `dim` elements don't divide into the step's blocks.
Status can_step(const kv::ValueStep& step, std::uint32_t dim);

}  // namespace isthmus::transform
