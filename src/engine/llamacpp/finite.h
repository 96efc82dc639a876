// SPDX-License-Identifier: Apache-2.0
// Is every number of a plane finite?
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace isthmus::engine::llamacpp {

// Whole elements or blocks of a ggml type that a KV cache here stores (f32, f16, bf16, q8_0, q4_0), at any
// alignment. Of a block format the scales are looked at: codes are integers.
bool all_finite(std::span<const std::byte> plane, std::int32_t ggml_type);

}  // namespace isthmus::engine::llamacpp
