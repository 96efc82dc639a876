// SPDX-License-Identifier: Apache-2.0
// The engine as a whole on a small real model: answers, exactness, blocks, source and sink.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

#include "engine/openvino/openvino.h"
#include "engine/openvino/test_engine.h"
#include "engine/probe/probe.h"

namespace isthmus::engine::openvino {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Tokens = std::vector<TokenId>;
using Row = std::vector<float>;

// "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
const Tokens kQuestion{1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198};
constexpr TokenId kParis = 7042;

Options small_options(const std::string& kv_type) {
  return {.gguf_path = model_path(),
          .kv_type = kv_type,
          .threads = 1,
          .kv_tokens = 1024,
          .sequences_max = 5,
          .step_tokens_max = 256};
}

// One engine a KV type for all tests: loading takes seconds. Each test closes what it opens.
Engine& engine(const std::string& kv_type) {
  static std::map<std::string, std::unique_ptr<Engine>> engines;
  auto& slot = engines[kv_type];
  if (!slot) {
    auto made = make_openvino(small_options(kv_type));
    if (!made.ok()) ADD_FAILURE() << made.error().text();
    slot = *std::move(made);
  }
  return *slot;
}

class OpenvinoEngine : public ::testing::TestWithParam<const char*> {
 protected:
  Engine& engine_ = engine(GetParam());

  void TearDown() override {
    EXPECT_EQ(engine_.usage().sequences, 0u);
    EXPECT_EQ(engine_.usage().blocks_used, 0u);
  }
};

Tokens some_tokens(std::size_t count) {
  Tokens tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(300 + i * 7919 % 40000));
  return tokens;
}

// Logits after the last of `tokens`.
Row advance(Engine& engine, SequenceId sequence, std::span<const TokenId> tokens) {
  const StepItem item{.sequence = sequence, .tokens = tokens, .logits = 1};
  auto output = engine.step({&item, 1});
  if (!output.ok()) {
    ADD_FAILURE() << output.error().text();
    return {};
  }
  return {output->logits.begin(), output->logits.end()};
}

