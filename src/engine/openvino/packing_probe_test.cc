// SPDX-License-Identifier: Apache-2.0
// The engine's stored bytes against our formula, and the packing probe against descriptors and engines that
// lie.
#include "engine/openvino/packing_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include "engine/probe/model_facts.h"
#include "kv/catalogue.h"

namespace isthmus::engine::openvino {
namespace {

using ::testing::HasSubstr;

std::string model_path() {
  const char* path = std::getenv("ISTHMUS_TEST_MODEL");
  return path == nullptr ? "" : path;
}

// One model a KV type for all tests: loading takes seconds.
const PagedModel& model(const std::string& kv_type) {
  static std::map<std::string, std::unique_ptr<PagedModel>> models;
  auto& slot = models[kv_type];
  if (!slot) slot = *PagedModel::load({.gguf_path = model_path(), .kv_type = kv_type, .threads = 1});
  return *slot;
}

kv::Descriptor descriptor(const std::string& kv_type) {
  static const ModelFacts facts = *read_model_facts(model_path());
  return *describe(facts, **kv::find_storage("openvino:" + kv_type));
}

// The layout text with every `from` replaced.
kv::Descriptor with_layout(kv::Descriptor lying, const std::string& from, const std::string& to) {
  std::string& text = lying.representation[0].layout_text;
  EXPECT_NE(text.find(from), std::string::npos) << text;
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return lying;
}

std::string refusal(const PagedModel& engine, const kv::Descriptor& lying) {
  const Status status = probe_packing(engine, lying);
  EXPECT_EQ(status.code(), Code::kIncompatible);
  return status.ok() ? "passed" : status.error().detail;
}

TEST(PackingProbe, PassesOnTheHonestEngine) {
  for (const char* kv_type : {"f32", "u8"}) {
    const Status status = probe_packing(model(kv_type), descriptor(kv_type));
    EXPECT_TRUE(status.ok()) << kv_type << ": " << (status.ok() ? "" : status.error().detail);
  }
}

TEST(PackingProbe, CatchesAxesInAnotherOrder) {
  EXPECT_THAT(refusal(model("f32"), with_layout(descriptor("f32"), "head slot", "slot head")),
              HasSubstr("what lies there is k of token"));
}

TEST(PackingProbe, CatchesAnotherBlockSize) {
  kv::Descriptor lying = descriptor("u8");
  lying.representation[0].block_tokens = 16;
  EXPECT_THAT(refusal(model("u8"), lying), HasSubstr("block size or format is misstated"));
}

TEST(PackingProbe, CatchesAnotherFormat) {
  EXPECT_THAT(refusal(model("f32"), descriptor("f16")), HasSubstr("block size or format is misstated"));
  EXPECT_THAT(refusal(model("u8"), descriptor("f32")), HasSubstr("block size or format is misstated"));
}

TEST(PackingProbe, CatchesScaleAndZeroPointSwapped) {
  kv::Descriptor lying = with_layout(descriptor("u8"), ".s:", ".t:");
  lying = with_layout(lying, ".z:", ".s:");
  lying = with_layout(lying, ".t:", ".z:");
  EXPECT_THAT(refusal(model("u8"), lying), HasSubstr("no row that was stored"));
}

// An adapter whose K and V memory are mixed up.
class SwappedModel : public PagedModel {
 public:
  explicit SwappedModel(const PagedModel& honest) : honest_(honest) {}
  const PagedModelShape& shape() const override { return honest_.shape(); }
  const std::string& version() const override { return honest_.version(); }
  Status attach(const KvMemory&) override { return ok_status(); }
  Result<std::span<const float>> forward(ForwardInput&) override {
    return Error{Code::kUnsupported, "not here"};
  }
  Status write_attention(const AttentionInput& input) const override {
    AttentionInput swapped = input;
    std::swap(swapped.key, swapped.value);
    return honest_.write_attention(swapped);
  }

