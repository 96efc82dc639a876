// SPDX-License-Identifier: Apache-2.0
// Exact conversions of single numbers; the definition that the vector kernels must match bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kv/format.h"
#include "transform/kernels/rows_kernels.h"

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

// A format of one sign bit, exponent and mantissa in 8 bits.
struct SmallFloat {
  std::uint32_t mantissa_bits = 0;
  std::uint32_t bias = 0;
  std::uint32_t largest = 0;  // Code of the largest finite value.
  bool is_fnuz = false;       // 0x80 is the only NaN, there's no -0.
  constexpr std::uint32_t min_normal_bits() const { return (128 - bias) << 23; }
  constexpr float ulp() const {  // Of the subnormals.
    return std::bit_cast<float>((128 - bias - mantissa_bits) << 23);
  }
  constexpr std::uint32_t largest_bits() const {
    return (largest << (23 - mantissa_bits)) + ((127 - bias) << 23);
  }
};
constexpr bool is_small_float(kv::Format format) {
  return format == kv::Format::kE4m3fn || format == kv::Format::kE4m3fnuz || format == kv::Format::kE5m2 ||
         format == kv::Format::kE5m2fnuz;
}
constexpr SmallFloat small_float(kv::Format format) {
  switch (format) {
    case kv::Format::kE4m3fn:
      return {3, 7, 0x7e, false};
    case kv::Format::kE4m3fnuz:
      return {3, 8, 0x7f, true};
    case kv::Format::kE5m2:
      return {2, 15, 0x7b, false};
    default:
      return {2, 16, 0x7f, true};
  }
}

inline constexpr std::uint32_t kQuietNan = 0x7fc00000u;

// An infinity or NaN of e5m2 keeps its mantissa bits, as f16 does; other NaNs are the quiet one, signed where
// two codes are NaNs.
inline float small_float_to_f32(std::uint8_t code, const SmallFloat& format) {
  const std::uint32_t magnitude = code & 0x7fu;
  std::uint32_t sign = std::uint32_t{code & 0x80u} << 24;
  std::uint32_t bits = (magnitude << (23 - format.mantissa_bits)) + ((127 - format.bias) << 23);
  if (magnitude < 1u << format.mantissa_bits) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * format.ulp());
  }
  if (magnitude > format.largest)
    bits = format.mantissa_bits == 2 ? kInfinity | (magnitude & 3) << 21 : kQuietNan;
  if (format.is_fnuz && code == 0x80) {
    bits = kQuietNan;
    sign = 0;
  }
  return std::bit_cast<float>(bits | sign);
}

// Nearest even of a magnitude, in units of 2^-mantissa_bits of its binade, to the code of the format.
inline std::uint8_t f32_to_small_float(float value, const SmallFloat& format) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = std::min(bits & ~kSign, format.largest_bits());
  const std::uint32_t shift = 23 - format.mantissa_bits;
  std::uint32_t code = (magnitude + (1u << (shift - 1)) - 1 + ((magnitude >> shift) & 1)) >> shift;
  code -= (127 - format.bias) << format.mantissa_bits;
  if (magnitude < format.min_normal_bits()) {
    // In a sum with 2^23 ulps the last bit is one ulp.
    const float base = format.ulp() * 8388608.0f;
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + base) -
           std::bit_cast<std::uint32_t>(base);
  }
  if (format.is_fnuz && code == 0) return 0;
  return static_cast<std::uint8_t>(code | (bits >> 24 & 0x80u));
}

// The recipe "vllm.cpu.fp8": clamp, then towards zero; zeros lose their sign, what becomes zero keeps it.
// e4m3fn values are first rounded, nearest even, to multiples of 2^-29.
inline constexpr float kVllmScale = 0x1p-120f;  // Makes f32's exponent field that of e4m3fn.
inline std::uint8_t f32_to_vllm_fp8(float value, kv::Format format) {
  if (value == 0.0f) return 0;
  const SmallFloat small = small_float(format);
  const bool is_e4m3 = format == kv::Format::kE4m3fn;
  const auto sign = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(value) >> 24 & 0x80u);
  const std::uint32_t magnitude =
      std::min(std::bit_cast<std::uint32_t>(value) & ~kSign, small.largest_bits());
  if (is_e4m3) {
    const float shifted = std::bit_cast<float>(magnitude) * kVllmScale;
    return static_cast<std::uint8_t>(sign | std::bit_cast<std::uint32_t>(shifted) >> 20);
  }
  std::uint32_t code = (magnitude >> 21) - ((127 - small.bias) << 2);
  if (magnitude < small.min_normal_bits()) {
    code = static_cast<std::uint32_t>(std::bit_cast<float>(magnitude) / small.ulp());
  }
  return static_cast<std::uint8_t>(sign | code);
}

