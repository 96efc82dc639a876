// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels for a decode form.
#include "transform/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kv/encoding.h"
#include "transform/kernels/numbers.h"
#include "transform/kernels/rows_kernels.h"

namespace isthmus::transform {
namespace {

const kernels::KernelSet& kernel_set(KernelChoice choice) {
  return choice == KernelChoice::kVector ? kernels::vector_kernels() : kernels::scalar_kernels();
}

// Bounds of the encoders' inputs, for the words of an error.
struct Extremes {
  float lowest = 0, highest = 0;
};
Extremes extremes_of(std::span<const float> values) {
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  return {*lowest, *highest};
}

// The first reason for a refused piece, found one value at a time.
Error first_bad_row(kv::Encoder encoder, std::uint32_t dim, std::span<const float> from) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::isfinite(from[i])) continue;
    return Error{Code::kCorrupt,
                 fmt::format("row {}, element {}: the value is {}; only finite values are converted", i / dim,
                             i % dim, from[i])};
  }
  const auto not_positive = std::find_if(from.begin(), from.end(), [](float value) { return value <= 0; });
  if (encoder == kv::Encoder::kPlain && not_positive != from.end()) {
    const auto at = static_cast<std::size_t>(not_positive - from.begin());
    return Error{Code::kCorrupt, fmt::format("row {}, element {}: the value is {}; e8m0 has powers of two",
                                             at / dim, at % dim, from[at])};
  }
  const bool by_row = encoder == kv::Encoder::kAffineRow;
  for (std::size_t row = 0; by_row && row * dim < from.size(); ++row) {
    const auto [lowest, highest] = extremes_of(from.subspan(row * dim, dim));
    const float scale = (highest - lowest) / 255.0f;
    if (std::isfinite(scale) && std::isfinite(-lowest / (scale == 0.0f ? 1e-4f : scale))) continue;
    return Error{Code::kCorrupt,
                 fmt::format("row {}: values from {} to {} have no finite scale and zero point", row, lowest,
                             highest)};
  }
  const auto [lowest, highest] = extremes_of(from);
  return Error{Code::kCorrupt,
               fmt::format("values from {} to {}: a group of them has no finite scale and zero "
                           "point in the target's form",
                           lowest, highest)};
}

// Of one token each; a static scale serves all rows.
kernels::Scaled scaled_arrays(const RowForm& rows, RowShape shape, const ConstRowArrays& from) {
  const kv::DecodeForm& form = rows.form;
  if (form.operation == kv::DecodeOperation::kStaticScaled) {
    return {.codes = from.codes,
            .scales = std::as_bytes(std::span(&rows.static_scale, 1)).data(),
            .code_format = form.codes,
            .granules = 1,
            .granule = static_cast<std::uint32_t>(shape.rows * shape.dim)};
  }
  return {.codes = from.codes,
          .scales = from.scales,
          .zeros = form.operation == kv::DecodeOperation::kScaledZeroPoint ? from.zeros : nullptr,
          .code_format = form.codes,
          .scale_format = form.scale,
          .zero_format = form.zero,
          .zero_constant = static_cast<float>(form.zero_constant),
          .granules = shape.rows * (shape.dim / form.granule_dim),
          .granule = form.granule_dim};
}

bool is_plain(const kv::DecodeForm& form) {
  return form.operation == kv::DecodeOperation::kPlain;
}

// Rows whose scales serve several tokens and several elements: one row after the other.
kernels::Outcome decode_groups(const kernels::KernelSet& set, const kv::DecodeForm& form, RowShape shape,
                               const ConstRowArrays& from, kv::Format format, std::byte* to) {
  const std::uint64_t units = shape.dim / form.granule_dim;
  auto outcome = kernels::Outcome::kWhole;
  for (std::uint64_t row = 0; row < shape.rows; ++row) {
    const std::uint64_t unit = row / form.granule_tokens * units;
    const auto side = [&](const std::byte* array, kv::Format of) {
      return array == nullptr ? nullptr : array + unit * kv::bits(of) / 8;
    };
    const ConstRowArrays at{from.codes + row * shape.dim * kv::bits(form.codes) / 8,
                            side(from.scales, form.scale), side(from.zeros, form.zero)};
    outcome = worse(outcome, set.decode_scaled(scaled_arrays(form, {shape.dim, 1}, at), format,
                                               to + row * shape.dim * kv::bits(format) / 8));
  }
  return outcome;
}

