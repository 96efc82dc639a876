// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels for a decode form.
#include "transform/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kv/encoding.h"
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

kernels::Scaled scaled_arrays(const kv::DecodeForm& form, const ConstRowArrays& from) {
  return {.codes = from.codes,
          .scales = from.scales,
          .zeros = form.operation == kv::DecodeOperation::kScaledZeroPoint ? from.zeros : nullptr,
          .code_format = form.codes,
          .scale_format = form.scale,
          .zero_format = form.zero,
          .zero_constant = static_cast<float>(form.zero_constant)};
}

bool is_plain(const kv::DecodeForm& form) {
  return form.operation == kv::DecodeOperation::kPlain;
}

// Codes with scales to f32, f16 or bf16.
bool decode_to_plain(const kernels::KernelSet& set, const kv::DecodeForm& form, RowShape shape,
                     const ConstRowArrays& from, kv::Format format, std::byte* to) {
  kernels::Scaled arrays = scaled_arrays(form, from);
  if (form.granule_tokens > 1) {
    return set.decode_channels(
        {.arrays = arrays, .rows = shape.rows, .dim = shape.dim, .group = form.granule_tokens}, format, to);
  }
  arrays.granule = form.granule_dim;
  arrays.granules = shape.rows * (shape.dim / arrays.granule);
  return set.decode_scaled(arrays, format, to);
}

// False if a value, a scale or a zero point isn't finite.
bool encode(const kernels::KernelSet& set, kv::Encoder encoder, const kv::DecodeForm& form, RowShape shape,
            const kernels::Numbers& from, const RowArrays& to) {
  const auto [dim, rows] = shape;
  const std::uint32_t granule = is_plain(form) ? dim : form.granule_dim;
  const kernels::Encoded encoded{.codes = to.codes,
                                 .scales = to.scales,
                                 .zeros = to.zeros,
                                 .granules = rows * (dim / granule),
                                 .granule = granule};
  switch (encoder) {
    case kv::Encoder::kPlain:
      return set.encode_plain(form.codes, from, rows * dim, to.codes);
    case kv::Encoder::kVllmFp8:
      return set.encode_vllm(form.codes, from, rows * dim, to.codes);
    case kv::Encoder::kAmax:
      return set.encode_amax(form.codes, from, encoded);
    case kv::Encoder::kAffineRow:
      return set.encode_affine(form.codes, from, encoded);
    case kv::Encoder::kAffineChannel:
      return set.encode_channels(from, {.codes = to.codes,
                                        .scales = to.scales,
                                        .zeros = to.zeros,
                                        .rows = rows,
                                        .dim = dim,
                                        .group = form.granule_tokens});
    case kv::Encoder::kSymmetric8:
      return set.encode_q8_0(from, encoded);
    case kv::Encoder::kReference8:
      return set.encode_q8_0_reference(from, encoded);
    case kv::Encoder::kExtreme4:
      return set.encode_q4_0(from, encoded);
  }
  return false;
}

}  // namespace

Status can_decode(const kv::DecodeForm& form, std::uint32_t dim) {
  return kv::decodable(form, dim);
}

Status can_encode(const kv::DecodeForm& form, std::uint32_t dim) {
  return kv::encoder_of(form, dim).status();
}

void decode_rows(const kv::DecodeForm& form, std::uint32_t dim, std::uint64_t rows,
                 const ConstRowArrays& from, std::span<float> to, KernelChoice choice) {
  ISTHMUS_CHECK(to.size() == rows * dim);
  if (is_plain(form)) {
    kernel_set(choice).decode_plain(form.codes, from.codes, rows * dim, to.data());
    return;
  }
  // What isn't finite is refused by whoever encodes it.
  (void)decode_to_plain(kernel_set(choice), form, {dim, rows}, from, kv::Format::kF32,
                        std::as_writable_bytes(to).data());
}

Status encode_rows(const kv::DecodeForm& form, std::uint32_t dim, std::uint64_t rows,
                   std::span<const float> from, const RowArrays& to, KernelChoice choice) {
  ISTHMUS_CHECK(from.size() == rows * dim);
  ISTHMUS_TRY(const kv::Encoder encoder, kv::encoder_of(form, dim));
  const kernels::Numbers numbers{kv::Format::kF32, std::as_bytes(from).data()};
  if (encode(kernel_set(choice), encoder, form, {dim, rows}, numbers, to)) return ok_status();
  return first_bad_row(encoder, dim, from);
}

bool can_recode(const kv::DecodeForm& from, const kv::DecodeForm& to) {
  return is_plain(from) ? kv::is_float(from.codes) : is_plain(to) && kv::is_float(to.codes);
}

bool recode_rows(const kv::DecodeForm& from_form, const kv::DecodeForm& to_form, RowShape shape,
                 const ConstRowArrays& from, const RowArrays& to, KernelChoice choice) {
  const kernels::KernelSet& set = kernel_set(choice);
  if (!is_plain(from_form)) return decode_to_plain(set, from_form, shape, from, to_form.codes, to.codes);
  const auto encoder = kv::encoder_of(to_form, shape.dim);
  return encoder.ok() && encode(set, *encoder, to_form, shape, {from_form.codes, from.codes}, to);
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
