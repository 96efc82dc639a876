// SPDX-License-Identifier: Apache-2.0
// Row kernels: exhaustive against the compiler's own conversions, vector against scalar bit for bit.
#include "transform/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

constexpr std::array kChoices{KernelChoice::kVector, KernelChoice::kScalar};

kv::DecodeForm plain(kv::Format format) {
  return {.component = "k", .codes = format, .recipe = {}};
}

kv::DecodeForm u8_by_token(std::uint32_t dim) {
  return {.component = "k",
          .codes = kv::Format::kU8,
          .operation = kv::DecodeOperation::kScaledZeroPoint,
          .scale = kv::Format::kF32,
          .zero = kv::Format::kF32,
          .granule_dim = dim,
          .recipe = "openvino.u8.by_token"};
}

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// All 2^16 codes, at an address that is aligned for nothing.
std::vector<std::byte> all_codes() {
  std::vector<std::byte> bytes(1);
  for (std::uint32_t code = 0; code < 65536; ++code) {
    bytes.push_back(std::byte{static_cast<unsigned char>(code)});
    bytes.push_back(std::byte{static_cast<unsigned char>(code >> 8)});
  }
  return bytes;
}

TEST(DecodeRows, EveryF16AndBf16CodeHasItsValue) {
  std::vector<std::byte> codes = all_codes();
  for (const KernelChoice choice : kChoices) {
    std::vector<float> values(65536);
    decode_rows(plain(kv::Format::kF16), 64, 1024, codes.data() + 1, values, choice);
    for (std::uint32_t code = 0; code < 65536; ++code) {
      const auto expected = static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(code)));
      if (std::isnan(expected)) {
        // The payload moves as it is; hardware would set the quiet bit.
        ASSERT_EQ(bits_of(values[code]), (code & 0x8000u) << 16 | 0x7f800000u | (code & 0x3ffu) << 13);
      } else {
        ASSERT_EQ(bits_of(values[code]), bits_of(expected)) << code;
      }
    }
    decode_rows(plain(kv::Format::kBf16), 64, 1024, codes.data() + 1, values, choice);
    for (std::uint32_t code = 0; code < 65536; ++code) ASSERT_EQ(bits_of(values[code]), code << 16);
  }
}

TEST(EncodeRows, EveryFiniteF16AndBf16CodeComesBack) {
  const std::vector<std::byte> codes = all_codes();
  for (const kv::Format format : {kv::Format::kF16, kv::Format::kBf16}) {
    const std::uint32_t exponent = format == kv::Format::kF16 ? 0x7c00 : 0x7f80;
    std::vector<float> all(65536), finite;
    std::vector<std::uint32_t> expected;
    decode_rows(plain(format), 64, 1024, codes.data() + 1, all);
    for (std::uint32_t code = 0; code < 65536; ++code) {
      if ((code & exponent) == exponent) continue;
      finite.push_back(all[code]);
      expected.push_back(code);
    }
    for (const KernelChoice choice : kChoices) {
      std::vector<std::byte> back(finite.size() * 2 + 1);
      ASSERT_TRUE(encode_rows(plain(format), 1, finite.size(), finite, {back.data() + 1}, choice).ok());
      for (std::size_t i = 0; i < finite.size(); ++i) {
        ASSERT_EQ(std::to_integer<std::uint32_t>(back[1 + 2 * i]) |
                      std::to_integer<std::uint32_t>(back[2 + 2 * i]) << 8,
                  expected[i]);
      }
    }
  }
}

// Values on, beside and between all neighbours of f16, and over the whole range of f32.
std::vector<float> rounding_cases() {
  std::vector<float> values;
  for (std::uint32_t code = 0; code < 0x7c00; ++code) {
    const auto low = static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(code)));
    const auto high = code + 1 == 0x7c00
                          ? 65536.0f
                          : static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(code + 1)));
    const float middle = low + (high - low) / 2;
    for (const float value : {middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(uniform_at(1, 2, i) * 4294967296.0);
    const auto value = std::bit_cast<float>(bits);
    if (std::isfinite(value)) values.push_back(value);
  }
  for (const float value :
       {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), 0.0f, -0.0f}) {
    values.push_back(value);
    values.push_back(-value);
  }
  return values;
}

std::uint16_t expected_bf16(float value) {
  // The two neighbours are found by truncation and compared in double.
  const std::uint32_t low = bits_of(value) & 0xffff0000u;
  const std::uint32_t high = low + 0x10000u;
  if (!std::isfinite(std::bit_cast<float>(high))) return static_cast<std::uint16_t>(low >> 16);
  const double below = std::abs(double{value} - double{std::bit_cast<float>(low)});
  const double above = std::abs(double{std::bit_cast<float>(high)} - double{value});
  const bool up = above < below || (above == below && (low >> 16 & 1) != 0);
  return static_cast<std::uint16_t>((up ? high : low) >> 16);
}

