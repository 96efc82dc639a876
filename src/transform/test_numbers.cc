// SPDX-License-Identifier: Apache-2.0
// See test_numbers.h. Shares nothing with the kernels.
#include "transform/test_numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

std::uint32_t f16_bits(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
}

std::uint32_t bf16_bits(float value) {
  const std::uint32_t bits = bits_of(value), below = bits & 0xffffu, kept = bits >> 16;
  const bool up = below > 0x8000u || (below == 0x8000u && kept % 2 == 1);
  return kept + (up ? 1 : 0);
}

// Sign, exponent, significand, as the formats' specifications lay them out; NaN and infinity as NaN.
double small_number(std::uint32_t code, kv::Format format) {
  const bool is_e4 = format == kv::Format::kE4m3fn || format == kv::Format::kE4m3fnuz;
  const bool is_fnuz = format == kv::Format::kE4m3fnuz || format == kv::Format::kE5m2fnuz;
  const int mantissa_bits = is_e4 ? 3 : 2, bias = (is_e4 ? 7 : 15) + (is_fnuz ? 1 : 0);
  const int exponent = static_cast<int>(code >> mantissa_bits) & (is_e4 ? 15 : 31);
  const int mantissa = static_cast<int>(code) & ((1 << mantissa_bits) - 1);
  const bool is_nan = is_fnuz ? code == 0x80 : is_e4 ? (code & 0x7f) == 0x7f : exponent == 31;
  if (is_nan) return std::nan("");
  const double lead = mantissa + (exponent == 0 ? 0 : 1 << mantissa_bits);
  return ((code & 0x80) != 0 ? -1 : 1) * std::ldexp(lead, std::max(exponent, 1) - bias - mantissa_bits);
}

bool is_small(kv::Format format) {
  return format == kv::Format::kE4m3fn || format == kv::Format::kE4m3fnuz || format == kv::Format::kE5m2 ||
         format == kv::Format::kE5m2fnuz;
}

// Of all codes with the value's sign the nearest, the even one of two; truncated: the largest not above.
std::uint32_t small_code(float value, kv::Format format, bool truncates) {
  const double magnitude = std::abs(double{value});
  std::uint32_t best = 0;
  for (std::uint32_t code = 1; code < 0x80; ++code) {
    const double number = small_number(code, format);
    if (std::isnan(number)) continue;
    const double gain = std::abs(small_number(best, format) - magnitude) - std::abs(number - magnitude);
    if (truncates ? number <= magnitude : gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  const bool has_zero_sign = format == kv::Format::kE4m3fn || format == kv::Format::kE5m2;
  const bool is_signed = std::signbit(value) && (best != 0 || (has_zero_sign && !(truncates && value == 0)));
  return best | (is_signed ? 0x80u : 0u);
}

float number(std::uint32_t code, kv::Format format) {
  if (is_small(format)) return static_cast<float>(small_number(code, format));
  switch (format) {
    case kv::Format::kE8m0:
      return std::ldexp(1.0f, static_cast<int>(code) - 127);
    case kv::Format::kI8:
      return static_cast<float>(static_cast<std::int8_t>(code));
    case kv::Format::kU8:
    case kv::Format::kU4:
      return static_cast<float>(code);
    default:
      return to_float(code, format);
  }
}

// Halves first, then their sums and differences: without the factor.
TestRow sums(const TestRow& row) {
  if (row.size() == 1) return row;
  const auto middle = row.begin() + static_cast<std::ptrdiff_t>(row.size() / 2);
  const TestRow a = sums({row.begin(), middle}), b = sums({middle, row.end()});
  TestRow out;
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i] + b[i]);
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i] - b[i]);
  return out;
}

TestRow hadamard(const TestRow& row, std::size_t size) {
  TestRow out;
  for (std::size_t at = 0; at < row.size(); at += size) {
    const auto first = row.begin() + static_cast<std::ptrdiff_t>(at);
    for (const float sum : sums({first, first + static_cast<std::ptrdiff_t>(size)})) {
      out.push_back(sum * static_cast<float>(1 / std::sqrt(static_cast<double>(size))));
    }
  }
  return out;
}

// Rows are compared in interleaved order.
TestRow reordered(const TestRow& row, bool to_halves) {
  TestRow out(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t interleaved = i < row.size() / 2 ? 2 * i : 2 * (i - row.size() / 2) + 1;
    (to_halves ? out[i] : out[interleaved]) = to_halves ? row[interleaved] : row[i];
  }
  return out;
}