// Powers of two; 0xff is the NaN.
inline float e8m0_to_f32(std::uint8_t code) {
  if (code == 0xff) return std::bit_cast<float>(kQuietNan);
  return std::bit_cast<float>(code == 0 ? 0x00400000u : std::uint32_t{code} << 23);
}
// Nearest, ties to the larger, clamped; of a positive finite value.
inline std::uint8_t f32_to_e8m0(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (bits < 0x00800000u) return bits < 0x00600000u ? 0 : 1;  // 2^-127 is subnormal in f32.
  return static_cast<std::uint8_t>(std::min((bits + 0x400000u) >> 23, 254u));
}

// The finite numbers of a format lie between these.
struct Bounds {
  float lowest = 0, highest = 0;
};
constexpr Bounds bounds_of(kv::Format format) {
  const auto symmetric = [](std::uint32_t bits) {
    return Bounds{-std::bit_cast<float>(bits), std::bit_cast<float>(bits)};
  };
  switch (format) {
    case kv::Format::kF32:
      return symmetric(kInfinity - 1);
    case kv::Format::kF16:
      return symmetric(kF16MaxBits);
    case kv::Format::kBf16:
      return symmetric(kBf16MaxBits);
    case kv::Format::kE8m0:
      return {0x1p-127f, 0x1p127f};
    case kv::Format::kI8:
      return {-128, 127};
    case kv::Format::kU8:
      return {0, 255};
    case kv::Format::kI4:
      return {-8, 7};
    case kv::Format::kU4:
      return {0, 15};
    default:
      return symmetric(small_float(format).largest_bits());
  }
}
inline bool is_beyond(float value, kv::Format format) {
  const auto [lowest, highest] = bounds_of(format);
  return value < lowest || value > highest;
}
inline std::uint8_t f32_to_integer(float value, kv::Format format) {
  const auto [lowest, highest] = bounds_of(format);
  return static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(std::clamp(value, lowest, highest))));
}

// The recipe "amax": the limit that the largest magnitude of a granule becomes.
constexpr float amax_limit(kv::Format format) {
  return bounds_of(format).highest;
}
inline constexpr float kLeastScale = 0x1p-126f;  // A smaller one has no finite inverse.
// The smallest number of a scale's format that isn't below a scale of at least kLeastScale: so codes stay
// within their limit. Infinite if f16 has none.
inline float scale_up(float scale, kv::Format format) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  switch (format) {
    case kv::Format::kBf16:
      return std::bit_cast<float>((bits + 0xffffu) & 0xffff0000u);
    case kv::Format::kE8m0:
      return std::bit_cast<float>((bits + 0x7fffffu) & kInfinity);
    case kv::Format::kF16: {
      const std::uint16_t nearest = f32_to_f16(scale);
      return f16_to_f32(static_cast<std::uint16_t>(nearest + (f16_to_f32(nearest) < scale ? 1 : 0)));
    }
    default:
      return scale;
  }
}
// What a granule without a scale of at least kLeastScale gets.
constexpr float scale_of_nothing(ScaleRule rule) {
  return rule == ScaleRule::kTile ? kLeastScale : 1.0f;
}
inline constexpr float kLeastPowerOfTwoMagnitude =
    1e-4f;  // Of ScaleRule::kPowerOfTwo: a smaller one counts as this.
inline float amax_scale(float largest, kv::Format codes, kv::Format scale_format, ScaleRule rule) {
  const bool is_power = rule == ScaleRule::kPowerOfTwo;
  if (is_power) largest = std::max(largest, kLeastPowerOfTwoMagnitude);
  const float least = largest / amax_limit(codes);
  if (least < kLeastScale) return scale_of_nothing(rule);
  return scale_up(least, is_power ? kv::Format::kE8m0 : scale_format);
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

// ggml's reference quantiser: the reciprocal of the scale, halves away from zero.
inline Block q8_0_reference_block(float largest) {
  const float scale = largest / 127.0f;
  return {scale, scale != 0.0f ? 1.0f / scale : 0.0f};
}

inline std::int8_t q8_0_reference_code(float value, const Block& block) {
  return block.has_codes() ? static_cast<std::int8_t>(std::round(value * block.inverse)) : kQ8NoCode;
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
