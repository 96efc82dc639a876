// SPDX-License-Identifier: Apache-2.0
// The recipes named after ggml against ggml's own functions, on every f16 and bf16.
#include <ggml-cpu.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "transform/rows.h"

namespace isthmus::transform {
namespace {

constexpr std::uint32_t kBlock = 32;
constexpr std::uint64_t kBlocks = 65536 / kBlock;

kv::DecodeForm plain(kv::Format format) {
  return {.component = "k", .codes = format, .recipe = "nearest_even"};
}

kv::DecodeForm form_of(const std::string& recipe) {
  kv::DecodeForm form = plain(kv::Format::kI8);
  form.operation = kv::DecodeOperation::kScaled;
  form.scale = kv::Format::kF16;
  form.granule_dim = kBlock;
  form.recipe = recipe;
  if (recipe != "ggml.q4_0") return form;
  form.codes = kv::Format::kU4;
  form.operation = kv::DecodeOperation::kScaledConstantZero;
  form.zero_constant = 8;
  return form;
}

// Every finite code of the format, a block's within two binades; 0 for the others. Large bf16 are scaled down
// to where f16 has scales.
std::vector<float> values_of(kv::Format format) {
  std::vector<std::uint16_t> codes(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    codes[i] = static_cast<std::uint16_t>(i * (format == kv::Format::kF16 ? 37 : 5));
  }
  std::vector<float> values(65536);
  decode_rows(plain(format), kBlock, kBlocks, std::as_bytes(std::span(codes)).data(), values);
  for (float& value : values) {
    if (!std::isfinite(value)) value = 0;
    while (std::abs(value) > 5e5f) value *= 0x1p-40f;
  }
  return values;
}

// Halves between codes: the scale is a power of two.
std::vector<float> ties() {
  std::vector<float> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto halves = static_cast<float>(i * 7 % 253) - 126.0f;
    values[i] = i % kBlock == 0 ? 127.0f : halves / 2;
  }
  return values;
}

// The reciprocal of q4_0's scale overflows, and what ggml makes of it is undefined.
bool is_undefined(ggml_type type, std::span<const float> block) {
  const auto is_small = [](float value) { return std::abs(value) < 0x1p-124f; };
  return type == GGML_TYPE_Q4_0 && std::all_of(block.begin(), block.end(), is_small);
}

// Blocks as ggml lays them out: scale, then codes; q4_0 has elements i and i + 16 in byte i.
std::vector<std::byte> ours(const std::string& recipe, std::span<const float> values, KernelChoice choice) {
  const kv::DecodeForm form = form_of(recipe);
  const std::size_t code_bytes = kBlock * kv::bits(form.codes) / 8;
  std::vector<std::byte> codes(kBlocks * code_bytes), scales(kBlocks * 2), blocks;
  const auto made =
      encode_rows(form, kBlock, kBlocks, values, {codes.data(), scales.data(), nullptr}, choice);
  EXPECT_TRUE(made.ok()) << made.error().text();
  for (std::size_t block = 0; block < kBlocks; ++block) {
    for (std::size_t i = 0; i < 2; ++i) blocks.push_back(scales[2 * block + i]);
    const std::byte* at = codes.data() + block * code_bytes;
    const auto nibble = [&](std::size_t i) {
      return (at[i / 2] >> static_cast<int>(i % 2 * 4)) & std::byte{15};
    };
    for (std::size_t i = 0; i < code_bytes; ++i) {
      blocks.push_back(form.codes == kv::Format::kI8 ? at[i] : nibble(i) | nibble(i + 16) << 4);
    }
  }
  return blocks;
}

TEST(GgmlNumerics, EveryHalfIsStoredAsGgmlStoresIt) {
  ggml_cpu_init();
  struct Case {
    std::string recipe;
    ggml_type type;
    ggml_from_float_t function;
  };
  const std::array cases{
      Case{"ggml.q8_0.x86", GGML_TYPE_Q8_0, ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float},
      Case{"ggml.q8_0.reference", GGML_TYPE_Q8_0, ggml_get_type_traits(GGML_TYPE_Q8_0)->from_float_ref},
      Case{"ggml.q4_0", GGML_TYPE_Q4_0, ggml_get_type_traits_cpu(GGML_TYPE_Q4_0)->from_float},
      Case{"ggml.q4_0", GGML_TYPE_Q4_0, ggml_get_type_traits(GGML_TYPE_Q4_0)->from_float_ref},
  };
  const std::map<std::string, std::vector<float>> sources{
      {"f16", values_of(kv::Format::kF16)}, {"bf16", values_of(kv::Format::kBf16)}, {"ties", ties()}};
  for (const Case& one : cases) {
    for (const auto& [source, values] : sources) {
      const std::size_t block_bytes = ggml_type_size(one.type);
      std::vector<std::byte> theirs(kBlocks * block_bytes);
      one.function(values.data(), theirs.data(), static_cast<std::int64_t>(values.size()));
      for (const KernelChoice choice : {KernelChoice::kVector, KernelChoice::kScalar}) {
        const std::vector<std::byte> made = ours(one.recipe, values, choice);
        ASSERT_EQ(made.size(), theirs.size());
        for (std::size_t block = 0; block < kBlocks; ++block) {
          if (is_undefined(one.type, std::span(values).subspan(block * kBlock, kBlock))) continue;
          ASSERT_EQ(std::memcmp(made.data() + block * block_bytes, theirs.data() + block * block_bytes,
                                block_bytes),
                    0)
              << one.recipe << " of " << source << ", block " << block;
        }
      }
    }
  }
}

}  // namespace
}  // namespace isthmus::transform
