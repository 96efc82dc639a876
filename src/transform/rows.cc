// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels for a decode form.
#include "transform/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "transform/form_parts.h"
#include "transform/kernels/rows_kernels.h"

namespace isthmus::transform {
namespace {

constexpr std::string_view kAffineU8 = "openvino.u8.by_token";

const kernels::KernelSet& kernel_set(KernelChoice choice) {
  return choice == KernelChoice::kVector ? kernels::vector_kernels() : kernels::scalar_kernels();
}

std::uint32_t granule_of(const kv::DecodeForm& form, std::uint32_t dim) {
  return form.granule_dim == 0 ? dim : form.granule_dim;
}

bool is_float(kv::Format format) {
  return format == kv::Format::kF32 || format == kv::Format::kF16 || format == kv::Format::kBf16;
}

bool is_integer(kv::Format format) {
  return format == kv::Format::kU8 || format == kv::Format::kI8 || format == kv::Format::kU4 ||
         format == kv::Format::kI4;
}

Error unsupported(std::string_view verb, const kv::DecodeForm& form) {
  return Error{Code::kUnsupported, fmt::format("no kernel {} \"{}\"{}{}", verb, form.text(),
                                               form.recipe.empty() ? "" : " by recipe ", form.recipe)};
}

// The first reason for a refused row, found one value at a time.
Error first_bad_row(std::uint32_t dim, std::span<const float> from) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::isfinite(from[i])) continue;
    return Error{Code::kCorrupt,
                 fmt::format("row {}, element {}: the value is {}; only finite values are converted", i / dim,
                             i % dim, from[i])};
  }
  for (std::size_t row = 0; row * dim < from.size(); ++row) {
    float lowest = from[row * dim], highest = lowest;
    for (const float value : from.subspan(row * dim, dim)) {
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
    const float scale = (highest - lowest) / 255.0f;
    if (std::isfinite(scale) && std::isfinite(-lowest / (scale == 0.0f ? 1e-4f : scale))) continue;
    return Error{Code::kCorrupt,
                 fmt::format("row {}: values from {} to {} have no finite scale and zero point", row, lowest,
                             highest)};
  }
  return Error{Code::kCorrupt, "a group of elements has no finite scale and zero point"};
}

}  // namespace

Status can_decode(const kv::DecodeForm& form, std::uint32_t dim) {
  ISTHMUS_TRY(form_parts(form, dim));
  const bool plain = form.operation == kv::DecodeOperation::kPlain;
  const bool known =
      plain ? is_float(form.codes) || is_integer(form.codes)
            : is_integer(form.codes) && is_float(form.scale) &&
                  (form.operation == kv::DecodeOperation::kScaled ||
                   (form.operation == kv::DecodeOperation::kScaledZeroPoint && is_float(form.zero)));
  if (!known) return unsupported("decodes", form);
  return ok_status();
}

Status can_encode(const kv::DecodeForm& form, std::uint32_t dim) {
  ISTHMUS_TRY(form_parts(form, dim));
  const bool plain = form.operation == kv::DecodeOperation::kPlain && is_float(form.codes);
  const bool affine = form.operation == kv::DecodeOperation::kScaledZeroPoint && form.recipe == kAffineU8 &&
                      form.codes == kv::Format::kU8 && form.scale == kv::Format::kF32 &&
                      form.zero == kv::Format::kF32;
  if (!plain && !affine) return unsupported("encodes", form);
  return ok_status();
}

void decode_rows(const kv::DecodeForm& form, std::uint32_t dim, std::uint64_t rows,
                 const ConstRowArrays& from, std::span<float> to, KernelChoice choice) {
  ISTHMUS_CHECK(to.size() == rows * dim);
  const kernels::KernelSet& set = kernel_set(choice);
  if (form.operation == kv::DecodeOperation::kPlain) {
    set.decode_plain(form.codes, from.codes, rows * dim, to.data());
    return;
  }
  const std::uint32_t granule = granule_of(form, dim);
  set.decode_scaled({.codes = from.codes,
                     .scales = from.scales,
                     .zeros = form.operation == kv::DecodeOperation::kScaledZeroPoint ? from.zeros : nullptr,
                     .code_format = form.codes,
                     .scale_format = form.scale,
                     .zero_format = form.zero,
                     .granules = rows * (dim / granule),
                     .granule = granule},
                    to.data());
}

Status encode_rows(const kv::DecodeForm& form, std::uint32_t dim, std::uint64_t rows,
                   std::span<const float> from, const RowArrays& to, KernelChoice choice) {
  ISTHMUS_CHECK(from.size() == rows * dim);
  const kernels::KernelSet& set = kernel_set(choice);
  bool finite = false;
  if (form.operation == kv::DecodeOperation::kPlain) {
    finite = set.encode_plain(form.codes, from.data(), rows * dim, to.codes);
  } else {
    const std::uint32_t granule = granule_of(form, dim);
    finite = set.encode_affine_u8(from.data(), {.codes = to.codes,
                                                .scales = to.scales,
                                                .zeros = to.zeros,
                                                .granules = rows * (dim / granule),
                                                .granule = granule});
  }
  if (!finite) return first_bad_row(dim, from);
  return ok_status();
}

}  // namespace isthmus::transform
