// SPDX-License-Identifier: Apache-2.0
// GGUF file to OpenVINO graphs over paged KV. For this component's OpenVINO translation units only (heavy
// header).
#pragma once

#include <cstdint>
#include <memory>
#include <openvino/core/model.hpp>
#include <string>

#include "base/status.h"
#include "engine/probe/architecture.h"

namespace isthmus::engine::openvino {

// Name of the added input of `decoder`: which hidden rows go through the LM head, i64 [rows].
inline constexpr const char* kRowsInput = "logit_rows";
// Inputs of `attention`: new rows of all heads, f16 [tokens, heads * dim].
inline constexpr const char* kQueryInput = "query";
inline constexpr const char* kKeyInput = "key";
inline constexpr const char* kValueInput = "value";

struct PagedGraphs {
  // input_ids, position_ids i64 [T]; past_lens, subsequence_begins, block_indices_begins, block_indices i32;
  // max_context_len i32 []; key_cache.N, value_cache.N; logit_rows. Output: logits f32, rows * vocabulary
  // values.
  std::shared_ptr<ov::Model> decoder;
  // Layer 0's attention operation alone, with the attributes that it has in `decoder`.
  std::shared_ptr<ov::Model> attention;
  std::uint32_t layers = 0;
  std::uint32_t query_width = 0, key_width = 0, value_width = 0;  // Of layer 0, in elements.
};

// Attention of `window`'s local layers is bound to it: the passes drop the mask that said so.
// Errors: unsupported if the front end or a pass can't convert the file, or the graph isn't of the known
// shape.
Result<PagedGraphs> convert_gguf(const std::string& gguf_path, const Window& window);

}  // namespace isthmus::engine::openvino