// Codes with scales to f32, f16 or bf16.
kernels::Outcome decode_to_plain(const kernels::KernelSet& set, const RowForm& rows, RowShape shape,
                                 const ConstRowArrays& from, kv::Format format, std::byte* to) {
  const kv::DecodeForm& form = rows.form;
  if (form.granule_tokens > 1 && form.granule_dim > 1)
    return decode_groups(set, form, shape, from, format, to);
  const kernels::Scaled arrays = scaled_arrays(rows, shape, from);
  if (form.granule_tokens > 1) {
    return set.decode_channels(
        {.arrays = arrays, .rows = shape.rows, .dim = shape.dim, .group = form.granule_tokens}, format, to);
  }
  return set.decode_scaled(arrays, format, to);
}

kernels::Outcome outcome_of(bool is_finite) {
  return is_finite ? kernels::Outcome::kWhole : kernels::Outcome::kNotFinite;
}

kernels::ScaleRule rule_of(kv::Encoder encoder) {
  if (encoder == kv::Encoder::kVllmTile) return kernels::ScaleRule::kTile;
  return encoder == kv::Encoder::kVllmPowerOfTwo ? kernels::ScaleRule::kPowerOfTwo
                                                 : kernels::ScaleRule::kAmax;
}

// kNotFinite too if a scale or a zero point isn't.
kernels::Outcome encode(const kernels::KernelSet& set, kv::Encoder encoder, const RowForm& row_form,
                        RowShape shape, const kernels::Numbers& from, const RowArrays& to) {
  const auto [dim, rows] = shape;
  const kv::DecodeForm& form = row_form.form;
  const std::uint32_t granule = has_stored_scale(form.operation) ? form.granule_dim : dim;
  const kernels::Encoded encoded{.codes = to.codes,
                                 .scales = to.scales,
                                 .zeros = to.zeros,
                                 .granules = rows * (dim / granule),
                                 .granule = granule};
  switch (encoder) {
    case kv::Encoder::kPlain:
    case kv::Encoder::kVllmFp8:
      return set.encode_plain({form.codes, to.codes, row_form.static_scale, encoder == kv::Encoder::kVllmFp8},
                              from, rows * dim);
    case kv::Encoder::kAmax:
    case kv::Encoder::kVllmTile:
    case kv::Encoder::kVllmPowerOfTwo:
      return outcome_of(set.encode_amax(from, {.rule = rule_of(encoder),
                                               .code_format = form.codes,
                                               .scale_format = form.scale,
                                               .codes = to.codes,
                                               .scales = to.scales,
                                               .rows = rows,
                                               .dim = dim,
                                               .granule = form.granule_dim,
                                               .group = form.granule_tokens}));
    case kv::Encoder::kAffineRow:
      return outcome_of(set.encode_affine(form.codes, from, encoded));
    case kv::Encoder::kAffineChannel:
      return outcome_of(set.encode_channels(from, {.codes = to.codes,
                                                   .scales = to.scales,
                                                   .zeros = to.zeros,
                                                   .rows = rows,
                                                   .dim = dim,
                                                   .group = form.granule_tokens}));
    case kv::Encoder::kSymmetric8:
      return outcome_of(set.encode_q8_0(from, encoded));
    case kv::Encoder::kReference8:
      return outcome_of(set.encode_q8_0_reference(from, encoded));
    case kv::Encoder::kExtreme4:
      return outcome_of(set.encode_q4_0(from, encoded));
  }
  return kernels::Outcome::kNotFinite;
}

// Values that no code of the form reaches; a granule's own scale leaves none.
std::uint64_t count_saturated(const RowForm& form, std::span<const float> values) {
  const auto [lowest, highest] = kernels::bounds_of(form.form.codes);
  std::uint64_t count = 0;
  for (const float value : values) {
    const float quotient = value / form.static_scale;
    count += quotient < lowest || quotient > highest ? 1 : 0;
  }
  return count;
}

}  // namespace

Status can_decode(const kv::DecodeForm& form, std::uint32_t dim) {
  return kv::decodable(form, dim);
}

Status can_encode(const kv::DecodeForm& form, std::uint32_t dim) {
  return kv::encoder_of(form, dim).status();
}

