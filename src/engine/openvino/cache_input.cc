// SPDX-License-Identifier: Apache-2.0
// The sizes that a storage must have, computed from its description and compared with the plugin's.
#include "engine/openvino/cache_input.h"

#include <fmt/format.h>

#include "engine/openvino/paged_model.h"

namespace isthmus::engine::openvino {
namespace {

constexpr std::uint64_t kScaleBits = 2 * 8 * sizeof(float);  // A scale and a zero point.

struct Extent {
  std::uint64_t rows = 0, row = 0;
};

// Of one head's run in a block, for rows of `dim` values.
Extent expected_extent(std::uint64_t dim, const KvType& type, bool by_channel) {
  const std::uint64_t scales = type.is_quantised ? kScaleBits / type.element.bitwidth() : 0;
  if (by_channel) return {kBlockTokens + scales, dim};
  return {kBlockTokens, dim + scales};
}

}  // namespace

Result<KvType> find_kv_type(const std::string& name) {
  if (name == "f32") return KvType{ov::element::f32};
  if (name == "f16") return KvType{ov::element::f16};
  if (name == "u8") return KvType{ov::element::u8, true};
  if (name == "u8_channel") return KvType{ov::element::u8, true, true};
  if (name == "u4") return KvType{ov::element::u4, true};
  if (name == "bf16") {
    return Error{
        Code::kUnsupported,
        "KV type bf16: OpenVINO stores it under bf16 arithmetic only, which loses accuracy on GGUF graphs "
        "(KL 2.8e-3 to f32); use f32, f16, u8, u8_channel or u4"};
  }
  return Error{Code::kUnsupported,
               fmt::format("KV type \"{}\" isn't one of f32, f16, u8, u8_channel, u4", name)};
}

Result<CacheInput> read_cache_input(const ov::CompiledModel& model, const std::string& name,
                                    std::uint64_t width, const KvType& type, bool by_channel) {
  const auto& input = model.input(name);
  const ov::PartialShape& shape = input.get_partial_shape();
  const auto surprise = [&](const std::string& what) {
    return Error{Code::kIncompatible,
                 fmt::format("{} is {} {}: {}", name, input.get_element_type().get_type_name(),
                             shape.to_string(), what)};
  };
  if (input.get_element_type() != type.element) return surprise("another element type than asked for");
  if (shape.size() != 4 || shape[1].is_dynamic() || shape[2].is_dynamic() || shape[3].is_dynamic()) {
    return surprise("not [blocks, heads, rows, elements]");
  }
  const CacheInput read{type.element, static_cast<std::uint64_t>(shape[1].get_length()),
                        static_cast<std::uint64_t>(shape[2].get_length()),
                        static_cast<std::uint64_t>(shape[3].get_length())};
  if (read.heads == 0 || width % read.heads != 0)
    return surprise(fmt::format("rows have {} elements", width));
  const Extent expected = expected_extent(width / read.heads, type, by_channel);
  if (read.rows != expected.rows || read.row != expected.row) {
    return surprise(fmt::format("a block of {} tokens would have {} rows of {} elements a head", kBlockTokens,
                                expected.rows, expected.row));
  }
  return read;
}

}  // namespace isthmus::engine::openvino
