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
  // Plain f32, f16 or bf16 <- codes with scales; false if a number isn't finite, `to` is unspecified then
  // unless it is f32.
  bool (*decode_scaled)(const Scaled& from, kv::Format format, std::byte* to);
  bool (*decode_channels)(const ScaledChannels& from, kv::Format format, std::byte* to);
  // The encoders answer false if an input, a scale or a zero point isn't finite; `to` is unspecified then.
  // `to` may be `from` for equal formats.
  // Nearest even to any format; e8m0 takes positive values only. 4-bit codes: an even number of elements.
  bool (*encode_plain)(kv::Format format, const Numbers& from, std::uint64_t elements, std::byte* to);
  bool (*encode_vllm)(kv::Format format, const Numbers& from, std::uint64_t elements, std::byte* to);
  // Signed integer or 8-bit float codes, f32 scales; an even granule of 4-bit codes.
  bool (*encode_amax)(kv::Format codes, const Numbers& from, const Encoded& to);
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
