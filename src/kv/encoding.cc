// SPDX-License-Identifier: Apache-2.0
// See encoding.h.
#include "kv/encoding.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace isthmus::kv {
namespace {

bool is_integer(Format format) {
  return format == Format::kU8 || format == Format::kI8 || format == Format::kU4 || format == Format::kI4;
}

bool is_small_float(Format format) {
  return format == Format::kE4m3fn || format == Format::kE4m3fnuz || format == Format::kE5m2 ||
         format == Format::kE5m2fnuz;
}

bool is_plain(const DecodeForm& form) {
  return form.operation == DecodeOperation::kPlain;
}

Error unsupported(std::string text) {
  return Error{Code::kUnsupported, std::move(text)};
}

Status check_whole_bytes(const DecodeForm& form, std::uint64_t units, Format format) {
  if (units * bits(format) % 8 == 0) return {};
  return unsupported(fmt::format("not implemented: a row of {} {} elements of {} isn't whole bytes", units,
                                 name(format), form.component));
}

// One way to make codes: the form that the recipe gives, for rows of `dim` elements (0: as wide as the row).
struct Row {
  std::string_view recipe;
  Encoder encoder;
  Format codes;
  DecodeOperation operation;
  Format scale;
  std::uint32_t granule_dim;
  bool spans_tokens;
  bool high_nibble_first;
};

constexpr std::array<Row, 6> kRows{{
    {"openvino.u8.by_token", Encoder::kAffineRow, Format::kU8, DecodeOperation::kScaledZeroPoint,
     Format::kF32, 0, false, false},
    {"openvino.u4.by_token", Encoder::kAffineRow, Format::kU4, DecodeOperation::kScaledZeroPoint,
     Format::kF32, 0, false, true},
    {"openvino.u8.by_channel", Encoder::kAffineChannel, Format::kU8, DecodeOperation::kScaledZeroPoint,
     Format::kF32, 1, true, false},
    {"ggml.q8_0.x86", Encoder::kSymmetric8, Format::kI8, DecodeOperation::kScaled, Format::kF16, 32, false,
     false},
    {"ggml.q8_0.reference", Encoder::kReference8, Format::kI8, DecodeOperation::kScaled, Format::kF16, 32,
     false, false},
    {"ggml.q4_0", Encoder::kExtreme4, Format::kU4, DecodeOperation::kScaledConstantZero, Format::kF16, 32,
     false, false},
}};

bool makes(const Row& row, const DecodeForm& form, std::uint32_t dim) {
  return row.recipe == form.recipe && row.codes == form.codes && row.operation == form.operation &&
         row.scale == form.scale &&
         (form.operation != DecodeOperation::kScaledZeroPoint || form.zero == Format::kF32) &&
         (form.operation != DecodeOperation::kScaledConstantZero || form.zero_constant == 8) &&
         form.granule_dim == (row.granule_dim == 0 ? dim : row.granule_dim) &&
         (form.granule_tokens > 1) == row.spans_tokens && form.high_nibble_first == row.high_nibble_first;
}

// vLLM's own ways to a scale for some elements of a token.
Encoder vllm_fp8_of(const DecodeForm& form) {
  const bool is_form =
      form.operation == DecodeOperation::kScaled && form.codes == Format::kE4m3fn && form.granule_tokens == 1;
  if (is_form && form.recipe == "vllm.fp8_ds_mla" && form.scale == Format::kF32) return Encoder::kVllmTile;
  const bool is_power = form.scale == Format::kF32 || form.scale == Format::kE8m0;
  if (is_form && form.recipe == "vllm.fp8.ue8m0" && is_power) return Encoder::kVllmPowerOfTwo;
  return Encoder::kPlain;
}

// One scale for a granule of any elements and tokens.
bool makes_amax(const DecodeForm& form) {
  const bool is_signed = is_small_float(form.codes) || form.codes == Format::kI8 || form.codes == Format::kI4;
  return form.recipe == "amax" && form.operation == DecodeOperation::kScaled && is_signed &&
         (is_float(form.scale) || form.scale == Format::kE8m0);
}

}  // namespace

Status movable(const DecodeForm& form, std::uint32_t dim) {
  ISTHMUS_TRY(check_whole_bytes(form, dim, form.codes));
  if (!has_stored_scale(form.operation)) return {};
  if (form.granule_tokens == 0 || kTokensOfTile % form.granule_tokens != 0) {
    return unsupported(fmt::format("not implemented: a scale that spans {} tokens, which don't divide {}",
                                   form.granule_tokens, kTokensOfTile));
  }
  if (form.granule_dim == 0 || dim % form.granule_dim != 0) {
    return unsupported(
        fmt::format("not implemented: a scale of {} elements in rows of {}", form.granule_dim, dim));
  }
  ISTHMUS_TRY(check_whole_bytes(form, dim / form.granule_dim, form.scale));
  if (form.operation != DecodeOperation::kScaledZeroPoint) return {};
  return check_whole_bytes(form, dim / form.granule_dim, form.zero);
}

Status decodable(const DecodeForm& form, std::uint32_t dim) {
  ISTHMUS_TRY(movable(form, dim));
  if (is_plain(form)) return {};
  const bool has_numbers = is_integer(form.codes) || is_small_float(form.codes);
  const bool has_scale =
      !has_stored_scale(form.operation) || is_float(form.scale) || form.scale == Format::kE8m0;
  const bool has_zero = form.operation != DecodeOperation::kScaledZeroPoint || is_float(form.zero);
  if (has_numbers && has_scale && has_zero) return {};
  return unsupported(fmt::format("conversion not implemented: from \"{}\"", form.text()));
}

Result<Encoder> encoder_of(const DecodeForm& form, std::uint32_t dim) {
  ISTHMUS_TRY(movable(form, dim));
  const bool is_static = form.operation == DecodeOperation::kStaticScaled &&
                         (is_integer(form.codes) || is_small_float(form.codes));
  if (is_plain(form) || is_static) {
    if (is_float(form.codes) || form.recipe == "nearest_even") return Encoder::kPlain;
    const bool is_vllm = form.codes == Format::kE4m3fn || form.codes == Format::kE5m2;
    if (is_vllm && form.recipe == "vllm.cpu.fp8") return Encoder::kVllmFp8;
  }
  if (makes_amax(form)) return Encoder::kAmax;
  if (const Encoder vllm = vllm_fp8_of(form); vllm != Encoder::kPlain) return vllm;
  const auto* row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& one) { return makes(one, form, dim); });
  if (row != kRows.end()) return row->encoder;
  std::string known =
      "plain f32, f16, bf16, nearest_even, vllm.cpu.fp8, amax, vllm.fp8_ds_mla, vllm.fp8.ue8m0";
  for (const Row& one : kRows) known += fmt::format(", {}", one.recipe);
  return unsupported(fmt::format("conversion not implemented: to \"{}\" by recipe \"{}\"; only {}",
                                 form.text(), form.recipe, known));
}

}  // namespace isthmus::kv
