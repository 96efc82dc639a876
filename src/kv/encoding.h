// SPDX-License-Identifier: Apache-2.0
// Which decode forms can cross, be read as numbers and be made from numbers: one table for verdicts and
// kernels.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kv/descriptor.h"

namespace isthmus::kv {

// Token tiles of the wire; a scale may span tokens if its granule divides it.
inline constexpr std::uint32_t kTokensOfTile = 256;

// How codes are made; the bit-exact recipes are in spec/wire-form.md §7.
enum class Encoder : std::uint8_t {
  kPlain,           // "nearest_even", plain or with static scales; f32, f16, bf16 whatever the recipe says.
  kVllmFp8,         // "vllm.cpu.fp8", likewise.
  kAmax,            // "amax"
  kVllmTile,        // "vllm.fp8_ds_mla"
  kVllmPowerOfTwo,  // "vllm.fp8.ue8m0"
  kAffineRow,       // "openvino.u8.by_token", "openvino.u4.by_token"
  kAffineChannel,   // "openvino.u8.by_channel"
  kSymmetric8,      // "ggml.q8_0.x86"
  kReference8,      // "ggml.q8_0.reference"
  kExtreme4,        // "ggml.q4_0"
};

// unsupported, saying why, if tiles of the form can't be cut and moved.
Status movable(const DecodeForm& form, std::uint32_t dim);
// unsupported if the form's codes can't be turned into f32.
Status decodable(const DecodeForm& form, std::uint32_t dim);
// unsupported, with form and recipe, if no encoder makes it.
Result<Encoder> encoder_of(const DecodeForm& form, std::uint32_t dim);

}  // namespace isthmus::kv
