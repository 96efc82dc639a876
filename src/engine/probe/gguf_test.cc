// SPDX-License-Identifier: Apache-2.0
// The GGUF reader and dequantisation: known values, and files that lie about their lengths.
#include "engine/probe/gguf.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "engine/probe/dequantise.h"
#include "engine/probe/model_facts.h"
#include "engine/probe/test_model.h"
#include "kv/catalogue.h"

namespace isthmus::engine {
namespace {

std::string path_of(const std::string& name) {
  return testing::TempDir() + name;
}

std::vector<std::byte> block(std::initializer_list<int> bytes, std::size_t size) {
  std::vector<std::byte> out;
  for (const int byte : bytes) out.push_back(static_cast<std::byte>(byte));
  out.resize(size, static_cast<std::byte>(0x53));  // Low nibble 3, high nibble 5.
  return out;
}

std::vector<float> decode(std::uint32_t type, std::span<const std::byte> bytes) {
  std::vector<float> out(tensor_block(type).elements);
  dequantise(type, bytes, out);
  return out;
}

TEST(Dequantise, EveryF16AndBf16PatternMeansItsNumber) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_f32(0xc000), -2.0f);
  EXPECT_EQ(f16_to_f32(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(f16_to_f32(0x03ff), std::ldexp(1023.0f, -24));
  EXPECT_EQ(f16_to_f32(0x7bff), 65504.0f);
  EXPECT_TRUE(std::signbit(f16_to_f32(0x8000)) && f16_to_f32(0x8000) == 0);
  EXPECT_TRUE(std::isinf(f16_to_f32(0x7c00)) && std::isnan(f16_to_f32(0x7e00)));
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {  // Finite magnitudes grow with their patterns.
    ASSERT_LT(f16_to_f32(static_cast<std::uint16_t>(bits)), f16_to_f32(static_cast<std::uint16_t>(bits + 1)));
  }
  EXPECT_EQ(bf16_to_f32(0x3f80), 1.0f);
}

TEST(Dequantise, BlocksFollowTheirFormulas) {
  // Scale 2 (0x4000), minimum 1 (0x3c00).
  const auto q4_0 = decode(2, block({0x00, 0x40}, 18));
  EXPECT_EQ(q4_0[0], (3 - 8) * 2.0f);
  EXPECT_EQ(q4_0[31], (5 - 8) * 2.0f);
  const auto q4_1 = decode(3, block({0x00, 0x40, 0x00, 0x3c}, 20));
  EXPECT_EQ(q4_1[15], 3 * 2.0f + 1);
  EXPECT_EQ(q4_1[16], 5 * 2.0f + 1);
  const auto q8_0 = decode(8, block({0x00, 0x40, 0xff}, 34));
  EXPECT_EQ(q8_0[0], -2.0f);
  EXPECT_EQ(q8_0[1], 0x53 * 2.0f);
  std::vector<std::byte> q6_k(210, std::byte{0});
  q6_k[0] = std::byte{0x21};          // Element 0: low 1; element 64: low 2.
  q6_k[128] = std::byte{0b00110010};  // High bits of element 0: 2, of 32: 0, of 64: 3.
  q6_k[192] = std::byte{3};           // Scale of elements 0-15.
  q6_k[196] = std::byte{0xff};        // Of elements 64-79: -1.
  q6_k[209] = std::byte{0x40};        // d = 2.
  const auto values = decode(14, q6_k);
  EXPECT_EQ(values[0], 2.0f * 3 * (1 + 32 - 32));
  EXPECT_EQ(values[64], 2.0f * -1 * (2 + 48 - 32));
  EXPECT_EQ(values[1], 2.0f * 3 * -32);
}

TEST(GgufFile, ValuesAndRowsAreRead) {
  const auto file = GgufFile::open(llama_model().write(path_of("model.gguf")));
  ASSERT_TRUE(file.ok()) << file.error().text();
  EXPECT_EQ(file->text("general.architecture").value(), "llama");
  EXPECT_EQ(file->count("llama.block_count").value(), 2u);
  EXPECT_FLOAT_EQ(static_cast<float>(file->real("llama.rope.freq_base").value()), 50'000.0f);
  EXPECT_EQ(file->array_length("tokenizer.ggml.tokens").value(), 512u);
  EXPECT_EQ(file->count("general.name").code(), Code::kMalformed);
  EXPECT_EQ(file->text("nothing").code(), Code::kMalformed);
  const GgufTensor* tensor = file->tensor("blk.0.attn_k.weight");
  ASSERT_NE(tensor, nullptr);
  const auto all = random_floats(256 * 128, 3);
  EXPECT_EQ(file->row(*tensor, 127).value(), std::vector<float>(all.end() - 256, all.end()));
  EXPECT_EQ(file->row(*tensor, 128).code(), Code::kInvalidArgument);
  EXPECT_EQ(file->tensor("nothing"), nullptr);
}

TEST(GgufFile, AnUnknownTensorTypeIsNamedWhenRead) {
  GgufWriter gguf;
  gguf.tensor("odd", {4}, 99, std::vector<std::byte>(16));
  const auto file = GgufFile::open(write_file(path_of("odd.gguf"), gguf.bytes()));
  ASSERT_TRUE(file.ok());
  const auto row = file->row(*file->tensor("odd"), 0);
  EXPECT_EQ(row.code(), Code::kUnsupported);
  EXPECT_NE(row.error().detail.find("odd has tensor type 99"), std::string::npos);
}

TEST(GgufFile, EveryTruncationIsATypedError) {
  GgufWriter gguf = llama_model().writer();
  gguf.f32_tensor("tail", {64}, random_floats(64, 5));
  const std::vector<std::byte> whole = gguf.bytes();
  ASSERT_TRUE(GgufFile::open(write_file(path_of("cut.gguf"), whole)).ok());
  for (std::size_t size = 0; size < whole.size(); size += size < 256 ? 1 : 37) {
    const auto file = GgufFile::open(write_file(path_of("cut.gguf"), std::span(whole).first(size)));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.code(), Code::kMalformed) << file.error().text();
  }
}

TEST(GgufFile, EveryChangedByteOfTheHeaderIsReadOrRefusedWithoutHarm) {
  GgufWriter gguf;
  gguf.text("general.architecture", "llama");
  gguf.texts("list", {"a", "b"});
  gguf.u32("number", 7);
  gguf.f32_tensor("tail", {8, 8}, random_floats(64, 5));
  const std::vector<std::byte> whole = gguf.bytes();
  int refused = 0;
  for (std::size_t at = 0; at < whole.size() - 256; ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::vector<std::byte> bytes = whole;
      bytes[at] ^= static_cast<std::byte>(flip);
      const auto file = GgufFile::open(write_file(path_of("flip.gguf"), bytes));
      if (!file.ok()) ++refused;
      if (file.ok() && file->tensor("tail") != nullptr) {
        for (std::uint64_t row = 0; row < std::min<std::uint64_t>(file->tensor("tail")->rows(), 8); ++row) {
          (void)file->row(*file->tensor("tail"), row);
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(GgufFile, WhatIsNoFileIsNotFound) {
  EXPECT_EQ(GgufFile::open("/nowhere.gguf").code(), Code::kNotFound);
  EXPECT_EQ(GgufFile::open("/").code(), Code::kNotFound);
}

TEST(ModelFacts, AreReadFromTheFile) {
  const auto facts = read_model_facts(llama_model().write(path_of("facts.gguf")));
  ASSERT_TRUE(facts.ok()) << facts.error().text();
  EXPECT_EQ(facts->architecture, "llama");
  EXPECT_EQ(facts->layers, 2u);
  EXPECT_EQ(facts->kv_heads, 2u);
  EXPECT_EQ(facts->head_dim, 64u);
  EXPECT_EQ(facts->vocabulary, 512u);
  EXPECT_EQ(facts->rope_scaling, "none");
  EXPECT_EQ(facts->weights_recipe, "gguf-f32");
  EXPECT_EQ(facts->file_sha256.size(), 64u);
  EXPECT_EQ(read_tokenizer_digest(path_of("facts.gguf")).value(), facts->tokenizer_digest);
}

TEST(ModelFacts, DigestsFollowWhatTheyCover) {
  const auto facts = [](const std::string& name, const std::function<void(GgufWriter&)>& change) {
    GgufWriter gguf = llama_model().writer();
    change(gguf);
    return read_model_facts(write_file(path_of(name), gguf.bytes())).value();
  };
  const ModelFacts plain = facts("plain.gguf", [](GgufWriter&) {});
  const ModelFacts other_tokenizer =
      facts("a.gguf", [](GgufWriter& gguf) { gguf.u32("tokenizer.ggml.bos_token_id", 1); });
  const ModelFacts other_rope =
      facts("b.gguf", [](GgufWriter& gguf) { gguf.f32("llama.rope.scaling.factor", 2); });
  EXPECT_NE(plain.tokenizer_digest, other_tokenizer.tokenizer_digest);
  EXPECT_EQ(plain.config_digest, other_tokenizer.config_digest);
  EXPECT_NE(plain.config_digest, other_rope.config_digest);
  EXPECT_NE(plain.rope_scaling, other_rope.rope_scaling);
}

// Records of qualified pairs name digests: what they are made of must stay for models that stay.
TEST(ModelFacts, TheDigestOfAModelWithoutExtrasIsMadeOfThisText) {
  const ModelFacts facts = read_model_facts(llama_model().write(path_of("digest.gguf"))).value();
  EXPECT_EQ(facts.config_digest,
            digest128("llama layers=2 width=256 heads=4 kv_heads=2 head_dim=64 vocabulary=512 "
                      "epsilon=3ee4f8b580000000 theta=40e86a0000000000 scaling=none window=none")
                .hex());
}

TEST(ModelFacts, ArchitecturesDifferInPairingBiasesAndNorms) {
  const ModelFacts qwen2 = read_model_facts(qwen2_model().write(path_of("qwen2.gguf"), true)).value();
  EXPECT_EQ(qwen2.architecture, "qwen2");
  EXPECT_EQ(qwen2.rope_pairing, "halves");
  EXPECT_EQ(qwen2.biases, "qkv");
  EXPECT_EQ(qwen2.head_norms, "");
  const ModelFacts qwen3 = read_model_facts(qwen3_model().write(path_of("qwen3.gguf"), true)).value();
  EXPECT_EQ(qwen3.head_dim, 128u);
  EXPECT_EQ(qwen3.rope_pairing, "halves");
  EXPECT_EQ(qwen3.biases, "");
  EXPECT_EQ(qwen3.head_norms, "qk");
  TestModel unbiased = qwen2_model();
  unbiased.has_biases = false;
  EXPECT_NE(read_model_facts(unbiased.write(path_of("unbiased.gguf")))->config_digest, qwen2.config_digest);
  const auto descriptor = describe(qwen3, *kv::find_storage("llamacpp:q8_0").value());
  ASSERT_TRUE(descriptor.ok()) << descriptor.error().text();
  EXPECT_EQ(descriptor->groups[0].components[0].value_transforms,
            (std::vector<std::string>{"rope:halves", "hadamard:128"}));
}

TEST(ModelFacts, ASlidingWindowIsRefusedWhereTheArchitectureHasNoneUnlessNoSequenceOutgrowsIt) {
  const auto facts_of = [](const std::string& architecture, std::uint32_t window) {
    GgufWriter gguf = TestModel{.architecture = architecture}.writer();
    gguf.u32(architecture + ".attention.sliding_window", window);
    return read_model_facts(write_file(path_of("window.gguf"), gguf.bytes()));
  };
  for (const std::string architecture : {"llama", "qwen2", "gemma"}) {
    const auto facts = facts_of(architecture, 4095);
    ASSERT_FALSE(facts.ok()) << architecture;
    EXPECT_EQ(facts.code(), Code::kUnsupported);
    EXPECT_NE(facts.error().detail.find("sliding window isn't served for " + architecture + ": " +
                                        architecture + ".attention"),
              std::string::npos)
        << facts.error().detail;
  }
  for (const std::uint32_t window : {0u, 4096u}) EXPECT_TRUE(facts_of("qwen2", window).ok()) << window;
}

TEST(ModelFacts, TheWindowOfGemma3IsOfAllLayersButEverySixth) {
  const ModelFacts facts = read_model_facts(gemma3_model().write(path_of("gemma3.gguf"))).value();
  EXPECT_EQ(facts.window.tokens, 24u);
  EXPECT_EQ(facts.window.rope_theta, 1e4);
  EXPECT_EQ(facts.rope_theta, 1e6);
  for (const std::uint32_t layer : {0u, 4u, 6u, 10u}) EXPECT_TRUE(facts.window.is_local(layer)) << layer;
  for (const std::uint32_t layer : {5u, 11u}) EXPECT_FALSE(facts.window.is_local(layer)) << layer;
  EXPECT_EQ(facts.config_digest,
            digest128("gemma3 layers=7 width=256 heads=4 kv_heads=2 head_dim=128 vocabulary=512 "
                      "epsilon=3ee4f8b580000000 theta=412e848000000000 scaling=none "
                      "window=24 but_every=6 theta=40c3880000000000 head_norms=qk")
                .hex());
  const auto descriptor = describe(facts, *kv::find_storage("llamacpp:f16").value()).value();
  ASSERT_EQ(descriptor.groups.size(), 1u);
  EXPECT_EQ(descriptor.groups[0].attention, kv::AttentionKind::kFull);
  EXPECT_EQ(descriptor.groups[0].layers.size(), 7u);
}

// One key more in a file that is served; the detail of the refusal, "" if there's none.
std::string refusal_with(const TestModel& model, const std::function<void(GgufWriter&)>& add) {
  GgufWriter gguf = model.writer();
  add(gguf);
  const auto facts = read_model_facts(write_file(path_of("with.gguf"), gguf.bytes()));
  if (facts.ok()) return "";
  EXPECT_EQ(facts.code(), Code::kUnsupported);
  return facts.error().detail;
}

TEST(ModelFacts, KeysThatChangeAttentionOtherwiseAreNamed) {
  for (const std::string key : {"attn_logit_softcapping", "final_logit_softcapping", "attention.scale",
                                "attention.sliding_window_pattern", "attention.key_length_swa",
                                "attention.value_length_swa", "rope.dimension_count_swa"}) {
    for (const TestModel& model : {llama_model(), gemma3_model()}) {
      const std::string full = model.architecture + "." + key;
      const std::string detail = refusal_with(model, [&](GgufWriter& gguf) { gguf.f32(full, 1); });
      EXPECT_NE(detail.find(full + " isn't served"), std::string::npos) << full << ": " << detail;
    }
  }
  EXPECT_EQ(
      refusal_with(gemma3_model(), [](GgufWriter& gguf) { gguf.f32("gemma3.rope.freq_base_swa", 5e3f); }),
      "");
  TestModel windowless = gemma3_model(), wide = gemma3_model(), large = gemma3_model();
  windowless.window = 0;
  wide.window = 4097;
  large.layers = 62;
  const auto nothing = [](GgufWriter&) {};
  EXPECT_NE(refusal_with(windowless, nothing).find("gemma3.attention.sliding_window is missing"),
            std::string::npos);
  EXPECT_NE(refusal_with(wide, nothing).find("gemma3.attention.sliding_window is 4097; 1 to 4096 are served"),
            std::string::npos);
  EXPECT_NE(refusal_with(large, nothing).find("62 layers"), std::string::npos)
      << refusal_with(large, nothing);
}

TEST(ModelFacts, AnUnknownArchitectureIsNamed) {
  GgufWriter gguf;
  gguf.text("general.architecture", "mamba");
  const auto facts = read_model_facts(write_file(path_of("mamba.gguf"), gguf.bytes()));
  EXPECT_EQ(facts.code(), Code::kUnsupported);
  EXPECT_NE(facts.error().detail.find("\"mamba\" isn't served; llama, qwen2, qwen3, gemma, gemma3 are"),
            std::string::npos)
      << facts.error().detail;
}

TEST(ModelFacts, DescribeGivesOneValidDescriptorPerStorage) {
  const ModelFacts facts = read_model_facts(llama_model().write(path_of("describe.gguf"))).value();
  for (const std::string name : {"llamacpp:f16", "llamacpp:f32", "openvino:f32", "openvino:u8"}) {
    const auto descriptor = describe(facts, *kv::find_storage(name).value());
    ASSERT_TRUE(descriptor.ok()) << name << ": " << descriptor.error().text();
    EXPECT_EQ(descriptor->identity.lineage, facts.file_sha256);
    EXPECT_EQ(descriptor->weights_recipe, name.substr(0, name.find(':')) + "/gguf-f32");
    EXPECT_EQ(descriptor->groups[0].layers.size(), 2u);
    EXPECT_EQ(descriptor->groups[0].components[0].value_transforms,
              (std::vector<std::string>{"rope:interleaved"}));
    EXPECT_TRUE(descriptor->layout(0, 0).ok());
  }
  const auto rotated = describe(facts, *kv::find_storage("llamacpp:q8_0").value());
  ASSERT_TRUE(rotated.ok()) << rotated.error().text();
  EXPECT_EQ(rotated->groups[0].components[0].value_transforms,
            (std::vector<std::string>{"rope:interleaved", "hadamard:64"}));
  EXPECT_EQ(rotated->groups[0].components[1].value_transforms, (std::vector<std::string>{"hadamard:64"}));
}

}  // namespace
}  // namespace isthmus::engine
