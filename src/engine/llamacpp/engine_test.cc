// SPDX-License-Identifier: Apache-2.0
// The llama.cpp engine on the test model: steps, exports, capacity, refusals.
#include "engine/api/engine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "engine/llamacpp/llamacpp.h"
#include "engine/llamacpp/test_engine.h"
#include "engine/llamacpp/tokenizer.h"

namespace isthmus::engine::llamacpp {

std::string model_path() {
  return ISTHMUS_MODEL;
}
namespace {

TEST(LlamaEngine, InfoSaysWhatTheModelIs) {
  const auto engine = make();
  EXPECT_EQ(engine->info().name, "llamacpp");
  EXPECT_EQ(engine->info().storage, "llamacpp:f16");
  EXPECT_EQ(engine->info().vocabulary, 49'152u);
  EXPECT_EQ(engine->info().kv_bytes_per_token, kLayers * 2 * kRowBytes);
  EXPECT_EQ(engine->info().context_tokens_max, 512u);
  EXPECT_EQ(engine->info().block_tokens, 0u);
  EXPECT_EQ(engine->usage().kv_bytes_total, 512 * kLayers * 2 * kRowBytes);
  EXPECT_EQ(engine->usage().tokens_computed, 0u);
  EXPECT_TRUE(engine->descriptor().weights_recipe.starts_with("llamacpp."));
  EXPECT_TRUE(engine->descriptor().weights_recipe.ends_with("/gguf-q4_1"));
  EXPECT_TRUE(engine->descriptor().validate().ok());
  EXPECT_NE(engine->kv_sink(), nullptr);
  EXPECT_NE(engine->kv_source(), nullptr);
}

TEST(LlamaEngine, GreedyTextIsSane) {
  const auto engine = make();
  const auto tokenizer = make_tokenizer(ISTHMUS_MODEL).value();
  const auto sequence = engine->open(64).value();
  std::vector<TokenId> next = tokenizer->encode("The capital of France is", false, false).value();
  std::string text;
  for (int i = 0; i < 6; ++i) {
    next = {argmax(run(*engine, sequence, next))};
    text += tokenizer->piece(next[0]);
  }
  EXPECT_NE(text.find("Paris"), std::string::npos) << text;
}

TEST(LlamaEngine, ChunkedPrefillIsCloseToWholeAndRepeatsItsBits) {
  const auto tokens = prompt(150);
  const auto engine = make();
  const auto whole_sequence = engine->open(160).value();
  const std::vector<float> whole = run(*engine, whole_sequence, tokens);
  engine->close(whole_sequence);
  const auto chunked = [&] {
    const auto sequence = engine->open(160).value();
    run(*engine, sequence, std::span(tokens).subspan(0, 64), 0);
    run(*engine, sequence, std::span(tokens).subspan(64, 64), 0);
    std::vector<float> logits = run(*engine, sequence, std::span(tokens).subspan(128));
    EXPECT_EQ(engine->length(sequence), 150u);
    engine->close(sequence);
    return logits;
  };
  const std::vector<float> first = chunked(), second = chunked();
  EXPECT_TRUE(same_bits(first, second));
  EXPECT_LT(kl(whole, first), 1e-2);
}

TEST(LlamaEngine, ExportOfChunksEqualsExportOfTheWholeByteForByte) {
  const auto tokens = prompt(130);
  const auto engine = make();
  const auto sequence = engine->open(200).value();
  std::vector<std::unique_ptr<ExportedKv>> chunks;
  for (const auto& [begin, end] : {std::pair{0u, 64u}, std::pair{64u, 128u}, std::pair{128u, 130u}}) {
    run(*engine, sequence, std::span(tokens).subspan(begin, end - begin), 0);
    chunks.push_back(engine->kv_source()->export_range(sequence, {begin, end}).value());
    EXPECT_EQ(chunks.back()->bindings().front().first_position, begin);
    EXPECT_EQ(chunks.back()->bindings().front().valid, (kv::TokenRange{begin, end}));
  }
  const auto whole = engine->kv_source()->export_range(sequence, {0, 130}).value();
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const std::string region : {"K", "V"}) {
      std::vector<std::byte> joined;
      for (const auto& chunk : chunks) {
        const auto part = plane(*chunk, region, layer);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, plane(*whole, region, layer)) << region << " " << layer;
      EXPECT_EQ(joined.size(), 130 * kRowBytes);
    }
  }
}

TEST(LlamaEngine, ExportsLeaveTheSequenceAsItWas) {
  const auto tokens = prompt(40);
  const auto engine = make();
  const auto plain = engine->open(60).value(), exported = engine->open(60).value();
  run(*engine, plain, tokens);
  run(*engine, exported, tokens);
  ASSERT_TRUE(engine->kv_source()->export_range(exported, {3, 17}).ok());
  const std::vector<TokenId> next{500};
  const auto a = run(*engine, plain, next), b = run(*engine, exported, next);
  EXPECT_LT(kl(a, b), 1e-6);
  EXPECT_EQ(engine->length(exported), 41u);
}

TEST(LlamaEngine, CellsOutOfOrderAreExportedInOrder) {
  const auto tokens = prompt(120);
  const auto first = std::span(tokens).first(60), second = std::span(tokens).subspan(60);
  const auto fresh = make(256, 2), engine = make(256, 2);
  const auto reference = fresh->open(120).value();
  run(*fresh, reference, first, 0);
  run(*fresh, reference, second, 0);
  const auto in_order = fresh->kv_source()->export_range(reference, {0, 120}).value();
  // The first chunk lies behind another sequence, which ends; the second chunk takes its cells.
  const auto front = engine->open(100).value(), late = engine->open(120).value();
  run(*engine, front, prompt(100, 3), 0);
  run(*engine, late, first, 0);
  engine->close(front);
  run(*engine, late, second, 0);
  const auto out_of_order = engine->kv_source()->export_range(late, {0, 120}).value();
  ASSERT_NE(in_order->bytes(), out_of_order->bytes()) << "the cells were in order: the test shows nothing";
  EXPECT_EQ(plane(*in_order, "K", 0), plane(*out_of_order, "K", 0));
  EXPECT_EQ(plane(*in_order, "V", 0), plane(*out_of_order, "V", 0));
  EXPECT_EQ(plane(*out_of_order, "V", 29).size(), 120 * kRowBytes);
}

TEST(LlamaEngine, LogitsRowsFollowTheItemsAndOnlyWhereAsked) {
  const auto engine = make();
  const auto a = prompt(20), b = prompt(30, 7), c = prompt(5, 9);
  const auto alone = [&](std::span<const TokenId> tokens, std::uint32_t rows) {
    const auto sequence = engine->open(64).value();
    auto logits = run(*engine, sequence, tokens, rows);
    engine->close(sequence);
    return logits;
  };
  const auto alone_a = alone(a, 2), alone_c = alone(c, 1);
  const std::size_t row = engine->info().vocabulary;
  EXPECT_LT(kl(alone(a, 1), std::span(alone_a).subspan(row)), 1e-6)
      << "one row is not that of the last token";
  std::vector<StepItem> items(3);
  items[0] = {.sequence = engine->open(64).value(), .tokens = a, .logits = 2};
  items[1] = {.sequence = engine->open(64).value(), .tokens = b, .logits = 0};
  items[2] = {.sequence = engine->open(64).value(), .tokens = c, .logits = 1};
  const auto output = engine->step(items);
  ASSERT_TRUE(output.ok()) << output.error().text();
  ASSERT_EQ(output->rows, 3u);
  ASSERT_EQ(output->logits.size(), 3 * row);
  for (const std::size_t i : {0u, 1u}) {
    EXPECT_LT(kl(std::span(alone_a).subspan(i * row, row), output->logits.subspan(i * row, row)), 1e-2) << i;
  }
  EXPECT_LT(kl(alone_c, output->logits.subspan(2 * row, row)), 1e-2);
  EXPECT_GT(kl(alone_c, output->logits.subspan(row, row)), 0.1);  // Another sequence's row is far away.
}

TEST(LlamaEngine, CapacityIsReservedRefusedAndGivenBack) {
  const auto engine = make(512, 2);
  const EngineUsage before = engine->usage();
  const auto large = engine->open(500).value();
  const auto refused = engine->open(13);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), Code::kExhausted);
  EXPECT_NE(refused.error().detail.find("12 of 512 are free"), std::string::npos) << refused.error().detail;
  const auto small = engine->open(12).value();
  EXPECT_EQ(engine->usage().kv_bytes_used, engine->usage().kv_bytes_total);
  engine->close(large);
  ASSERT_TRUE(engine->open(100).ok());
  EXPECT_EQ(engine->open(1).code(), Code::kExhausted) << "both sequences are open";
  engine->close(small);
  EXPECT_EQ(engine->open(513).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine->open(0).code(), Code::kInvalidArgument);
  EXPECT_EQ(before.kv_bytes_used, 0u);
}