void decode_rows(const RowForm& form, std::uint32_t dim, std::uint64_t rows, const ConstRowArrays& from,
                 std::span<float> to, KernelChoice choice) {
  ISTHMUS_CHECK(to.size() == rows * dim);
  if (is_plain(form.form)) {
    kernel_set(choice).decode_plain(form.form.codes, from.codes, rows * dim, to.data());
    return;
  }
  // What isn't finite is refused by whoever encodes it.
  (void)decode_to_plain(kernel_set(choice), form, {dim, rows}, from, kv::Format::kF32,
                        std::as_writable_bytes(to).data());
}

Result<std::uint64_t> encode_rows(const RowForm& form, std::uint32_t dim, std::uint64_t rows,
                                  std::span<const float> from, const RowArrays& to, KernelChoice choice) {
  ISTHMUS_CHECK(from.size() == rows * dim);
  ISTHMUS_TRY(const kv::Encoder encoder, kv::encoder_of(form.form, dim));
  const kernels::Numbers numbers{kv::Format::kF32, std::as_bytes(from).data()};
  switch (encode(kernel_set(choice), encoder, form, {dim, rows}, numbers, to)) {
    case kernels::Outcome::kWhole:
      return std::uint64_t{0};
    case kernels::Outcome::kSaturated:
      return count_saturated(form, from);
    case kernels::Outcome::kNotFinite:
      break;
  }
  return first_bad_row(encoder, dim, from);
}

std::uint64_t replace_non_finite(const kv::DecodeForm& form, std::span<float> values) {
  const auto [lowest, highest] = kernels::bounds_of(is_plain(form) ? form.codes : kv::Format::kF32);
  std::uint64_t count = 0;
  for (float& value : values) {
    if (std::isfinite(value)) continue;
    value = std::isnan(value) ? 0.0f : value < 0 ? lowest : highest;
    ++count;
  }
  return count;
}

bool can_recode(const kv::DecodeForm& from, const kv::DecodeForm& to) {
  return is_plain(from) ? kv::is_float(from.codes) : is_plain(to) && kv::is_float(to.codes);
}

bool recode_rows(const RowForm& from_form, const RowForm& to_form, RowShape shape, const ConstRowArrays& from,
                 const RowArrays& to, KernelChoice choice) {
  const kernels::KernelSet& set = kernel_set(choice);
  if (!is_plain(from_form.form)) {
    return decode_to_plain(set, from_form, shape, from, to_form.form.codes, to.codes) ==
           kernels::Outcome::kWhole;
  }
  const auto encoder = kv::encoder_of(to_form.form, shape.dim);
  return encoder.ok() && encode(set, *encoder, to_form, shape, {from_form.form.codes, from.codes}, to) ==
                             kernels::Outcome::kWhole;
}

Status can_step(const kv::ValueStep& step, std::uint32_t dim) {
  const bool fits = step.kind == kv::ValueStepKind::kHadamard
                        ? step.size >= 2 && std::has_single_bit(step.size) && dim % step.size == 0
                        : dim % 2 == 0;
  if (fits) return ok_status();
  return Error{Code::kUnsupported,
               fmt::format("rows of {} elements can't be transformed {} elements at a time", dim,
                           step.size == 0 ? 2 : step.size)};
}

void apply_step(const kv::ValueStep& step, std::uint32_t dim, std::span<float> values, std::span<float> row,
                KernelChoice choice) {
  if (step.kind == kv::ValueStepKind::kHadamard) {
    kernel_set(choice).hadamard(values.data(), values.size(), step.size);
    return;
  }
  ISTHMUS_CHECK(row.size() == dim);
  const std::size_t half = dim / 2;
  const bool to_halves = step.kind == kv::ValueStepKind::kInterleavedToHalves;
  for (std::size_t at = 0; at < values.size(); at += dim) {
    const std::span<float> stored = values.subspan(at, dim);
    std::copy(stored.begin(), stored.end(), row.begin());
    for (std::size_t i = 0; i < half; ++i) {
      stored[to_halves ? i : 2 * i] = row[to_halves ? 2 * i : i];
      stored[to_halves ? i + half : 2 * i + 1] = row[to_halves ? 2 * i + 1 : i + half];
    }
  }
}

}  // namespace isthmus::transform