TestRow transformed(const TestRow& row, const std::string& transform, bool undo) {
  if (transform == "rope:halves") return reordered(row, !undo);
  if (transform == "rope:interleaved") return row;
  return hadamard(row, std::stoul(transform.substr(std::string("hadamard:").size())));
}

struct Range {
  float lowest, highest;
};
Range range_of(const TestRow& values) {
  // +0 counts as the lowest of zeros.
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  return {*lowest + 0.0f, *highest};
}

// Scale, zero point and codes of values that share them, OpenVINO's way.
void encode_affine(const TestRow& values, float scale, float steps, const std::vector<std::size_t>& places,
                   TestCodes& out) {
  if (scale == 0.0f) scale = 1e-4f;
  const float zero = -range_of(values).lowest / scale, inverse = 1.0f / scale;
  out.scales.push_back(bits_of(scale));
  out.zeros.push_back(bits_of(zero));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float code = std::nearbyint(std::fma(values[i], inverse, zero));
    out.codes[places[i]] = static_cast<std::uint32_t>(std::clamp(code, 0.0f, steps));
  }
}

void encode_row(const kv::DecodeForm& form, const TestRow& row, std::size_t at, TestCodes& out) {
  const float steps = form.codes == kv::Format::kU8 ? 255.0f : 15.0f;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < row.size(); ++i) places.push_back(at + i);
  const auto [lowest, highest] = range_of(row);
  encode_affine(row, (highest - lowest) / steps, steps, places, out);
}

void encode_channels(const kv::DecodeForm& form, const std::vector<TestRow>& rows, TestCodes& out) {
  const std::size_t dim = rows[0].size();
  for (std::size_t first = 0; first < rows.size(); first += form.granule_tokens) {
    const std::size_t end = std::min<std::size_t>(rows.size(), first + form.granule_tokens);
    for (std::size_t d = 0; d < dim; ++d) {
      TestRow channel;
      std::vector<std::size_t> places;
      for (std::size_t row = first; row < end; ++row) {
        channel.push_back(rows[row][d]);
        places.push_back(row * dim + d);
      }
      const auto [lowest, highest] = range_of(channel);
      encode_affine(channel, (highest - lowest) * (1.0f / 255.0f), 255.0f, places, out);
    }
  }
}

void encode_q8_0(const TestRow& row, std::size_t at, TestCodes& out) {
  for (std::size_t block = 0; block < row.size(); block += 32) {
    float largest = 0;
    for (std::size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(row[i]));
    out.scales.push_back(f16_bits(largest / 127.0f));
    const float inverse = largest == 0 ? 0 : 127.0f / largest;
    for (std::size_t i = block; i < block + 32; ++i) {
      out.codes[at + i] = static_cast<std::uint8_t>(std::lrint(row[i] * inverse));
    }
  }
}

void encode_q4_0(const TestRow& row, std::size_t at, TestCodes& out) {
  for (std::size_t block = 0; block < row.size(); block += 32) {
    float extreme = 0;
    for (std::size_t i = block; i < block + 32; ++i) {
      if (std::abs(row[i]) > std::abs(extreme)) extreme = row[i];
    }
    const float scale = extreme / -8.0f;
    out.scales.push_back(f16_bits(scale));
    const float inverse = scale == 0 ? 0 : 1.0f / scale;
    for (std::size_t i = block; i < block + 32; ++i) {
      const volatile float product = row[i] * inverse;
      out.codes[at + i] = static_cast<std::uint32_t>(std::min(15.0f, std::floor(product + 8.5f)));
    }
  }
}

// Codes that a granule's scale, or the descriptor's, gives their size.
std::uint32_t scaled_code(float value, const kv::DecodeForm& form) {
  if (is_small(form.codes)) return small_code(value, form.codes, form.recipe == "vllm.cpu.fp8");
  return static_cast<std::uint8_t>(std::lrint(std::clamp(value, -128.0f, 127.0f)));
}

float limit_of(kv::Format format) {
  switch (format) {
    case kv::Format::kI8:
      return 127;
    case kv::Format::kE4m3fn:
      return 448;
    case kv::Format::kE4m3fnuz:
      return 240;
    default:
      return 57344;
  }
}

