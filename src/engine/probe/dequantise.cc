// SPDX-License-Identifier: Apache-2.0
// Block formats as ggml 0.25 defines them (ggml-common.h), written from the definition, one element at a
// time.
#include "engine/probe/dequantise.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/probe/gguf.h"

namespace isthmus::engine {
namespace {

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t index) {
  return std::to_integer<std::uint8_t>(bytes[index]);
}

// f16 d | 16 bytes: element j in the low nibble of byte j, element j+16 in the high one; x = (q - 8) d.
void block_q4_0(std::span<const std::byte> block, std::span<float> out) {
  const float scale = f16_to_f32(load_le<std::uint16_t>(block));
  for (std::size_t j = 0; j < 16; ++j) {
    const std::uint8_t pair = byte_at(block, 2 + j);
    out[j] = static_cast<float>((pair & 15) - 8) * scale;
    out[j + 16] = static_cast<float>((pair >> 4) - 8) * scale;
  }
}

// f16 d | f16 m | 16 bytes as above; x = q d + m.
void block_q4_1(std::span<const std::byte> block, std::span<float> out) {
  const float scale = f16_to_f32(load_le<std::uint16_t>(block));
  const float minimum = f16_to_f32(load_le<std::uint16_t>(block.subspan(2)));
  for (std::size_t j = 0; j < 16; ++j) {
    const std::uint8_t pair = byte_at(block, 4 + j);
    out[j] = static_cast<float>(pair & 15) * scale + minimum;
    out[j + 16] = static_cast<float>(pair >> 4) * scale + minimum;
  }
}

// f16 d | 32 signed codes; x = q d.
void block_q8_0(std::span<const std::byte> block, std::span<float> out) {
  const float scale = f16_to_f32(load_le<std::uint16_t>(block));
  for (std::size_t j = 0; j < 32; ++j) {
    out[j] = static_cast<float>(static_cast<std::int8_t>(byte_at(block, 2 + j))) * scale;
  }
}

// 128 bytes of low nibbles | 64 bytes of high bit pairs | 16 signed scales | f16 d; two halves of 128
// elements, each four runs of 32 that share bytes; x = (q - 32) d scale[element / 16].
void block_q6_k(std::span<const std::byte> block, std::span<float> out) {
  const float scale = f16_to_f32(load_le<std::uint16_t>(block.subspan(208)));
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t half = i / 128, run = i % 128 / 32, lane = i % 32;
    const std::uint8_t low = byte_at(block, half * 64 + run % 2 * 32 + lane);
    const std::uint8_t high = byte_at(block, 128 + half * 32 + lane);
    const int code = (run < 2 ? low & 15 : low >> 4) | (high >> (2 * run) & 3) << 4;
    const auto group = static_cast<std::int8_t>(byte_at(block, 192 + i / 16));
    out[i] = scale * static_cast<float>(group) * static_cast<float>(code - 32);
  }
}

void decode_block(TensorType type, std::span<const std::byte> block, std::span<float> out) {
  switch (type) {
    case TensorType::kF32:
      out[0] = load_le<float>(block);
      break;
    case TensorType::kF16:
      out[0] = f16_to_f32(load_le<std::uint16_t>(block));
      break;
    case TensorType::kBf16:
      out[0] = bf16_to_f32(load_le<std::uint16_t>(block));
      break;
    case TensorType::kQ40:
      block_q4_0(block, out);
      break;
    case TensorType::kQ41:
      block_q4_1(block, out);
      break;
    case TensorType::kQ80:
      block_q8_0(block, out);
      break;
    case TensorType::kQ6k:
      block_q6_k(block, out);
      break;
  }
}

}  // namespace

float f16_to_f32(std::uint16_t bits) {
  const bool negative = (bits & 0x8000) != 0;
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude =
        mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return negative ? -magnitude : magnitude;
}

float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

TensorBlock tensor_block(std::uint32_t tensor_type) {
  switch (static_cast<TensorType>(tensor_type)) {
    case TensorType::kF32:
      return {.elements = 1, .bytes = 4};
    case TensorType::kF16:
    case TensorType::kBf16:
      return {.elements = 1, .bytes = 2};
    case TensorType::kQ40:
      return {.elements = 32, .bytes = 18};
    case TensorType::kQ41:
      return {.elements = 32, .bytes = 20};
    case TensorType::kQ80:
      return {.elements = 32, .bytes = 34};
    case TensorType::kQ6k:
      return {.elements = 256, .bytes = 210};
  }
  return {};
}

void dequantise(std::uint32_t tensor_type, std::span<const std::byte> bytes, std::span<float> values) {
  const TensorBlock block = tensor_block(tensor_type);
  ISTHMUS_CHECK(block.elements != 0 && values.size() % block.elements == 0);
  const std::size_t blocks = values.size() / block.elements;
  ISTHMUS_CHECK(bytes.size() == blocks * block.bytes);
  for (std::size_t b = 0; b < blocks; ++b) {
    decode_block(static_cast<TensorType>(tensor_type), bytes.subspan(b * block.bytes, block.bytes),
                 values.subspan(b * block.elements, block.elements));
  }
}

}  // namespace isthmus::engine