bool same_bits(const Row& a, const Row& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TokenId greedy(const Row& row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

TEST_P(OpenvinoEngine, AnswersAQuestion) {
  const SequenceId sequence = *engine_.open(64);
  Row row = advance(engine_, sequence, kQuestion);
  Tokens answer;
  for (int i = 0; i < 10; ++i) {
    answer.push_back(greedy(row));
    row = advance(engine_, sequence, {&answer.back(), 1});
  }
  EXPECT_THAT(answer, Contains(kParis));
  EXPECT_EQ(engine_.length(sequence), kQuestion.size() + 10);
  engine_.close(sequence);
}

// By channel, codes depend on the tokens that a block has when a chunk ends: only whole blocks keep every
// bit.
std::vector<std::size_t> chunks_of_77(const std::string& kv_type) {
  if (kv_type == "u8_channel") return {32, 32, 13};
  return {2, 31, 40, 4};
}

TEST_P(OpenvinoEngine, ChunksDoNotChangeABit) {
  const Tokens prompt = some_tokens(77);
  const SequenceId whole = *engine_.open(100), chunked = *engine_.open(100);
  const Row expected = advance(engine_, whole, prompt);
  Row row;
  std::size_t at = 0;
  for (const std::size_t chunk : chunks_of_77(GetParam())) {
    row = advance(engine_, chunked, std::span(prompt).subspan(at, chunk));
    at += chunk;
  }
  ASSERT_EQ(at, prompt.size());
  EXPECT_TRUE(same_bits(row, expected));
  const TokenId next = greedy(row);
  EXPECT_TRUE(same_bits(advance(engine_, chunked, {&next, 1}), advance(engine_, whole, {&next, 1})));
  engine_.close(whole);
  engine_.close(chunked);
}

TEST_P(OpenvinoEngine, BatchCompositionDoesNotChangeABit) {
  const Tokens prompt = some_tokens(45), other(prompt.rbegin(), prompt.rend());
  const TokenId next = 1234;
  const SequenceId alone = *engine_.open(64);
  const Row prefilled = advance(engine_, alone, prompt);
  const Row decoded = advance(engine_, alone, {&next, 1});

  const SequenceId a = *engine_.open(64), b = *engine_.open(64), c = *engine_.open(64);
  (void)advance(engine_, b, other);
  // Prefill of a beside a decode step of b; then decode of a beside prefill of c and decode of b.
  const StepItem first[] = {{b, {&next, 1}, 1}, {a, prompt, 3}};
  auto output = engine_.step(first);
  ASSERT_TRUE(output.ok());
  ASSERT_EQ(output->rows, 4u);
  const std::size_t vocabulary = engine_.info().vocabulary;
  EXPECT_TRUE(same_bits(
      {output->logits.end() - static_cast<std::ptrdiff_t>(vocabulary), output->logits.end()}, prefilled));
  const StepItem second[] = {{c, other, 0}, {a, {&next, 1}, 1}, {b, {&next, 1}, 0}};
  output = engine_.step(second);
  ASSERT_TRUE(output.ok());
  ASSERT_EQ(output->rows, 1u);
  EXPECT_TRUE(same_bits({output->logits.begin(), output->logits.end()}, decoded));
  for (const SequenceId sequence : {alone, a, b, c}) engine_.close(sequence);
}

// Behind a right draft the sequence goes on; a wrong one leaves nothing.
TEST_P(OpenvinoEngine, DraftsDoNotChangeABit) {
  if (engine_.speculation() == nullptr) GTEST_SKIP() << "its blocks are requantised as a whole";
  const Tokens prompt = some_tokens(45), answer{1234, 77, 901, 33};
  constexpr TokenId kWrong = 555;
  const SequenceId plain = *engine_.open(64), drafted = *engine_.open(64);
  (void)advance(engine_, plain, prompt);
  (void)advance(engine_, drafted, prompt);
  std::vector<Row> expected;
  for (const TokenId& token : answer) expected.push_back(advance(engine_, plain, {&token, 1}));
  const std::size_t vocabulary = engine_.info().vocabulary;
  const auto step = [&](TokenId due, TokenId draft, std::size_t row) {
    const Tokens both{due, draft};
    const StepItem item{.sequence = drafted, .tokens = both, .logits = 2, .drafts = 1};
    const auto output = engine_.step({&item, 1});
    EXPECT_TRUE(output.ok());
    return Row(output->logits.begin() + static_cast<std::ptrdiff_t>(row * vocabulary),
               output->logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * vocabulary));
  };
  EXPECT_TRUE(same_bits(step(answer[0], kWrong, 0), expected[0]));
  engine_.speculation()->take_back(drafted, 1);
  EXPECT_EQ(engine_.length(drafted), 46U);
  EXPECT_TRUE(same_bits(step(answer[1], answer[2], 1), expected[2]));
  EXPECT_TRUE(same_bits(advance(engine_, drafted, {&answer[3], 1}), expected[3]));
  engine_.close(plain);
  engine_.close(drafted);
}

TEST_P(OpenvinoEngine, BlockTablesDoNotChangeABit) {
  const Tokens prompt = some_tokens(150);
  const SequenceId ordered = *engine_.open(160);
  const Row expected = advance(engine_, ordered, prompt);
  // Blocks of three short sequences come back in another order.
  const SequenceId a = *engine_.open(40), b = *engine_.open(70), c = *engine_.open(33);
  engine_.close(b);
  engine_.close(a);
  engine_.close(c);
  const SequenceId scattered = *engine_.open(160);
  EXPECT_TRUE(same_bits(advance(engine_, scattered, prompt), expected));
  const auto exported = *engine_.kv_source()->export_range(scattered, {0, 150});
  EXPECT_FALSE(
      std::is_sorted(exported->bindings().front().blocks.begin(), exported->bindings().front().blocks.end()));
  engine_.close(ordered);
  engine_.close(scattered);
}

// What a mover between equal storages does: whole blocks, region by region.
void copy_blocks(const kv::Binding& from, const kv::Binding& to) {
  ASSERT_EQ(from.memory.size(), to.memory.size());
  ASSERT_EQ(from.blocks.size(), to.blocks.size());
  for (std::size_t i = 0; i < from.memory.size(); ++i) {
    ASSERT_EQ(from.memory[i].region, to.memory[i].region);
    ASSERT_EQ(from.memory[i].layer, to.memory[i].layer);
    const std::uint64_t bytes = from.memory[i].bytes / from.memory[i].open_extent;
    for (std::size_t b = 0; b < from.blocks.size(); ++b) {
      std::memcpy(to.memory[i].base + to.blocks[b] * bytes, from.memory[i].base + from.blocks[b] * bytes,
                  bytes);
    }
  }
}

TEST_P(OpenvinoEngine, AdoptedStateGoesOnBitForBit) {
  const Tokens prompt = some_tokens(75);
  const SequenceId source = *engine_.open(100), target = *engine_.open(100);
  TokenId next = greedy(advance(engine_, source, prompt));
  const std::uint64_t computed = engine_.usage().tokens_computed;
  {
    const auto exported = *engine_.kv_source()->export_range(source, {0, 75});
    EXPECT_EQ(exported->bytes(), 75 * engine_.info().kv_bytes_per_token);
    const kv::Binding bound = engine_.kv_sink()->bind(target, {0, 75})->front();
    EXPECT_EQ(bound.valid, (kv::TokenRange{0, 75}));
    copy_blocks(exported->bindings().front(), bound);
  }
  const StepItem early{.sequence = target, .tokens = {&next, 1}, .logits = 1};
  EXPECT_EQ(engine_.step({&early, 1}).code(), Code::kInvalidArgument) << "bound is not adopted";
  ASSERT_TRUE(engine_.kv_sink()->adopt(target, {0, 75}).ok());
  EXPECT_EQ(engine_.length(target), 75u);
  EXPECT_EQ(engine_.usage().tokens_computed, computed);
  for (int i = 0; i < 4; ++i) {
    const Row expected = advance(engine_, source, {&next, 1});
    EXPECT_TRUE(same_bits(advance(engine_, target, {&next, 1}), expected)) << "step " << i;
    next = greedy(expected);
  }
  engine_.close(source);
  engine_.close(target);
}

TEST_P(OpenvinoEngine, PassesTheMeaningProbe) {
  const auto report = probe_meaning(engine_, model_path(), probe_tolerance(engine_));
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_GT(report->tokens, 32u) << "must cross a block";
}

INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoEngine, ::testing::Values("f32", "f16", "u8", "u8_channel", "u4"),
                         [](const auto& param) { return std::string(param.param); });