TEST(EncodeRows, RoundsToNearestEvenAndClampsFiniteValues) {
  const std::vector<float> values = rounding_cases();
  for (const KernelChoice choice : kChoices) {
    std::vector<std::uint16_t> halves(values.size()), brains(values.size());
    ASSERT_TRUE(encode_rows(plain(kv::Format::kF16), 1, values.size(), values,
                            {std::as_writable_bytes(std::span(halves)).data()}, choice)
                    .ok());
    ASSERT_TRUE(encode_rows(plain(kv::Format::kBf16), 1, values.size(), values,
                            {std::as_writable_bytes(std::span(brains)).data()}, choice)
                    .ok());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float clamped = std::clamp(values[i], -65504.0f, 65504.0f);
      ASSERT_EQ(halves[i], std::bit_cast<std::uint16_t>(static_cast<_Float16>(clamped))) << values[i];
      ASSERT_EQ(brains[i], expected_bf16(values[i])) << values[i];
    }
  }
}

TEST(EncodeRows, NonFiniteInputIsCorruptWithRowAndElement) {
  for (const KernelChoice choice : kChoices) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::uint32_t at : {0u, 63u, 130u, 329u}) {
        std::vector<float> values(5 * 66, 1.0f);
        values[at] = bad;
        std::vector<std::byte> codes(values.size() * 4), scales(20), zeros(20);
        const RowArrays to{codes.data(), scales.data(), zeros.data()};
        for (const kv::DecodeForm& form :
             {plain(kv::Format::kF32), plain(kv::Format::kF16), plain(kv::Format::kBf16), u8_by_token(66)}) {
          const auto status = encode_rows(form, 66, 5, values, to, choice);
          ASSERT_EQ(status.code(), Code::kCorrupt);
          EXPECT_THAT(status.error().detail,
                      HasSubstr("row " + std::to_string(at / 66) + ", element " + std::to_string(at % 66)));
        }
      }
    }
  }
}

struct U8Rows {
  std::vector<std::byte> codes, scales, zeros;
  U8Rows(std::size_t rows, std::uint32_t dim) : codes(rows * dim), scales(rows * 4), zeros(rows * 4) {}
  RowArrays arrays() { return {codes.data(), scales.data(), zeros.data()}; }
  friend bool operator==(const U8Rows&, const U8Rows&) = default;
};

// Rows of every kind that the recipe must survive.
std::vector<float> u8_cases(std::size_t rows, std::uint32_t dim) {
  std::vector<float> values(rows * dim);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto kind = row % 8;
    for (std::uint32_t i = 0; i < dim; ++i) {
      const auto unit = static_cast<float>(uniform_at(3, row, i) * 2 - 1);
      float& value = values[row * dim + i];
      switch (kind) {
        case 0:
          value = unit;
          break;
        case 1:
          value = unit * 1e30f;
          break;
        case 2:
          value = 0.25f * static_cast<float>(row % 5);
          break;  // Constant.
        case 3:
          value = unit * 1e-40f;
          break;  // Denormal.
        case 4:
          value = i % 2 == 0 ? 0.0f : -0.0f;
          break;
        case 5:
          value = i == row % dim ? 1e4f : unit;
          break;  // One outlier.
        case 6:
          value = std::abs(unit) + 1000.0f;
          break;  // Far from zero.
        default:
          value = static_cast<float>(static_cast<_Float16>(unit * 8));
          break;
      }
    }
  }
  return values;
}

TEST(EncodeRows, U8ByTokenFollowsTheRecipeBitForBit) {
  for (const std::uint32_t dim : {64u, 72u, 128u, 7u}) {
    const std::size_t rows = 800;
    const std::vector<float> values = u8_cases(rows, dim);
    U8Rows vector(rows, dim), scalar(rows, dim);
    ASSERT_TRUE(encode_rows(u8_by_token(dim), dim, rows, values, vector.arrays()).ok());
    ASSERT_TRUE(
        encode_rows(u8_by_token(dim), dim, rows, values, scalar.arrays(), KernelChoice::kScalar).ok());
    EXPECT_EQ(vector, scalar);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(row * dim);
      const float lowest = *std::min_element(first, first + dim),
                  highest = *std::max_element(first, first + dim);
      float scale = (highest - lowest) / 255.0f;
      if (scale == 0.0f) scale = 1e-4f;
      const float zero = -lowest / scale, inverse = 1.0f / scale;
      float stored_scale = 0, stored_zero = 0;
      std::memcpy(&stored_scale, vector.scales.data() + row * 4, 4);
      std::memcpy(&stored_zero, vector.zeros.data() + row * 4, 4);
      ASSERT_EQ(bits_of(stored_scale), bits_of(scale));
      ASSERT_EQ(stored_zero, zero);
      if (!std::isfinite(inverse)) continue;  // Ranges below the smallest scale: all codes are taken as 0.
      for (std::uint32_t i = 0; i < dim; ++i) {
        const float code =
            std::clamp(std::nearbyint(std::fma(values[row * dim + i], inverse, zero)), 0.0f, 255.0f);
        ASSERT_EQ(std::to_integer<int>(vector.codes[row * dim + i]), static_cast<int>(code))
            << row << " " << i;
      }
    }
  }
}

