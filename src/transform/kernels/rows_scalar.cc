// SPDX-License-Identifier: Apache-2.0
// The scalar twins: one number at a time, written for reading.
#include "base/check.h"
#include "transform/kernels/numbers.h"
#include "transform/kernels/rows_kernels.h"

namespace isthmus::transform::kernels {
namespace {

int nibble_at(const std::byte* from, std::uint64_t index) {
  return std::to_integer<int>(from[index / 2] >> static_cast<int>(index % 2 * 4)) & 0x0f;
}

float number_at(kv::Format format, const std::byte* from, std::uint64_t index) {
  switch (format) {
    case kv::Format::kF32:
      return load<float>(from + index * 4);
    case kv::Format::kF16:
      return f16_to_f32(load<std::uint16_t>(from + index * 2));
    case kv::Format::kBf16:
      return bf16_to_f32(load<std::uint16_t>(from + index * 2));
    case kv::Format::kU8:
      return static_cast<float>(load<std::uint8_t>(from + index));
    case kv::Format::kI8:
      return static_cast<float>(load<std::int8_t>(from + index));
    case kv::Format::kU4:
      return static_cast<float>(nibble_at(from, index));
    case kv::Format::kI4:
      return static_cast<float>((nibble_at(from, index) ^ 8) - 8);
    default:
      ISTHMUS_CHECK(false);
  }
}

void decode_plain(kv::Format format, const std::byte* from, std::uint64_t elements, float* to) {
  for (std::uint64_t i = 0; i < elements; ++i) to[i] = number_at(format, from, i);
}

void decode_scaled(const Scaled& from, float* to) {
  for (std::uint64_t g = 0; g < from.granules; ++g) {
    const float scale = number_at(from.scale_format, from.scales, g);
    const float zero = from.zeros == nullptr ? 0.0f : number_at(from.zero_format, from.zeros, g);
    for (std::uint64_t i = g * from.granule; i < (g + 1) * from.granule; ++i) {
      const float code = number_at(from.code_format, from.codes, i);
      to[i] = (from.zeros == nullptr ? code : code - zero) * scale;
    }
  }
}

bool encode_plain(kv::Format format, const float* from, std::uint64_t elements, std::byte* to) {
  for (std::uint64_t i = 0; i < elements; ++i) {
    if (!is_finite_bits(std::bit_cast<std::uint32_t>(from[i]))) return false;
    switch (format) {
      case kv::Format::kF32:
        store(to + i * 4, from[i]);
        break;
      case kv::Format::kF16:
        store(to + i * 2, f32_to_f16(from[i]));
        break;
      case kv::Format::kBf16:
        store(to + i * 2, f32_to_bf16(from[i]));
        break;
      default:
        ISTHMUS_CHECK(false);
    }
  }
  return true;
}

bool encode_granule(const float* from, std::uint32_t granule, std::byte* codes, Affine& affine) {
  float lowest = from[0], highest = from[0];
  for (std::uint32_t i = 0; i < granule; ++i) {
    if (!is_finite_bits(std::bit_cast<std::uint32_t>(from[i]))) return false;
    lowest = from[i] < lowest ? from[i] : lowest;
    highest = from[i] > highest ? from[i] : highest;
  }
  affine = affine_u8(lowest, highest);
  for (std::uint32_t i = 0; i < granule; ++i) store(codes + i, code_u8(from[i], affine));
  return affine.finite();
}

bool encode_affine_u8(const float* from, const AffineU8& to) {
  for (std::uint64_t g = 0; g < to.granules; ++g) {
    Affine affine;
    if (!encode_granule(from + g * to.granule, to.granule, to.codes + g * to.granule, affine)) return false;
    store(to.scales + g * 4, affine.scale);
    store(to.zeros + g * 4, affine.zero);
  }
  return true;
}

}  // namespace

const KernelSet& scalar_kernels() {
  static constexpr KernelSet kSet{decode_plain, decode_scaled, encode_plain, encode_affine_u8};
  return kSet;
}

}  // namespace isthmus::transform::kernels