// One granule: `granule_tokens` rows at most.
void encode_amax(const kv::DecodeForm& form, const std::vector<TestRow>& rows, std::size_t first,
                 std::size_t unit, TestCodes& out) {
  const std::size_t dim = rows[0].size(), begin = unit * form.granule_dim;
  const std::size_t end = std::min<std::size_t>(rows.size(), first + form.granule_tokens);
  float largest = 0;
  for (std::size_t row = first; row < end; ++row) {
    for (std::size_t i = begin; i < begin + form.granule_dim; ++i)
      largest = std::max(largest, std::abs(rows[row][i]));
  }
  const bool is_tile = form.recipe == "vllm.fp8_ds_mla", is_power = form.recipe == "vllm.fp8.ue8m0";
  float scale = (is_power ? std::max(largest, 1e-4f) : largest) / limit_of(form.codes);
  if (scale < 0x1p-126f) scale = is_tile ? 0x1p-126f : 1;
  const int exponent = static_cast<int>(std::ceil(std::log2(double{scale})));
  if (is_power || form.scale == kv::Format::kE8m0) scale = std::ldexp(1.0f, exponent);
  out.scales.push_back(form.scale == kv::Format::kE8m0 ? static_cast<std::uint32_t>(exponent + 127)
                                                       : bits_of(scale));
  const float inverse = 1.0f / scale;
  for (std::size_t row = first; row < end; ++row) {
    for (std::size_t i = begin; i < begin + form.granule_dim; ++i)
      out.codes[row * dim + i] = scaled_code(is_tile ? rows[row][i] / scale : rows[row][i] * inverse, form);
  }
}

}  // namespace

std::vector<TestRow> test_decode(const kv::WireComponent& numbers, std::uint32_t dim,
                                 const TestCodes& stored) {
  const kv::DecodeForm& form = numbers.form;
  std::vector<TestRow> rows;
  for (std::size_t at = 0; at < stored.codes.size(); ++at) {
    if (at % dim == 0) rows.emplace_back();
    float value = number(stored.codes[at], form.codes);
    if (form.operation == kv::DecodeOperation::kStaticScaled) {
      value *= form.static_scales.at(0);
    } else if (form.operation != kv::DecodeOperation::kPlain) {
      const std::size_t unit =
          at / dim / form.granule_tokens * (dim / form.granule_dim) + at % dim / form.granule_dim;
      if (form.operation == kv::DecodeOperation::kScaledZeroPoint)
        value -= number(stored.zeros[unit], form.zero);
      value -= static_cast<float>(form.zero_constant);
      value *= number(stored.scales[unit], form.scale);
    }
    rows.back().push_back(value);
  }
  for (TestRow& row : rows) {
    for (auto transform = numbers.value_transforms.rbegin(); transform != numbers.value_transforms.rend();
         ++transform) {
      row = transformed(row, *transform, true);
    }
  }
  return rows;
}

TestCodes test_encode(const kv::WireComponent& numbers, const std::vector<TestRow>& rows) {
  const kv::DecodeForm& form = numbers.form;
  std::vector<TestRow> stored = rows;
  for (TestRow& row : stored) {
    for (const std::string& transform : numbers.value_transforms) row = transformed(row, transform, false);
  }
  const std::size_t dim = rows[0].size();
  TestCodes out;
  out.codes.resize(rows.size() * dim);
  if (form.recipe == "openvino.u8.by_channel") encode_channels(form, stored, out);
  for (std::size_t row = 0; row < stored.size(); ++row) {
    if (form.recipe == "amax" || form.recipe.starts_with("vllm.fp8")) {
      for (std::size_t unit = 0; row % form.granule_tokens == 0 && unit < dim / form.granule_dim; ++unit)
        encode_amax(form, stored, row, unit, out);
    } else if (form.operation == kv::DecodeOperation::kStaticScaled) {
      for (std::size_t i = 0; i < dim; ++i)
        out.codes[row * dim + i] = scaled_code(stored[row][i] / form.static_scales.at(0), form);
    } else if (form.operation == kv::DecodeOperation::kPlain && is_small(form.codes)) {
      for (std::size_t i = 0; i < dim; ++i)
        out.codes[row * dim + i] = small_code(stored[row][i], form.codes, form.recipe == "vllm.cpu.fp8");
    } else if (form.operation == kv::DecodeOperation::kPlain) {
      std::transform(stored[row].begin(), stored[row].end(),
                     out.codes.begin() + static_cast<std::ptrdiff_t>(row * dim),
                     form.codes == kv::Format::kF32   ? bits_of
                     : form.codes == kv::Format::kF16 ? f16_bits
                                                      : bf16_bits);
    } else if (form.recipe == "ggml.q8_0.x86") {
      encode_q8_0(stored[row], row * dim, out);
    } else if (form.recipe == "ggml.q4_0") {
      encode_q4_0(stored[row], row * dim, out);
    } else if (form.granule_tokens == 1) {
      encode_row(form, stored[row], row * dim, out);
    }
  }
  return out;
}

}  // namespace isthmus::transform
