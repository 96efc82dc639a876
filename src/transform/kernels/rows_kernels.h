// SPDX-License-Identifier: Apache-2.0
// Kernels over contiguous arrays at any alignment, each as a scalar twin and as a vector version with equal
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/format.h"

namespace isthmus::transform::kernels {

// An array of stored elements that share scale and zero point in runs of `granule` elements.
struct Scaled {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* zeros = nullptr;  // Null: no zero point.
  kv::Format code_format = kv::Format::kU8, scale_format = kv::Format::kF32, zero_format = kv::Format::kF32;
  std::uint64_t granules = 0;
  std::uint32_t granule = 0;
};

// u8 codes with f32 scale and zero point for each run of `granule` elements.
struct AffineU8 {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::byte* zeros = nullptr;
  std::uint64_t granules = 0;
  std::uint32_t granule = 0;
};

struct KernelSet {
  // f32 <- format; f32, f16 and bf16, and for u8, i8, u4, i4 codes as plain numbers.
  void (*decode_plain)(kv::Format format, const std::byte* from, std::uint64_t elements, float* to);
  void (*decode_scaled)(const Scaled& from, float* to);
  // False if an input isn't finite; `to` is unspecified then. `to` may be `from` for f32.
  bool (*encode_plain)(kv::Format format, const float* from, std::uint64_t elements, std::byte* to);
  // False if an input, a scale or a zero point isn't finite.
  bool (*encode_affine_u8)(const float* from, const AffineU8& to);
};

const KernelSet& scalar_kernels();
const KernelSet& vector_kernels();  // For this machine, chosen at the first call of each kernel.

}  // namespace isthmus::transform::kernels
