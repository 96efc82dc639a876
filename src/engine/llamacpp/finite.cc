// SPDX-License-Identifier: Apache-2.0
// Exponents that are all ones: infinities and NaN.
#include "engine/llamacpp/finite.h"

#include <ggml.h>

#include <cstring>

#include "base/check.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::uint16_t kF16Exponent = 0x7c00, kBf16Exponent = 0x7f80;
constexpr std::uint32_t kF32Exponent = 0x7f80'0000;

// Without a branch a number, so that it runs at memory speed.
template <typename T>
bool no_exponent_full(std::span<const std::byte> bytes, T exponent, std::size_t stride) {
  unsigned full = 0;
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += stride) {
    T bits;
    std::memcpy(&bits, bytes.data() + at, sizeof(T));
    full |= static_cast<unsigned>((bits & exponent) == exponent);
  }
  return full == 0;
}

}  // namespace

bool all_finite(std::span<const std::byte> plane, std::int32_t ggml_type) {
  switch (ggml_type) {
    case GGML_TYPE_F32:
      return no_exponent_full(plane, kF32Exponent, sizeof(std::uint32_t));
    case GGML_TYPE_F16:
      return no_exponent_full(plane, kF16Exponent, sizeof(std::uint16_t));
    case GGML_TYPE_BF16:
      return no_exponent_full(plane, kBf16Exponent, sizeof(std::uint16_t));
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q4_0:  // A block begins with its scale.
      return no_exponent_full(plane, kF16Exponent, ggml_type_size(static_cast<enum ggml_type>(ggml_type)));
    default:
      ISTHMUS_CHECK(false);
      return false;
  }
}

}  // namespace isthmus::engine::llamacpp