TEST(LlamaEngine, ClosedSequencesLeaveTheirCells) {
  const auto engine = make(256, 2);
  for (int round = 0; round < 4; ++round) {
    const auto sequence = engine->open(256).value();
    run(*engine, sequence, prompt(150, round + 1), 0);
    engine->close(sequence);
  }
  EXPECT_EQ(engine->usage().kv_bytes_used, 0u);
  EXPECT_EQ(engine->usage().sequences, 0u);
  EXPECT_EQ(engine->usage().tokens_computed, 600u);
}

TEST(LlamaEngine, ARefusedStepChangesNothing) {
  const auto engine = make(512, 2);
  const auto sequence = engine->open(10).value(), other = engine->open(400).value();
  const auto tokens = prompt(8), long_prompt = prompt(300);
  run(*engine, sequence, tokens);
  const auto code = [&](const std::vector<StepItem>& items) { return engine->step(items).code(); };
  EXPECT_EQ(code({}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.sequence = 999, .tokens = tokens}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.sequence = other, .tokens = {}}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.sequence = other, .tokens = tokens, .logits = 9}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.sequence = other, .tokens = tokens}, {.sequence = other, .tokens = tokens}}),
            Code::kInvalidArgument);
  EXPECT_EQ(code({{.sequence = other, .tokens = long_prompt}}), Code::kInvalidArgument);  // Beyond a step.
  EXPECT_EQ(code({{.sequence = other, .tokens = tokens}, {.sequence = sequence, .tokens = tokens}}),
            Code::kExhausted);
  const std::vector<TokenId> outside{49'152}, negative{-1};
  EXPECT_EQ(code({{.sequence = other, .tokens = outside}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.sequence = other, .tokens = negative}}), Code::kInvalidArgument);
  EXPECT_EQ(engine->length(sequence), 8u);
  EXPECT_EQ(engine->length(other), 0u);
  EXPECT_EQ(engine->usage().tokens_computed, 8u);
  EXPECT_EQ(engine->kv_source()->export_range(sequence, {0, 9}).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine->kv_source()->export_range(sequence, {4, 4}).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine->kv_source()->export_range(999, {0, 1}).code(), Code::kInvalidArgument);
  run(*engine, other, tokens);
  EXPECT_EQ(engine->length(other), 8u);
}

