// SPDX-License-Identifier: Apache-2.0
// The start-up probe against the real engine: an honest descriptor passes, each lie is refused by name.
#include "engine/probe/probe.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "engine/llamacpp/llamacpp.h"

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
  for (const std::string kv_type : {"f16", "f32", "bf16"}) {
    const auto engine = make(kv_type);
    const auto report = probe_meaning(*engine, ISTHMUS_MODEL, probe_tolerance(*engine));
    ASSERT_TRUE(report.ok()) << kv_type << ": " << report.error().text();
    RecordProperty(kv_type, report->text());
    EXPECT_LT(report->k_error, report->tolerance / 1.5) << report->text();
    EXPECT_LT(report->v_error, report->tolerance / 1.5) << report->text();
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
