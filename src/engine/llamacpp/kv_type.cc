// SPDX-License-Identifier: Apache-2.0
// KV types as data.
#include "engine/llamacpp/kv_type.h"

#include <fmt/format.h>

#include <array>

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::array<KvType, 9> kKvTypes{{
    {.name = "f16", .k = GGML_TYPE_F16, .v = GGML_TYPE_F16},
    {.name = "f32", .k = GGML_TYPE_F32, .v = GGML_TYPE_F32},
    {.name = "bf16", .k = GGML_TYPE_BF16, .v = GGML_TYPE_BF16},
    {.name = "f16_v_transposed", .k = GGML_TYPE_F16, .v = GGML_TYPE_F16, .flash_attention = false},
    {.name = "f32_v_transposed", .k = GGML_TYPE_F32, .v = GGML_TYPE_F32, .flash_attention = false},
    {.name = "bf16_v_transposed", .k = GGML_TYPE_BF16, .v = GGML_TYPE_BF16, .flash_attention = false},
    {.name = "q8_0", .k = GGML_TYPE_Q8_0, .v = GGML_TYPE_Q8_0},
    {.name = "q8_0_unrotated", .k = GGML_TYPE_Q8_0, .v = GGML_TYPE_Q8_0, .rotate = false},
    {.name = "q8_0_v_q4_0", .k = GGML_TYPE_Q8_0, .v = GGML_TYPE_Q4_0},
}};

}  // namespace

Result<KvType> find_kv_type(std::string_view name) {
  std::string known;
  for (const KvType& kv_type : kKvTypes) {
    if (kv_type.name == name) return kv_type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", kv_type.name);
  }
  return Error{Code::kUnsupported, fmt::format("llamacpp: KV type \"{:.64}\"; it can be {}", name, known)};
}

}  // namespace isthmus::engine::llamacpp
