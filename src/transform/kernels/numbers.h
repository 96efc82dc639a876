// SPDX-License-Identifier: Apache-2.0
// Exact conversions of single numbers; the definition that the vector kernels must match bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace isthmus::transform::kernels {

// f32 bit patterns.
inline constexpr std::uint32_t kSign = 0x80000000u;
inline constexpr std::uint32_t kInfinity = 0x7f800000u;
inline constexpr std::uint32_t kF16MaxBits = 0x477fe000u;        // 65504.
inline constexpr std::uint32_t kBf16MaxBits = 0x7f7f0000u;       // The largest bf16.
inline constexpr std::uint32_t kF16MinNormalBits = 0x38800000u;  // 2^-14.
inline constexpr std::uint32_t kHalfBits = 0x3f000000u;  // 0.5: adding it rounds f16 subnormals at 2^-24.

inline bool is_finite_bits(std::uint32_t bits) {
  return (bits & ~kSign) < kInfinity;
}

// Integer steps, not the hardware instruction: a signalling NaN keeps its bits on every machine.
inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t shifted = std::uint32_t{half & 0x7fffu} << 13;
  const std::uint32_t exponent = shifted & 0x0f800000u;
  std::uint32_t bits = shifted + (112u << 23);
  if (exponent == 0x0f800000u) bits += 112u << 23;
  if (exponent == 0) {
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted + (113u << 23)) -
                                        std::bit_cast<float>(113u << 23));
  }
  return std::bit_cast<float>(bits | sign);
}

inline float bf16_to_f32(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

// Nearest even; a finite value beyond the largest f16 becomes the largest. Undefined meaning for non-finite
// input.
inline std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = std::min(bits & ~kSign, kF16MaxBits);
  std::uint32_t half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1)) >> 13;
  if (magnitude < kF16MinNormalBits) {
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - kHalfBits;
  }
  return static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000u));
}

inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = std::min(bits & ~kSign, kBf16MaxBits);
  return static_cast<std::uint16_t>(((magnitude + 0x7fffu + ((magnitude >> 16) & 1)) >> 16) |
                                    (bits >> 16 & 0x8000u));
}

// Scale and zero point of one group of values, the recipes "openvino.*".
struct Affine {
  float scale = 0, inverse = 0, zero = 0;
  bool finite() const {
    return is_finite_bits(std::bit_cast<std::uint32_t>(scale)) &&
           is_finite_bits(std::bit_cast<std::uint32_t>(zero));
  }
};

// Of values in [lowest, highest] whose range is `scale` times the number of steps.
inline Affine affine_of(float lowest, float scale) {
  Affine affine;
  affine.scale = scale == 0.0f ? 1e-4f : scale;
  affine.inverse = 1.0f / affine.scale;
  affine.zero = -lowest / affine.scale;
  return affine;
}

// A row: the range is divided by the number of steps.
inline Affine affine_row(float lowest, float highest, float steps) {
  // The minimum of −0 and +0 depends on the order of comparison; adding +0 makes it +0.
  lowest += 0.0f;
  return affine_of(lowest, (highest - lowest) / steps);
}

// A channel: the range is multiplied by the rounded reciprocal of 255.
inline Affine affine_channel(float lowest, float highest) {
  lowest += 0.0f;
  return affine_of(lowest, (highest - lowest) * (1.0f / 255.0f));
}

// Clamping before rounding equals rounding before clamping, as both bounds are integers; a NaN (an infinite
// inverse times zero) becomes 0.
inline std::uint8_t affine_code(float value, const Affine& affine, float steps) {
  float code = std::fma(value, affine.inverse, affine.zero);
  code = code > 0.0f ? code : 0.0f;
  code = code < steps ? code : steps;
  return static_cast<std::uint8_t>(std::nearbyint(code));
}

// The largest magnitude that f32_to_f16 doesn't have to clamp: below 65520 rounds to 65504.
inline constexpr float kF16OverflowFrom = 65520.0f;

// One block of a ggml recipe: its scale, and what values are multiplied by to become codes.
struct Block {
  float scale = 0, inverse = 0;
  bool fits_f16() const { return std::fabs(scale) < kF16OverflowFrom; }
  // Below 2^-128 or so the inverse overflows; the engines' codes are then a constant.
  bool has_codes() const { return is_finite_bits(std::bit_cast<std::uint32_t>(inverse)); }
};

inline Block q8_0_block(float largest) {
  return {largest / 127.0f, largest != 0.0f ? 127.0f / largest : 0.0f};
}

inline constexpr std::int8_t kQ8NoCode = -128;

inline std::int8_t q8_0_code(float value, const Block& block) {
  return block.has_codes() ? static_cast<std::int8_t>(std::nearbyint(value * block.inverse)) : kQ8NoCode;
}

// `extreme`: the first value of the largest magnitude, sign included.
inline Block q4_0_block(float extreme) {
  const float scale = extreme / -8.0f;
  return {scale, scale != 0.0f ? 1.0f / scale : 0.0f};
}

inline std::uint8_t q4_0_code(float value, const Block& block) {
  if (!block.has_codes()) return 0;
  const float product = value * block.inverse;  // Apart, so that it is rounded before the sum.
  const int code = static_cast<int>(product + 8.5f);
  return static_cast<std::uint8_t>(code < 15 ? code : 15);
}

// What a hadamard of `size` elements divides its sums by, as a factor.
inline float hadamard_factor(std::uint32_t size) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

}  // namespace isthmus::transform::kernels
