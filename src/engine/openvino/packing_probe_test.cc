// SPDX-License-Identifier: Apache-2.0
// The engine's stored bytes against our formula, and the packing probe against descriptors and engines that
// lie.
#include "engine/openvino/packing_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "engine/openvino/test_engine.h"
#include "engine/probe/model_facts.h"
#include "kv/catalogue.h"

namespace isthmus::engine::openvino {
namespace {

using ::testing::HasSubstr;

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
  for (const char* kv_type : {"f32", "f16", "u8", "u8_channel", "u4"}) {
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

TEST(PackingProbe, CatchesNibblesInTheOtherOrder) {
  kv::Descriptor lying = with_layout(descriptor("u4"), "~dim%2", "dim%2");
  for (kv::DecodeForm& form : lying.representation[0].forms) form.high_nibble_first = false;
  EXPECT_THAT(refusal(model("u4"), lying), HasSubstr("no row that was stored"));
}

TEST(PackingProbe, CatchesScalesOfChannelsTakenForScalesOfTokens) {
  EXPECT_THAT(refusal(model("u8_channel"), descriptor("u8")), HasSubstr("block size or format is misstated"));
  // The same bytes, other granules: 32 slots' scales before 64 elements' codes.
  kv::Descriptor lying = with_layout(descriptor("u8_channel"), "slot dim k:u8", "dim slot k:u8");
  EXPECT_THAT(refusal(model("u8_channel"), lying), HasSubstr("no row that was stored"));
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
  Result<std::vector<float>> write_attention(const AttentionInput& input) const override {
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

// The engine's recipes by the plain formula. `levels` is 255 or 15.
struct Affine {
  float scale, zero, levels;

  float code(float x) const {
    return std::clamp(std::nearbyintf(std::fmaf(x, 1 / scale, zero)), 0.0f, levels);
  }
};

Affine affine(float low, float high, float levels, bool by_channel) {
  float scale = by_channel ? (high - low) * (1 / levels) : (high - low) / levels;
  if (scale == 0) scale = 1e-4f;
  return {scale, -low / scale, levels};
}

void append(std::vector<std::byte>& bytes, float value) {
  const auto raw = std::bit_cast<std::array<std::byte, 4>>(value);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

// One row by token: f32 scale, f32 zero point, codes; of 4 bits, the first of two in the high nibble.
std::vector<std::byte> token_row(std::span<const float> row, float levels) {
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  const Affine form = affine(*low, *high, levels, false);
  std::vector<std::byte> bytes;
  append(bytes, form.scale);
  append(bytes, form.zero);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(form.code(row[i]));
    if (levels > 15) {
      bytes.push_back(std::byte{code});
    } else if (i % 2 == 0) {
      bytes.push_back(static_cast<std::byte>(code << 4));
    } else {
      bytes.back() |= std::byte{code};
    }
  }
  return bytes;
}

// One head's K of a block by channel: scales, zero points, then the codes of each token.
std::vector<std::byte> channel_block(const std::vector<std::span<const float>>& rows) {
  const std::size_t dim = rows[0].size();
  std::vector<Affine> forms;
  for (std::size_t i = 0; i < dim; ++i) {
    float low = rows[0][i], high = low;
    for (const auto& row : rows) {
      low = std::min(low, row[i]);
      high = std::max(high, row[i]);
    }
    forms.push_back(affine(low, high, 255, true));
  }
  std::vector<std::byte> bytes;
  for (const Affine& form : forms) append(bytes, form.scale);
  for (const Affine& form : forms) append(bytes, form.zero);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < dim; ++i) bytes.push_back(static_cast<std::byte>(forms[i].code(row[i])));
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

// 50 rows of 3 heads that the engine has stored in blocks 3 and 1, and its bytes.
struct Stored {
  static constexpr std::uint32_t kTokens = 50, kHeads = 3, kDim = 64;

  explicit Stored(const PagedModel& engine)
      : memory(*KvMemory::map({.layers = 1,
                               .blocks = 4,
                               .key_bytes = engine.shape().key_block_bytes,
                               .value_bytes = engine.shape().value_block_bytes})),
        key(rows_of_all_sorts(kTokens, kHeads, kDim)),
        value(key.rbegin(), key.rend()) {
    EXPECT_EQ(engine.shape().key_width, kHeads * kDim);
    const Status status =
        engine
            .write_attention(
                {.tokens = kTokens, .key = key, .value = value, .blocks = {3, 1}, .memory = memory.get()})
            .status();
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
  }

  static std::span<const float> row(const std::vector<float>& of, std::uint32_t token, std::uint32_t head) {
    return std::span(of).subspan((std::size_t{token} * kHeads + head) * kDim, kDim);
  }
  // Rows that differ from the recipe, of those that `pool` has with `block_bytes` a block.
  static std::size_t wrong_rows(const std::byte* pool, std::uint64_t block_bytes,
                                const std::vector<float>& of, float levels) {
    std::size_t wrong = 0;
    for (std::uint32_t token = 0; token < kTokens; ++token) {
      for (std::uint32_t head = 0; head < kHeads; ++head) {
        const auto expected = token_row(row(of, token, head), levels);
        const std::uint64_t block = token < 32 ? 3 : 1;
        const std::byte* stored =
            pool + block * block_bytes + (head * kBlockTokens + token % 32) * expected.size();
        wrong += std::memcmp(stored, expected.data(), expected.size()) != 0;
      }
    }
    return wrong;
  }

  std::unique_ptr<KvMemory> memory;
  std::vector<float> key, value;
};

TEST(StoredBytes, EqualTheRecipeByTokenBitForBit) {
  for (const auto& [kv_type, levels] : {std::pair{"u8", 255.0f}, {"u4", 15.0f}}) {
    const PagedModel& engine = model(kv_type);
    const Stored stored(engine);
    EXPECT_EQ(stored.wrong_rows(stored.memory->key(0), engine.shape().key_block_bytes, stored.key, levels),
              0u)
        << kv_type;
    EXPECT_EQ(
        stored.wrong_rows(stored.memory->value(0), engine.shape().value_block_bytes, stored.value, levels),
        0u)
        << kv_type;
  }
}

TEST(StoredBytes, EqualTheRecipeByChannelBitForBit) {
  const PagedModel& engine = model("u8_channel");
  const Stored stored(engine);
  std::size_t wrong = 0;
  for (const std::uint32_t first : {0u, 32u}) {
    for (std::uint32_t head = 0; head < Stored::kHeads; ++head) {
      std::vector<std::span<const float>> rows;
      for (std::uint32_t token = first; token < std::min(first + 32, Stored::kTokens); ++token) {
        rows.push_back(Stored::row(stored.key, token, head));
      }
      const auto expected = channel_block(rows);
      const std::uint64_t bytes = engine.shape().key_block_bytes;
      const std::byte* block = stored.memory->key(0) + (first == 0 ? 3 : 1) * bytes;
      wrong += std::memcmp(block + head * bytes / Stored::kHeads, expected.data(), expected.size()) != 0;
    }
  }
  EXPECT_EQ(wrong, 0u) << "of 6 runs of K";
  EXPECT_EQ(stored.wrong_rows(stored.memory->value(0), engine.shape().value_block_bytes, stored.value, 255),
            0u);
}

TEST(PagedModel, RefusesKvTypesByNameAndReason) {
  const auto reason = [](const char* kv_type) {
    const auto refused = PagedModel::load({.gguf_path = model_path(), .kv_type = kv_type, .threads = 1});
    EXPECT_EQ(refused.code(), Code::kUnsupported);
    return refused.ok() ? "loaded" : refused.error().detail;
  };
  EXPECT_THAT(reason("bf16"), HasSubstr("loses accuracy on GGUF graphs"));
  EXPECT_THAT(reason("q8_0"), HasSubstr("isn't one of f32, f16, u8, u8_channel, u4"));
}

}  // namespace
}  // namespace isthmus::engine::openvino
