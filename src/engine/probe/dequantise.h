// SPDX-License-Identifier: Apache-2.0
// Stored numbers to f32, by the plain formulas of their formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace isthmus::engine {

// IEEE binary16 and bfloat16 bit patterns; exact. NaN stays NaN.
float f16_to_f32(std::uint16_t bits);
float bf16_to_f32(std::uint16_t bits);

// How a GGUF tensor type packs a row: blocks of `elements` in `bytes`. 0 elements for a type that isn't
// known.
struct TensorBlock {
  std::uint32_t elements = 0, bytes = 0;
};
TensorBlock tensor_block(std::uint32_t tensor_type);

// `values.size()` must be whole blocks, `bytes` exactly theirs; `tensor_type` known to tensor_block().
void dequantise(std::uint32_t tensor_type, std::span<const std::byte> bytes, std::span<float> values);

}  // namespace isthmus::engine
