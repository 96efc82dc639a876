// SPDX-License-Identifier: Apache-2.0
// The engines that are built in and the ways in which each stores KV, as data. Each is source and sink in all
// of them.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace isthmus::worker {

namespace kinds {
inline constexpr std::array<std::string_view, 9> kLlamacpp{"f16",
                                                           "f32",
                                                           "bf16",
                                                           "f16_v_transposed",
                                                           "f32_v_transposed",
                                                           "bf16_v_transposed",
                                                           "q8_0",
                                                           "q8_0_unrotated",
                                                           "q8_0_v_q4_0"};
inline constexpr std::array<std::string_view, 5> kOpenvino{"u8", "f32", "f16", "u8_channel", "u4"};
}  // namespace kinds

struct EngineKind {
  std::string_view name;
  std::span<const std::string_view> kv_types;  // The first is the default. Storage: "name:kv_type".
  bool chooses_activations = false;            // It takes others than WorkerOptions' default.
};

inline constexpr std::array<EngineKind, 2> kEngineKinds{
    {{"llamacpp", kinds::kLlamacpp}, {"openvino", kinds::kOpenvino, true}}};

}  // namespace isthmus::worker