std::vector<std::byte> bytes_of(const kv::Binding& binding) {
  std::vector<std::byte> bytes;
  for (const kv::RegionMemory& memory : binding.memory) {
    const std::uint64_t block_bytes = memory.bytes / memory.open_extent;
    for (const std::uint32_t block : binding.blocks) {
      const std::byte* from = memory.base + block * block_bytes;
      bytes.insert(bytes.end(), from, from + block_bytes);
    }
  }
  return bytes;
}

TEST_P(OpenvinoEngine, ExportedWholeBlocksNeverChange) {
  const SequenceId sequence = *engine_.open(120);
  (void)advance(engine_, sequence, some_tokens(70));
  const auto exported = *engine_.kv_source()->export_range(sequence, {0, 64});
  const std::vector<std::byte> before = bytes_of(exported->bindings().front());
  const Tokens more = some_tokens(30);
  (void)advance(engine_, sequence, more);
  (void)advance(engine_, sequence, {more.data(), 1});
  EXPECT_EQ(bytes_of(exported->bindings().front()), before);
  engine_.close(sequence);
}

TEST(OpenvinoByChannel, APartBlockThatIsExportedHoldsItsSequenceStill) {
  Engine& by_channel = engine("u8_channel");
  const SequenceId sequence = *by_channel.open(120), other = *by_channel.open(120);
  const Tokens more = some_tokens(3);
  (void)advance(by_channel, sequence, some_tokens(70));
  (void)advance(by_channel, other, more);
  auto exported = *by_channel.kv_source()->export_range(sequence, {64, 70});
  const std::vector<std::byte> before = bytes_of(exported->bindings().front());
  const StepItem item{.sequence = sequence, .tokens = more, .logits = 0};
  const auto refused = by_channel.step({&item, 1});
  ASSERT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().detail, HasSubstr("appending would requantise it"));
  (void)advance(by_channel, other, more);
  EXPECT_EQ(bytes_of(exported->bindings().front()), before);
  const kv::Binding binding = exported->bindings().front();
  exported.reset();
  (void)advance(by_channel, sequence, more);
  EXPECT_NE(bytes_of(binding), before) << "or the rule is needless";
  by_channel.close(sequence);
  by_channel.close(other);
}