TEST(EncodeRows, U8RowWithoutAFiniteScaleIsCorrupt) {
  std::vector<float> values(64, 1.0f);
  values[3] = 3e38f;
  values[4] = -3e38f;
  U8Rows to(1, 64);
  for (const KernelChoice choice : kChoices) {
    const auto status = encode_rows(u8_by_token(64), 64, 1, values, to.arrays(), choice);
    ASSERT_EQ(status.code(), Code::kCorrupt);
    EXPECT_THAT(status.error().detail, HasSubstr("no finite scale"));
  }
}

TEST(DecodeRows, U8ErrorIsAtMostHalfAStep) {
  const std::uint32_t dim = 64;
  const std::size_t rows = 800;
  const std::vector<float> values = u8_cases(rows, dim);
  U8Rows stored(rows, dim);
  ASSERT_TRUE(encode_rows(u8_by_token(dim), dim, rows, values, stored.arrays()).ok());
  std::vector<float> vector(values.size()), scalar(values.size());
  decode_rows(u8_by_token(dim), dim, rows, stored.arrays(), vector);
  decode_rows(u8_by_token(dim), dim, rows, stored.arrays(), scalar, KernelChoice::kScalar);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits_of(vector[i]), bits_of(scalar[i]));
    if ((i / dim) % 8 != 0) continue;
    float scale = 0;
    std::memcpy(&scale, stored.scales.data() + i / dim * 4, 4);
    ASSERT_NEAR(values[i], vector[i], scale * 0.501f);
  }
}

TEST(DecodeRows, ScaledCodesAreTheSameInBothKernels) {
  std::vector<std::byte> codes(4 * 64), scales(4 * 2 * 4), zeros(4 * 2 * 4);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = std::byte{static_cast<unsigned char>(i * 37)};
  for (std::size_t i = 0; i < 8; ++i) {
    const auto scale = static_cast<_Float16>(0.01f * static_cast<float>(i + 1));
    std::memcpy(scales.data() + 2 * i, &scale, 2);
    std::memcpy(zeros.data() + 2 * i, &scale, 2);
  }
  for (const kv::Format format : {kv::Format::kI8, kv::Format::kU8, kv::Format::kU4, kv::Format::kI4}) {
    for (const auto operation : {kv::DecodeOperation::kScaled, kv::DecodeOperation::kScaledZeroPoint}) {
      const kv::DecodeForm form{.component = "k",
                                .codes = format,
                                .operation = operation,
                                .scale = kv::Format::kF16,
                                .zero = kv::Format::kF16,
                                .granule_dim = 32,
                                .recipe = {}};
      ASSERT_TRUE(can_decode(form, 64).ok());
      std::vector<float> vector(4 * 64), scalar(4 * 64);
      const ConstRowArrays from(codes.data(), scales.data(), zeros.data());
      decode_rows(form, 64, 4, from, vector);
      decode_rows(form, 64, 4, from, scalar, KernelChoice::kScalar);
      for (std::size_t i = 0; i < vector.size(); ++i) {
        ASSERT_EQ(bits_of(vector[i]), bits_of(scalar[i]));
        const std::size_t bit = i * kv::bits(format);
        int code = std::to_integer<int>(codes[bit / 8]) >> (bit % 8) & ((1 << kv::bits(format)) - 1);
        const bool is_signed = format == kv::Format::kI8 || format == kv::Format::kI4;
        if (is_signed && code >= 1 << (kv::bits(format) - 1)) code -= 1 << kv::bits(format);
        const std::size_t granule = i / 32;
        const auto scale = static_cast<float>(static_cast<_Float16>(0.01f * static_cast<float>(granule + 1)));
        const float zero = operation == kv::DecodeOperation::kScaled ? 0.0f : scale;
        ASSERT_EQ(vector[i], (static_cast<float>(code) - zero) * scale);
      }
    }
  }
}

TEST(CanEncode, RefusesFormsWithoutAKernelByName) {
  EXPECT_TRUE(can_encode(u8_by_token(64), 64).ok());
  kv::DecodeForm form = u8_by_token(64);
  form.recipe = "other";
  EXPECT_EQ(can_encode(form, 64).code(), Code::kUnsupported);
  EXPECT_THAT(can_encode(form, 64).error().detail, HasSubstr("codes=u8"));
  form = plain(kv::Format::kE4m3fn);  // Whose recipe isn't said.
  EXPECT_EQ(can_encode(form, 64).code(), Code::kUnsupported);
  form.recipe = "vllm.cpu.fp8";
  EXPECT_TRUE(can_encode(form, 64).ok());
  form.codes = kv::Format::kE4m3fnuz;
  EXPECT_EQ(can_encode(form, 64).code(), Code::kUnsupported);
  EXPECT_TRUE(can_decode(form, 64).ok());
  form = u8_by_token(64);
  form.granule_tokens = 32;
  EXPECT_EQ(can_encode(form, 64).code(), Code::kUnsupported);
  EXPECT_EQ(can_encode(u8_by_token(48), 64).code(), Code::kUnsupported);
}

}  // namespace
}  // namespace isthmus::transform