 private:
  const PagedModel& honest_;
};

TEST(PackingProbe, CatchesKAndVSwapped) {
  for (const char* kv_type : {"f32", "u8"}) {
    EXPECT_THAT(refusal(SwappedModel(model(kv_type)), descriptor(kv_type)),
                HasSubstr("what lies there is v of token 0, head 0"));
  }
}

// The engine's recipe "openvino.u8.by_token", by the plain formula: f32 scale, f32 zero point, codes.
std::vector<std::byte> u8_row(std::span<const float> row) {
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  float scale = (*high - *low) / 255;
  if (scale == 0) scale = 1e-4f;
  const float zero = -*low / scale;
  std::vector<std::byte> bytes(8);
  std::memcpy(bytes.data(), &scale, 4);
  std::memcpy(bytes.data() + 4, &zero, 4);
  for (const float x : row) {
    const float code = std::clamp(std::nearbyintf(std::fmaf(x, 1 / scale, zero)), 0.0f, 255.0f);
    bytes.push_back(static_cast<std::byte>(code));
  }
  return bytes;
}

// Rows of all sorts: smooth, constant, zero, one outlier, tiny, one-sided; exact in f16.
std::vector<float> rows_of_all_sorts(std::uint32_t tokens, std::uint32_t heads, std::uint32_t dim) {
  std::vector<float> rows;
  for (std::uint32_t row = 0; row < tokens * heads; ++row) {
    for (std::uint32_t i = 0; i < dim; ++i) {
      const float wave = std::floor(std::sin(static_cast<float>(row * 31 + i * 7)) * 1024) / 128;
      const float sorts[] = {wave, 0.5f, 0.0f, i == 5 ? 480.0f : wave / 8, wave / 4096, wave + 7};
      rows.push_back(sorts[row % 6]);
    }
  }
  return rows;
}

TEST(U8ByToken, EngineBytesEqualTheRecipeBitForBit) {
  constexpr std::uint32_t kTokens = 50, kHeads = 3, kDim = 64;
  const PagedModel& engine = model("u8");
  ASSERT_EQ(engine.shape().key_width, kHeads * kDim);
  const auto memory = *KvMemory::map({.layers = 1,
                                      .blocks = 4,
                                      .key_bytes = engine.shape().key_block_bytes,
                                      .value_bytes = engine.shape().value_block_bytes});
  std::vector<float> key = rows_of_all_sorts(kTokens, kHeads, kDim), value(key.rbegin(), key.rend());
  ASSERT_TRUE(
      engine
          .write_attention(
              {.tokens = kTokens, .key = key, .value = value, .blocks = {3, 1}, .memory = memory.get()})
          .ok());
  std::size_t wrong = 0;
  for (std::uint32_t token = 0; token < kTokens; ++token) {
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      const std::uint64_t block = token < 32 ? 3 : 1;
      const std::size_t at = ((block * kHeads + head) * kBlockTokens + token % 32) * (kDim + 8);
      const std::size_t row = (std::size_t{token} * kHeads + head) * kDim;
      const auto expected_k = u8_row(std::span(key).subspan(row, kDim));
      const auto expected_v = u8_row(std::span(value).subspan(row, kDim));
      wrong += std::memcmp(memory->key(0) + at, expected_k.data(), expected_k.size()) != 0;
      wrong += std::memcmp(memory->value(0) + at, expected_v.data(), expected_v.size()) != 0;
    }
  }
  EXPECT_EQ(wrong, 0u) << "of " << 2 * kTokens * kHeads << " rows";
}

TEST(PagedModel, RefusesKvTypesByNameAndReason) {
  const auto reason = [](const char* kv_type) {
    const auto refused = PagedModel::load({.gguf_path = model_path(), .kv_type = kv_type, .threads = 1});
    EXPECT_EQ(refused.code(), Code::kUnsupported);
    return refused.ok() ? "loaded" : refused.error().detail;
  };
  EXPECT_THAT(reason("u8_channel"), HasSubstr("requantises"));
  EXPECT_THAT(reason("bf16"), HasSubstr("accuracy"));
  EXPECT_THAT(reason("q8_0"), HasSubstr("isn't one of f32, f16, u8"));
}

}  // namespace
}  // namespace isthmus::engine::openvino
