// SPDX-License-Identifier: Apache-2.0
// The llama.cpp engine as a sink: bound, written by others, adopted; what is refused and what it leaves
// behind.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "engine/api/engine.h"
#include "engine/llamacpp/library.h"
#include "engine/llamacpp/llama_engine.h"
#include "engine/llamacpp/test_engine.h"

namespace isthmus::engine::llamacpp {
namespace {

// A state of 40 tokens out of one engine and 40 cells bound for it in another.
struct Crossing {
  std::unique_ptr<Engine> source, target;
  SequenceId from = 0, to = 0;
  std::unique_ptr<ExportedKv> state;
  kv::Binding binding;

  explicit Crossing(const std::string& kv_type = "f16")
      : source(make(256, 1, kv_type)), target(make(256, 2, kv_type)) {
    from = source->open(64).value();
    run(*source, from, prompt(40), 0);
    state = source->kv_source()->export_range(from, {0, 40}).value();
    to = target->open(64).value();
    binding = target->kv_sink()->bind(to, {0, 40}).value().front();
  }
  Status adopt(kv::TokenRange range = {0, 40}) { return target->kv_sink()->adopt(to, range); }
};

TEST(LlamaSink, AnAdoptedSequenceGoesOnAsItsSourceDoesInEveryKvType) {
  for (const std::string kv_type : {"f16", "f32", "bf16", "f16_v_transposed", "f32_v_transposed",
                                    "bf16_v_transposed", "q8_0", "q8_0_unrotated", "q8_0_v_q4_0"}) {
    Crossing crossing(kv_type);
    EXPECT_EQ(crossing.target->info().storage, "llamacpp:" + kv_type);
    copy_rows(crossing.state->bindings().front(), crossing.binding);
    ASSERT_TRUE(crossing.adopt().ok()) << kv_type;
    EXPECT_EQ(crossing.target->length(crossing.to), 40u);
    const std::vector<TokenId> next{500};
    EXPECT_TRUE(
        same_bits(run(*crossing.source, crossing.from, next), run(*crossing.target, crossing.to, next)))
        << kv_type;
    const auto back = crossing.target->kv_source()->export_range(crossing.to, {0, 40}).value();
    for (const std::uint32_t layer : {0u, 29u}) {
      EXPECT_EQ(plane(*crossing.state, "K", layer), plane(*back, "K", layer)) << kv_type;
      EXPECT_EQ(plane(*crossing.state, "V", layer), plane(*back, "V", layer)) << kv_type;
    }
  }
}

// Units of the positions [begin, end) of a plane that holds `cells` positions, line by line.
std::vector<std::byte> cut(const std::vector<std::byte>& whole, std::size_t lines, std::size_t cells,
                           std::size_t begin, std::size_t end) {
  const std::size_t line = whole.size() / lines, unit = line / cells;
  std::vector<std::byte> part;
  for (std::size_t at = 0; at < whole.size(); at += line) {
    part.insert(part.end(), whole.begin() + static_cast<std::ptrdiff_t>(at + begin * unit),
                whole.begin() + static_cast<std::ptrdiff_t>(at + end * unit));
  }
  return part;
}

TEST(LlamaSource, AnyRangeOfAnyKvTypeIsThatPartOfTheWhole) {
  for (const std::string kv_type : {"bf16", "f16_v_transposed", "q8_0", "q8_0_v_q4_0"}) {
    const auto engine = make(256, 1, kv_type);
    const auto sequence = engine->open(64).value();
    run(*engine, sequence, prompt(45), 0);
    const auto whole = engine->kv_source()->export_range(sequence, {0, 45}).value();
    const std::size_t v_lines = kv_type == "f16_v_transposed" ? kKvHeads * kHeadDim : 1;
    for (const kv::TokenRange range : {kv::TokenRange{3, 17}, {0, 1}, {44, 45}, {31, 33}}) {
      const auto part = engine->kv_source()->export_range(sequence, range).value();
      EXPECT_EQ(part->bindings().front().valid, range);
      EXPECT_EQ(part->bindings().front().first_position, range.begin);
      EXPECT_EQ(part->bindings().front().memory[0].open_extent, range.size());
      for (const std::uint32_t layer : {0u, 29u}) {
        EXPECT_EQ(plane(*part, "K", layer), cut(plane(*whole, "K", layer), 1, 45, range.begin, range.end))
            << kv_type;
        EXPECT_EQ(plane(*part, "V", layer),
                  cut(plane(*whole, "V", layer), v_lines, 45, range.begin, range.end))
            << kv_type;
      }
    }
  }
}

TEST(LlamaSink, ManyThreadsMayWriteUntilAdoption) {
  Crossing crossing;
  std::vector<std::thread> writers;
  for (std::size_t first = 0; first < 4; ++first) {
    writers.emplace_back([&, first] {
      const auto& memory = crossing.state->bindings().front().memory;
      for (std::size_t i = first; i < memory.size(); i += 4) {
        std::memcpy(crossing.binding.memory[i].base, memory[i].base, memory[i].bytes);
      }
    });
  }
  // The engine goes on meanwhile with another sequence.
  const auto other = crossing.target->open(20).value();
  run(*crossing.target, other, prompt(20, 3));
  for (std::thread& writer : writers) writer.join();
  ASSERT_TRUE(crossing.adopt().ok());
  const auto back = crossing.target->kv_source()->export_range(crossing.to, {0, 40}).value();
  EXPECT_EQ(plane(*crossing.state, "K", 29), plane(*back, "K", 29));
}

TEST(LlamaSink, APrefixOfWhatIsBoundMayBeAdopted) {
  for (const std::string kv_type : {"f16", "f16_v_transposed"}) {
    Crossing crossing(kv_type);
    copy_rows(crossing.state->bindings().front(), crossing.binding);
    // What lies behind the prefix is never looked at.
    for (const kv::RegionMemory& memory : crossing.binding.memory) {
      if (memory.region == "K") std::memset(memory.base + 30 * kRowBytes, 0xff, 10 * kRowBytes);
    }
    ASSERT_TRUE(crossing.adopt({0, 30}).ok());
    EXPECT_EQ(crossing.target->length(crossing.to), 30u);
    const auto back = crossing.target->kv_source()->export_range(crossing.to, {0, 30}).value();
    auto expected = plane(*crossing.state, "K", 7);
    expected.resize(30 * kRowBytes);
    EXPECT_EQ(plane(*back, "K", 7), expected);
    // The cells behind it are free again.
    EXPECT_EQ(run(*crossing.target, crossing.to, prompt(34)).size(), crossing.target->info().vocabulary);
  }
}

TEST(LlamaSink, StagedMemoryIsCountedUntilAdoptionOrClose) {
  const auto engine = make(256, 2);
  const auto a = engine->open(100).value(), b = engine->open(50).value();
  EXPECT_EQ(engine->usage().kv_bytes_staged, 0u);
  ASSERT_TRUE(engine->kv_sink()->bind(a, {0, 100}).ok());
  const std::uint64_t planes = 100 * engine->info().kv_bytes_per_token;
  const std::uint64_t staged = engine->usage().kv_bytes_staged;
  EXPECT_GE(staged, planes);
  EXPECT_LT(staged, planes + 24 + 100 * 12 + kLayers * 24 + 1);
  const auto bound = engine->kv_sink()->bind(b, {0, 40}).value().front();
  for (const kv::RegionMemory& memory : bound.memory) std::memset(memory.base, 0, memory.bytes);
  ASSERT_TRUE(engine->kv_sink()->adopt(b, {0, 40}).ok());
  EXPECT_EQ(engine->usage().kv_bytes_staged, staged);
  EXPECT_EQ(engine->usage().kv_bytes_used, 150 * engine->info().kv_bytes_per_token);
  engine->close(a);
  EXPECT_EQ(engine->usage().kv_bytes_staged, 0u);
  engine->close(b);
  EXPECT_EQ(engine->usage().kv_bytes_used, 0u);
}

TEST(LlamaSink, WhatCannotBeBoundOrAdoptedIsRefused) {
  const auto engine = make(256, 2);
  const auto sequence = engine->open(20).value(), used = engine->open(20).value();
  run(*engine, used, prompt(3));
  KvSink& sink = *engine->kv_sink();
  EXPECT_EQ(sink.bind(999, {0, 1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(used, {0, 10}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(sequence, {0, 21}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(sequence, {5, 5}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(sequence, {5, 10}).code(), Code::kUnsupported);
  EXPECT_EQ(sink.adopt(sequence, {0, 10}).code(), Code::kInvalidArgument);
  ASSERT_TRUE(sink.bind(sequence, {0, 10}).ok());
  EXPECT_EQ(sink.bind(sequence, {0, 10}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.adopt(sequence, {0, 11}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.adopt(sequence, {0, 0}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.adopt(sequence, {1, 5}).code(), Code::kInvalidArgument);
  const auto tokens = prompt(2);
  const StepItem item{.sequence = sequence, .tokens = tokens, .logits = 0};
  EXPECT_EQ(engine->step({&item, 1}).code(), Code::kInvalidArgument) << "bound, not adopted";
  EXPECT_EQ(engine->kv_source()->export_range(sequence, {0, 1}).code(), Code::kInvalidArgument);
}

TEST(LlamaSink, ADamagedStateLeavesTheSequenceEmptyAndUsable) {
  Crossing crossing;
  copy_rows(crossing.state->bindings().front(), crossing.binding);
  *(crossing.binding.memory[0].base - 1) ^= std::byte{1};  // The row size of layer 0's K.
  const Status adopted = crossing.adopt();
  ASSERT_EQ(adopted.code(), Code::kCorrupt);
  EXPECT_NE(adopted.error().detail.find("layer 0 K row bytes"), std::string::npos) << adopted.error().detail;
  EXPECT_EQ(crossing.target->length(crossing.to), 0u);
  EXPECT_EQ(crossing.target->usage().kv_bytes_staged, 0u);
  crossing.binding = crossing.target->kv_sink()->bind(crossing.to, {0, 40}).value().front();
  copy_rows(crossing.state->bindings().front(), crossing.binding);
  ASSERT_TRUE(crossing.adopt().ok());
  EXPECT_EQ(crossing.target->length(crossing.to), 40u);
}

// An engine that believes V to lie transposed, over a context where it doesn't.
std::unique_ptr<LlamaEngine> mistaken_engine() {
  const auto transposed = make(256, 1, "f16_v_transposed");
  LlamaEngine::Parts parts;
  parts.model = load_model(ISTHMUS_MODEL, false).value();
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 256;
  params.n_seq_max = 2;
  params.n_threads = params.n_threads_batch = 1;
  params.kv_unified = true;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  parts.context = make_context(parts.model.get(), params, true).value();
  parts.info = transposed->info();
  parts.descriptor = transposed->descriptor();
  parts.shape = {.layers = kLayers,
                 .k_type = 1,
                 .v_type = 1,
                 .k_row_bytes = kRowBytes,
                 .v_row_bytes = kRowBytes,
                 .v_columns = kKvHeads * kHeadDim};
  return std::make_unique<LlamaEngine>(std::move(parts));
}

TEST(LlamaSink, WhatLlamaItselfRefusesLeavesTheSequenceEmpty) {
  const auto engine = mistaken_engine();
  EXPECT_EQ(engine->check_state_format().code(), Code::kIncompatible);
  const auto sequence = engine->open(40).value();
  const kv::Binding binding = engine->bind(sequence, {0, 20}).value().front();
  for (const kv::RegionMemory& memory : binding.memory) std::memset(memory.base, 0, memory.bytes);
  const Status adopted = engine->adopt(sequence, {0, 20});
  ASSERT_EQ(adopted.code(), Code::kIncompatible);
  EXPECT_NE(adopted.error().detail.find("took 0 of"), std::string::npos) << adopted.error().detail;
  EXPECT_EQ(engine->length(sequence), 0u);
  EXPECT_EQ(engine->usage().kv_bytes_staged, 0u);
  EXPECT_EQ(run(*engine, sequence, prompt(40)).size(), engine->info().vocabulary);
}

TEST(LlamaSink, ANumberThatIsNotFiniteStaysOutOfThePool) {
  for (const std::string kv_type : {"f32", "f32_v_transposed"}) {
    Crossing crossing(kv_type);
    copy_rows(crossing.state->bindings().front(), crossing.binding);
    store_le(std::span(crossing.binding.memory[1].base + 40, 4), std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(crossing.adopt().code(), Code::kCorrupt);
    const auto other = crossing.target->open(20).value();
    for (const float logit : run(*crossing.target, other, prompt(20, 3))) ASSERT_TRUE(std::isfinite(logit));
  }
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
