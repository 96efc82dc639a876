// SPDX-License-Identifier: Apache-2.0
// KV types by name, and the inputs of a compiled model that hold them. For this component's OpenVINO
// translation units only (heavy header).
#pragma once

#include <cstddef>
#include <cstdint>
#include <openvino/runtime/compiled_model.hpp>
#include <openvino/runtime/tensor.hpp>
#include <string>

#include "base/status.h"

namespace isthmus::engine::openvino {

// How K and V are stored. Quantised: an f32 scale and zero point a row; or, of K by channel, for each element
// of a row over the tokens of a block.
struct KvType {
  ov::element::Type element;  // Of both.
  bool is_quantised = false;
  bool key_by_channel = false;
};

// "f32", "f16", "u8", "u8_channel" or "u4". Errors: unsupported, with the reason or the list.
Result<KvType> find_kv_type(const std::string& name);

// One cache input: blocks of `heads` runs of `rows` rows of `row` elements each, scales and zero points
// counted in as elements.
struct CacheInput {
  ov::element::Type type;
  std::uint64_t heads = 0, rows = 0, row = 0;

  std::uint64_t block_bytes() const { return heads * rows * row * type.bitwidth() / 8; }
  ov::Tensor tensor(std::byte* base, std::uint64_t blocks) const {
    return {type, ov::Shape{blocks, heads, rows, row}, base};
  }
};

// What the plugin made of the input `name`, whose rows have `width` elements of all heads. Errors:
// incompatible, if it isn't blocks of kBlockTokens tokens in that type.
Result<CacheInput> read_cache_input(const ov::CompiledModel& model, const std::string& name,
                                    std::uint64_t width, const KvType& type, bool by_channel);

}  // namespace isthmus::engine::openvino
