// SPDX-License-Identifier: Apache-2.0
// Kernels over contiguous arrays at any alignment, each as a scalar twin and as a vector version with equal
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/format.h"

namespace isthmus::transform::kernels {

// Plain stored numbers that an encoder reads, as they lie: f32, f16 or bf16.
struct Numbers {
  kv::Format format = kv::Format::kF32;
  const std::byte* at = nullptr;
};

// Plain codes, of values that are divided by a static scale first.
struct PlainTarget {
  kv::Format format = kv::Format::kF32;
  std::byte* at = nullptr;
  float divisor = 1;       // Positive and finite; 1 for f32, f16, bf16, e8m0.
  bool truncates = false;  // The recipe "vllm.cpu.fp8": e4m3fn and e5m2 only.
};

// How values became codes; of several, the worst counts.
enum class Outcome : std::uint8_t {
  kWhole,
  kSaturated,  // Perhaps: a magnitude was above the format's largest number, and clamped if it was beyond.
  kNotFinite,  // A value isn't finite, or e8m0 has none for it; what was written is unspecified.
};
inline Outcome worse(Outcome a, Outcome b) {
  return a > b ? a : b;
}

// An array of stored elements that share scale and zero point in runs of `granule` elements.
struct Scaled {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* zeros = nullptr;  // Null: `zero_constant` for all.
  kv::Format code_format = kv::Format::kU8, scale_format = kv::Format::kF32, zero_format = kv::Format::kF32;
  float zero_constant = 0;
  std::uint64_t granules = 0;
  std::uint32_t granule = 0;
};

// Codes [rows][dim] whose element d shares scale and zero point with that of `group` rows: scales
// [groups][dim].
struct ScaledChannels {
  Scaled arrays;  // granules and granule aren't used.
  std::uint64_t rows = 0;
  std::uint32_t dim = 0, group = 1;
};

// Where codes with a scale (and zero point) for each run of `granule` elements go.
struct Encoded {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::byte* zeros = nullptr;
  std::uint64_t granules = 0;
  std::uint32_t granule = 0;
};

// How the largest magnitude of a granule becomes its scale, and values codes.
enum class ScaleRule : std::uint8_t {
  kAmax,        // "amax"
  kTile,        // "vllm.fp8_ds_mla"
  kPowerOfTwo,  // "vllm.fp8.ue8m0"
};

// Codes [rows][dim] with a scale for each `granule` elements of `group` rows: [row groups][dim / granule].
struct EncodedGroups {
  ScaleRule rule = ScaleRule::kAmax;  // The others: e4m3fn codes, scales in f32 or e8m0.
  kv::Format code_format = kv::Format::kI8, scale_format = kv::Format::kF32;
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::uint64_t rows = 0;
  std::uint32_t dim = 0, granule = 0, group = 1;
};

// u8 codes [rows][dim], f32 scales and zero points [groups][dim].
struct EncodedChannels {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::byte* zeros = nullptr;
  std::uint64_t rows = 0;
  std::uint32_t dim = 0, group = 1;
};

struct KernelSet {
  // f32 <- any format.
  void (*decode_plain)(kv::Format format, const std::byte* from, std::uint64_t elements, float* to);
  // Plain f32, f16 or bf16 <- codes with scales; f32 is written even if it isn't finite, of the others what
  // was written is unspecified unless all is whole.
  Outcome (*decode_scaled)(const Scaled& from, kv::Format format, std::byte* to);
  Outcome (*decode_channels)(const ScaledChannels& from, kv::Format format, std::byte* to);
  // Nearest even, or truncated; e8m0 takes positive values only. 4-bit codes: an even number of elements.
  // `to` may be `from` for equal formats.
  Outcome (*encode_plain)(const PlainTarget& to, const Numbers& from, std::uint64_t elements);
  // The others answer false if an input, a scale or a zero point isn't finite; `to` is unspecified then.
  // Signed integer or 8-bit float codes; scales in f32, f16, bf16 or e8m0.
  bool (*encode_amax)(const Numbers& from, const EncodedGroups& to);
  // u8 codes, or u4 with an even granule; f32 scales and zero points.
  bool (*encode_affine)(kv::Format codes, const Numbers& from, const Encoded& to);
  bool (*encode_channels)(const Numbers& from, const EncodedChannels& to);
  bool (*encode_q8_0)(const Numbers& from, const Encoded& to);  // i8 codes, f16 scales.
  bool (*encode_q8_0_reference)(const Numbers& from, const Encoded& to);
  bool (*encode_q4_0)(const Numbers& from, const Encoded& to);  // u4 codes, f16 scales; an even granule.
  // In place on each `size` elements, a power of two that divides `elements`.
  void (*hadamard)(float* values, std::uint64_t elements, std::uint32_t size);
};

const KernelSet& scalar_kernels();
const KernelSet& vector_kernels();  // For this machine, chosen at the first call of each kernel.

}  // namespace isthmus::transform::kernels
