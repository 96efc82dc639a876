// SPDX-License-Identifier: Apache-2.0
// The start-up probe against the real engine: an honest descriptor passes, each lie is refused by name.
#include "engine/probe/probe.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/llamacpp/llamacpp.h"
#include "engine/probe/test_model.h"

namespace isthmus::engine::llamacpp {
namespace {

// An engine whose descriptor says something else than it does.
class LyingEngine : public Engine {
 public:
  LyingEngine(Engine& honest, kv::Descriptor lie)
      : honest_(honest), lie_(std::move(lie)), info_(honest.info()) {
    info_.block_tokens = lie_.representation[0].block_tokens;
  }
  const EngineInfo& info() const override { return info_; }
  const kv::Descriptor& descriptor() const override { return lie_; }
  EngineUsage usage() const override { return honest_.usage(); }
  Result<SequenceId> open(std::uint64_t tokens_max) override { return honest_.open(tokens_max); }
  void close(SequenceId sequence) override { honest_.close(sequence); }
  std::uint64_t length(SequenceId sequence) const override { return honest_.length(sequence); }
  Result<StepOutput> step(std::span<const StepItem> items) override { return honest_.step(items); }
  KvSource* kv_source() override { return honest_.kv_source(); }
  KvSink* kv_sink() override { return nullptr; }