class OpenvinoBounds : public ::testing::Test {
 protected:
  Engine& engine_ = engine("u8");
  void TearDown() override { EXPECT_EQ(engine_.usage().blocks_used, 0u); }
};

TEST_F(OpenvinoBounds, FullPoolIsExhaustedAndCloseBringsItBack) {
  EXPECT_EQ(engine_.usage().blocks_total, 1024u / 32);
  const SequenceId big = *engine_.open(31 * 32 - 5), small = *engine_.open(1);
  EXPECT_EQ(engine_.usage().blocks_used, 32u);
  EXPECT_EQ(engine_.usage().kv_bytes_used, engine_.usage().kv_bytes_total);
  const auto refused = engine_.open(1);
  ASSERT_EQ(refused.code(), Code::kExhausted);
  EXPECT_THAT(refused.error().detail, HasSubstr("1 KV blocks asked for, 0 of 33 are free"));
  engine_.close(big);
  EXPECT_EQ(engine_.usage().blocks_used, 1u);
  engine_.close(small);
}

TEST_F(OpenvinoBounds, AStepThatIsRefusedChangesNothing) {
  const SequenceId sequence = *engine_.open(40), other = *engine_.open(40);
  const Tokens prompt = some_tokens(38), three = some_tokens(3), bad{1, 49152}, negative{-1, 1};
  (void)advance(engine_, sequence, prompt);
  const auto code = [&](std::vector<StepItem> items) { return engine_.step(items).code(); };
  EXPECT_EQ(code({{other, three, 1}, {sequence, three, 1}}), Code::kExhausted) << "38 + 3 > 40";
  EXPECT_EQ(code({{other, bad, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{other, negative, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{other, three, 4}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{other, three, 1}, {other, three, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{other, {}, 0}}), Code::kInvalidArgument);
  EXPECT_EQ(code({}), Code::kInvalidArgument);
  EXPECT_EQ(code({{9999, three, 1}}), Code::kInvalidArgument);
  EXPECT_EQ(engine_.length(sequence), 38u);
  EXPECT_EQ(engine_.length(other), 0u);
  engine_.close(sequence);
  engine_.close(other);
}

TEST_F(OpenvinoBounds, AStepHasAMaximumOfTokens) {
  const SequenceId sequence = *engine_.open(500);
  const Tokens prompt = some_tokens(257);
  const StepItem item{.sequence = sequence, .tokens = prompt, .logits = 1};
  const auto refused = engine_.step({&item, 1});
  ASSERT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().detail, HasSubstr("257 tokens exceed step_tokens_max 256"));
  engine_.close(sequence);
}

TEST_F(OpenvinoBounds, SequencesHaveAMaximum) {
  std::vector<SequenceId> open;
  for (int i = 0; i < 5; ++i) open.push_back(*engine_.open(10));
  EXPECT_EQ(engine_.open(10).code(), Code::kExhausted);
  for (const SequenceId sequence : open) engine_.close(sequence);
  EXPECT_EQ(engine_.open(0).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_.open(1025).code(), Code::kInvalidArgument);
}

TEST_F(OpenvinoBounds, AnExportKeepsItsBlocksAfterClose) {
  const SequenceId sequence = *engine_.open(64);
  (void)advance(engine_, sequence, some_tokens(40));
  auto exported = *engine_.kv_source()->export_range(sequence, {0, 40});
  engine_.close(sequence);
  EXPECT_EQ(engine_.usage().blocks_used, 2u);
  EXPECT_EQ(engine_.open(1024).code(), Code::kExhausted);
  exported.reset();
  EXPECT_EQ(engine_.usage().blocks_used, 0u);
  engine_.close(*engine_.open(1024));
}

TEST_F(OpenvinoBounds, OnlyComputedPositionsAreExported) {
  const SequenceId sequence = *engine_.open(64);
  (void)advance(engine_, sequence, some_tokens(40));
  EXPECT_EQ(engine_.kv_source()->export_range(sequence, {0, 41}).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_.kv_source()->export_range(sequence, {3, 3}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(engine_.kv_source()->export_range(sequence, {33, 40}).ok());
  engine_.close(sequence);
}

TEST_F(OpenvinoBounds, OnlyAnEmptySequenceIsBoundAndOnlyABoundOneAdopts) {
  const SequenceId sequence = *engine_.open(64);
  KvSink& sink = *engine_.kv_sink();
  EXPECT_EQ(sink.adopt(sequence, {0, 40}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(sequence, {0, 65}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(sequence, {32, 40}).code(), Code::kInvalidArgument);
  ASSERT_TRUE(sink.bind(sequence, {0, 40}).ok());
  EXPECT_EQ(sink.bind(sequence, {0, 40}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.adopt(sequence, {0, 41}).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_.kv_source()->export_range(sequence, {0, 1}).code(), Code::kInvalidArgument);
  engine_.close(sequence);

  const SequenceId used = *engine_.open(64);
  (void)advance(engine_, used, some_tokens(4));
  EXPECT_EQ(sink.bind(used, {0, 40}).code(), Code::kInvalidArgument);
  engine_.close(used);
}

// The engine with another layout in its descriptor.
class MisdescribedEngine : public Engine {
 public:
  MisdescribedEngine(Engine& honest, const std::string& from, const std::string& to)
      : honest_(honest), descriptor_(honest.descriptor()) {
    std::string& text = descriptor_.representation[0].layout_text;
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  const EngineInfo& info() const override { return honest_.info(); }
  const kv::Descriptor& descriptor() const override { return descriptor_; }
  EngineUsage usage() const override { return honest_.usage(); }
  Result<SequenceId> open(std::uint64_t tokens_max) override { return honest_.open(tokens_max); }
  void close(SequenceId sequence) override { honest_.close(sequence); }
  std::uint64_t length(SequenceId sequence) const override { return honest_.length(sequence); }
  Result<StepOutput> step(std::span<const StepItem> items) override { return honest_.step(items); }
  KvSource* kv_source() override { return honest_.kv_source(); }
  KvSink* kv_sink() override { return honest_.kv_sink(); }

  std::string probe() {
    const auto report = probe_meaning(*this, model_path(), probe_tolerance(*this));
    EXPECT_EQ(report.code(), Code::kIncompatible) << descriptor_.representation[0].layout_text;
    return report.ok() ? report->text() : report.error().detail;
  }

 private:
  Engine& honest_;
  kv::Descriptor descriptor_;
};

TEST_F(OpenvinoBounds, TheMeaningProbeCatchesAnotherAxisOrder) {
  EXPECT_THAT(MisdescribedEngine(engine_, "head slot", "slot head").probe(), HasSubstr("the order is"));
}

TEST_F(OpenvinoBounds, TheMeaningProbeCatchesScaleAndZeroPointSwapped) {
  EXPECT_THAT(MisdescribedEngine(engine_, ".s:f32 ; v.z", ".z:f32 ; v.s").probe(),
              HasSubstr("scale and zero point"));
}

TEST(MakeOpenvino, AnExportOutlivesItsEngine) {
  Options options = small_options("u8");
  options.kv_tokens = 64;
  auto brief = *make_openvino(options);
  const SequenceId sequence = *brief->open(40);
  (void)advance(*brief, sequence, some_tokens(40));
  const auto exported = *brief->kv_source()->export_range(sequence, {0, 40});
  const auto before = read_layer(brief->descriptor(), exported->bindings().front(), 29, {0, 40});
  const kv::Descriptor descriptor = brief->descriptor();
  brief.reset();
  const auto after = read_layer(descriptor, exported->bindings().front(), 29, {0, 40});
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(before->k, after->k);
  EXPECT_EQ(before->v, after->v);
}

TEST(MakeOpenvino, RefusesBadOptionsByName) {
  const auto refusal = [](auto change) {
    Options options = small_options("u8");
    change(options);
    const auto made = make_openvino(options);
    return made.ok() ? "made" : made.error().text();
  };
  EXPECT_THAT(refusal([](Options& o) { o.threads = 0; }), HasSubstr("threads is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.kv_tokens = 31; }), HasSubstr("kv_tokens is 31"));
  EXPECT_THAT(refusal([](Options& o) { o.sequences_max = 0; }), HasSubstr("sequences_max is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.step_tokens_max = 0; }), HasSubstr("step_tokens_max is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.gguf_path = "/no/such.gguf"; }), HasSubstr("not_found"));
  EXPECT_THAT(refusal([](Options& o) { o.kv_type = "bf16"; }), HasSubstr("unsupported"));
  EXPECT_THAT(refusal([](Options& o) { o.isa = "portable"; }), HasSubstr("unsupported"));
  EXPECT_THAT(refusal([](Options& o) { o.isa = "sse9"; }), HasSubstr("isn't one of native, avx512, avx2"));
  const std::string garbage = ::testing::TempDir() + "garbage.gguf";
  std::ofstream(garbage) << std::string("GGUF\3\0\0\0", 8) << "and then nothing that makes sense";
  EXPECT_THAT(refusal([&](Options& o) { o.gguf_path = garbage; }), HasSubstr("malformed"));
}

TEST(OpenvinoActivations, RoundedOnesAreARecipeOfTheirOwn) {
  Options options = small_options("f16");
  const auto plain = *make_openvino(options);
  options.activations = "int8";
  const auto rounded = *make_openvino(options);
  EXPECT_EQ(rounded->descriptor().weights_recipe, plain->descriptor().weights_recipe + "-a8");
  const auto row = [](Engine& engine) {
    const SequenceId sequence = *engine.open(kQuestion.size());
    const StepItem item{.sequence = sequence, .tokens = kQuestion, .logits = 1};
    const StepOutput output = *engine.step({&item, 1});
    return Row(output.logits.begin(), output.logits.end());
  };
  const Row exact = row(*plain), near = row(*rounded);
  EXPECT_NE(exact, near);
  EXPECT_EQ(std::ranges::max_element(near) - near.begin(), std::ranges::max_element(exact) - exact.begin());
  EXPECT_TRUE(probe_meaning(*rounded, model_path(), probe_tolerance(*rounded)).ok());
  options.activations = "int4";
  EXPECT_THAT(make_openvino(options).error().text(), HasSubstr("aren't one of f32, int8"));
}

}  // namespace
}  // namespace isthmus::engine::openvino
