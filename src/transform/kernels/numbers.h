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

// Scale and zero point of one row, "openvino.u8.by_token".
struct Affine {
  float scale = 0, inverse = 0, zero = 0;
  bool finite() const {
    return is_finite_bits(std::bit_cast<std::uint32_t>(scale)) &&
           is_finite_bits(std::bit_cast<std::uint32_t>(zero));
  }
};

inline Affine affine_u8(float lowest, float highest) {
  Affine affine;
  // The minimum of −0 and +0 depends on the order of comparison; adding +0 makes it +0.
  lowest += 0.0f;
  affine.scale = (highest - lowest) / 255.0f;
  if (affine.scale == 0.0f) affine.scale = 1e-4f;
  affine.inverse = 1.0f / affine.scale;
  affine.zero = -lowest / affine.scale;
  return affine;
}

// Clamping before rounding equals rounding before clamping, as both bounds are integers; a NaN (an infinite
// inverse times zero) becomes 0.
inline std::uint8_t code_u8(float value, const Affine& affine) {
  float code = std::fma(value, affine.inverse, affine.zero);
  code = code > 0.0f ? code : 0.0f;
  code = code < 255.0f ? code : 255.0f;
  return static_cast<std::uint8_t>(std::nearbyint(code));
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