TEST(LlamaEngine, OptionsAreCheckedByName) {
  const auto refused = [](const Options& options) {
    const auto engine = make_llamacpp(options);
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? Error{} : engine.error();
  };
  const Error kv_type = refused({.model_path = ISTHMUS_MODEL, .kv_type = "q5_1"});
  EXPECT_EQ(kv_type.code, Code::kUnsupported);
  EXPECT_NE(kv_type.detail.find("\"q5_1\"; it can be f16, "), std::string::npos) << kv_type.detail;
  EXPECT_EQ(refused({.model_path = ISTHMUS_MODEL, .threads = 0}).code, Code::kInvalidArgument);
  EXPECT_EQ(refused({.model_path = ISTHMUS_MODEL, .context_tokens = 0}).code, Code::kInvalidArgument);
  EXPECT_EQ(refused({.model_path = ISTHMUS_MODEL, .sequences_max = 256}).code, Code::kInvalidArgument);
  EXPECT_EQ(refused({.model_path = ISTHMUS_MODEL, .step_tokens_max = 1}).code, Code::kInvalidArgument);
}

TEST(LlamaEngine, AFileThatIsNoModelIsATypedError) {
  EXPECT_EQ(make_llamacpp({.model_path = "/nowhere.gguf"}).code(), Code::kNotFound);
  const std::string path = testing::TempDir() + "not_a_model.gguf";
  std::ofstream(path) << "this is no model";
  EXPECT_EQ(make_llamacpp({.model_path = path}).code(), Code::kMalformed);
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