 private:
  Engine& honest_;
  kv::Descriptor lie_;
  EngineInfo info_;
};

std::unique_ptr<Engine> make(const std::string& kv_type) {
  return make_llamacpp({.model_path = ISTHMUS_MODEL,
                        .kv_type = kv_type,
                        .threads = 1,
                        .context_tokens = 256,
                        .sequences_max = 1,
                        .step_tokens_max = 256})
      .value();
}

std::string refusal(Engine& engine, const std::function<void(kv::Descriptor&)>& lie) {
  kv::Descriptor descriptor = engine.descriptor();
  lie(descriptor);
  LyingEngine liar(engine, std::move(descriptor));
  const auto report = probe_meaning(liar, ISTHMUS_MODEL, probe_tolerance(engine));
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(engine.usage().sequences, 0u);
  if (report.ok()) return "passed: " + report->text();
  EXPECT_EQ(report.code(), Code::kIncompatible) << report.error().detail;
  return report.error().detail;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

TEST(LlamaProbe, AnHonestEnginePassesInEveryKvType) {
  for (const std::string kv_type : {"f16", "f32", "bf16", "f16_v_transposed", "f32_v_transposed",
                                    "bf16_v_transposed", "q8_0", "q8_0_unrotated", "q8_0_v_q4_0"}) {
    const auto engine = make(kv_type);
    const auto report = probe_meaning(*engine, ISTHMUS_MODEL, probe_tolerance(*engine));
    ASSERT_TRUE(report.ok()) << kv_type << ": " << report.error().text();
    RecordProperty(kv_type, report->text());
    EXPECT_LT(report->k_error, report->tolerance.k / 1.5) << report->text();
    EXPECT_LT(report->v_error, report->tolerance.v / 1.5) << report->text();
    EXPECT_EQ(report->layers, 30u);
    EXPECT_EQ(engine->usage().sequences, 0u);
  }
}

TEST(LlamaProbe, SwappedKAndVAreNamed) {
  const auto engine = make("f16");
  const std::string detail = refusal(*engine, [](kv::Descriptor& lie) {
    std::string& text = lie.representation[0].layout_text;
    replace(text, "k:", "x:");
    replace(text, "v:", "k:");
    replace(text, "x:", "v:");
  });
  EXPECT_NE(detail.find("K and V are swapped"), std::string::npos) << detail;
}

TEST(LlamaProbe, AnotherRopePairingIsNamed) {
  const auto engine = make("f16");
  const std::string detail = refusal(
      *engine, [](kv::Descriptor& lie) { lie.groups[0].components[0].value_transforms = {"rope:halves"}; });
  EXPECT_NE(detail.find("rope pairing is interleaved, the descriptor says halves"), std::string::npos)
      << detail;
}

TEST(LlamaProbe, MissingRotationIsNamed) {
  const auto engine = make("f16");
  const std::string detail =
      refusal(*engine, [](kv::Descriptor& lie) { lie.groups[0].components[0].value_transforms.clear(); });
  EXPECT_NE(detail.find("rope pairing is interleaved, the descriptor says none"), std::string::npos)
      << detail;
}

TEST(LlamaProbe, AnotherFormatIsNamed) {
  const auto engine = make("f16");
  for (const auto& [text, format] :
       {std::pair{"bf16", kv::Format::kBf16}, std::pair{"f32", kv::Format::kF32}}) {
    const std::string detail = refusal(*engine, [&](kv::Descriptor& lie) {
      replace(lie.representation[0].layout_text, ":f16", std::string(":") + text);
      for (kv::DecodeForm& form : lie.representation[0].forms) form.codes = format;
    });
    EXPECT_NE(detail.find(std::string("elements are f16, the descriptor says ") + text), std::string::npos)
        << detail;
  }
}

TEST(LlamaProbe, AnotherOrderOfHeadsIsNamed) {
  const auto engine = make("f16");
  const std::string detail = refusal(*engine, [](kv::Descriptor& lie) {
    replace(lie.representation[0].layout_text, "head dim", "dim head");
  });
  EXPECT_NE(detail.find("the order is \"head dim\""), std::string::npos) << detail;
}

TEST(LlamaProbe, AnotherThetaIsNamed) {
  const auto engine = make("f16");
  const std::string detail = refusal(*engine, [](kv::Descriptor& lie) { lie.identity.rope_theta = 10'000; });
  EXPECT_NE(detail.find("identity.rope_theta is 10000 in the descriptor, 100000 in the file"),
            std::string::npos)
      << detail;
}

TEST(LlamaProbe, AnUntrueRotationIsNamedForTheComponentThatItIsSaidOf) {
  const auto rotated = make("q8_0"), plain = make("q8_0_unrotated");
  const auto transforms = [](kv::Descriptor& lie, std::size_t component) -> std::vector<std::string>& {
    return lie.groups[0].components[component].value_transforms;
  };
  const std::string without = refusal(*rotated, [&](kv::Descriptor& lie) { lie = plain->descriptor(); });
  EXPECT_NE(without.find("rows are stored after hadamard:64; the same for V"), std::string::npos) << without;
  const std::string with = refusal(*plain, [&](kv::Descriptor& lie) { lie = rotated->descriptor(); });
  EXPECT_NE(with.find("rows are stored without the hadamard:64 that the descriptor says; the same for V"),
            std::string::npos)
      << with;
  for (const std::size_t component : {0u, 1u}) {
    const std::string one =
        refusal(*rotated, [&](kv::Descriptor& lie) { transforms(lie, component).pop_back(); });
    const char* name = component == 0 ? "K" : "V";
    const char* other = component == 0 ? "V of layer" : "K of layer";
    EXPECT_NE(one.find(std::string(name) + " of layer 0 is off by 1."), std::string::npos) << one;
    EXPECT_NE(one.find("rows are stored after hadamard:64"), std::string::npos) << one;
    EXPECT_EQ(one.find(other), std::string::npos) << one;
  }
}

// A llama whose heads have 128 elements.
std::string wide_head_model() {
  TestModel model = llama_model();
  model.dim = 128;
  GgufWriter gguf = model.writer();
  gguf.text("tokenizer.ggml.model", "no_vocab");
  gguf.u32("llama.vocab_size", TestModel::kVocabulary);
  model.add_tensors(gguf);
  model.add_rest(gguf);
  return write_file(testing::TempDir() + "wide_head_model.gguf", gguf.bytes());
}

TEST(LlamaProbe, WiderHeadsAreRotatedAsTheCatalogueSays) {
  const std::string path = wide_head_model();
  for (const std::string kv_type : {"f16", "q8_0", "q8_0_unrotated", "q8_0_v_q4_0"}) {
    const auto engine = make_llamacpp({.model_path = path, .kv_type = kv_type, .context_tokens = 256});
    ASSERT_TRUE(engine.ok()) << engine.error().text();
    const std::vector<kv::Component>& components = (*engine)->descriptor().groups[0].components;
    const bool is_rotated = kv_type == "q8_0" || kv_type == "q8_0_v_q4_0";
    EXPECT_EQ(components[0].value_transforms.back(), is_rotated ? "hadamard:128" : "rope:interleaved");
    EXPECT_EQ(components[1].value_transforms.size(), is_rotated ? 1u : 0u);
    if (is_rotated) {
      EXPECT_EQ(components[1].value_transforms[0], "hadamard:64");
    }
    const auto report = probe_meaning(**engine, path, probe_tolerance(**engine));
    EXPECT_TRUE(report.ok()) << kv_type << ": " << report.error().text();
  }
}

TEST(LlamaProbe, HowFourBitsArePackedIsNamed) {
  const auto engine = make("q8_0_v_q4_0");
  const std::string neighbours = refusal(*engine, [](kv::Descriptor& lie) {
    replace(lie.representation[0].layout_text, "dim%16 dim/16%2", "dim%32");
  });
  EXPECT_NE(neighbours.find("the order is \"dim%16 dim/16%2\", the descriptor says \"dim%32\""),
            std::string::npos)
      << neighbours;
  const std::string sign = refusal(*engine, [](kv::Descriptor& lie) {
    replace(lie.representation[0].layout_text, "v:u4", "v:i4");
    lie.representation[0].forms[1].codes = kv::Format::kI4;
  });
  EXPECT_NE(sign.find("elements are u4, the descriptor says i4"), std::string::npos) << sign;
}

TEST(LlamaProbe, BlocksThatAreNotThereAreRefused) {
  const auto engine = make("f16");
  const std::string detail = refusal(*engine, [](kv::Descriptor& lie) {
    replace(lie.representation[0].layout_text, "tok head", "blk slot head");
    lie.representation[0].block_tokens = 16;
  });
  EXPECT_NE(detail.find("block table"), std::string::npos) << detail;
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
