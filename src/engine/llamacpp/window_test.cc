// SPDX-License-Identifier: Apache-2.0
// Models whose layers attend to a window: a state has all positions all the same, whatever else the pool is
// used for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/llamacpp/test_engine.h"
#include "engine/probe/test_model.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::uint64_t kWindow = 24;  // Of all layers but layer 5.
constexpr std::uint64_t kCells = 512;

const std::string& windowed_path() {
  static const WrittenModel written(gemma3_model(), model_path());
  static const std::string path = written.path();
  return path;
}

std::unique_ptr<Engine> make_windowed(const std::string& kv_type = "f16", std::uint32_t sequences_max = 3) {
  auto engine = make_llamacpp({.model_path = windowed_path(),
                               .kv_type = kv_type,
                               .threads = 1,
                               .context_tokens = kCells,
                               .sequences_max = sequences_max,
                               .step_tokens_max = 256});
  if (!engine.ok()) ADD_FAILURE() << engine.error().text();
  return std::move(engine).value();
}

// Regions of an export, by name and layer, as bytes.
std::vector<std::vector<std::byte>> planes_of(Engine& engine, SequenceId sequence, kv::TokenRange range) {
  const auto exported = engine.kv_source()->export_range(sequence, range);
  if (!exported.ok()) {
    ADD_FAILURE() << exported.error().text();
    return {};
  }
  std::vector<std::vector<std::byte>> planes;
  for (const kv::RegionMemory& memory : (*exported)->bindings().front().memory) {
    planes.emplace_back(memory.base, memory.base + memory.bytes);
  }
  return planes;
}

TEST(LlamaWindow, AnExportBeyondTheWindowIsItsParts) {
  const auto engine = make_windowed();
  const SequenceId sequence = engine->open(200).value();
  run(*engine, sequence, prompt(120), 0);
  const auto whole = planes_of(*engine, sequence, {0, 120});
  ASSERT_EQ(whole.size(), 14u);
  for (const auto& [begin, end] :
       {std::pair<std::uint64_t, std::uint64_t>{0, kWindow}, {30, 31}, {17, 100}, {24, 73}, {96, 120}}) {
    const auto part = planes_of(*engine, sequence, {begin, end});
    ASSERT_EQ(part.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const std::size_t row = whole[i].size() / 120;
      ASSERT_EQ(part[i].size(), row * (end - begin));
      EXPECT_EQ(std::memcmp(part[i].data(), whole[i].data() + begin * row, part[i].size()), 0)
          << i << " of [" << begin << ", " << end << ")";
    }
  }
}

// llama.cpp takes the free cells that it comes upon, and those out of their window as well.
TEST(LlamaWindow, WhatLeftTheWindowStaysWhileOthersFillThePool) {
  const auto engine = make_windowed(), elsewhere = make_windowed();
  const SequenceId source = elsewhere->open(180).value();
  run(*elsewhere, source, prompt(180, 3), 0);
  const SequenceId leaves = engine->open(150).value(), kept = engine->open(230).value();
  run(*engine, leaves, prompt(150, 5), 0);
  run(*engine, kept, prompt(200), 0);
  const auto before = planes_of(*engine, kept, {0, 200});
  engine->close(leaves);  // The first 150 cells are free again, kept's are next.
  const SequenceId other = engine->open(180).value();
  run(*engine, other, prompt(180, 3), 0);
  EXPECT_TRUE(planes_of(*engine, kept, {0, 200}) == before) << "after a step";
  engine->close(other);
  const SequenceId adopted = hand_over(*elsewhere, source, *engine, 180);
  EXPECT_TRUE(planes_of(*engine, kept, {0, 200}) == before) << "after an adoption";
  engine->close(kept);  // The adopted's last 30 cells come after it.
  const SequenceId last = engine->open(230).value();
  run(*engine, last, prompt(230, 4), 0);
  EXPECT_TRUE(planes_of(*engine, adopted, {0, 180}) == planes_of(*elsewhere, source, {0, 180}));
  engine->close(adopted);
  engine->close(last);
  const SequenceId all = engine->open(kCells).value();  // Nobody holds a cell any more.
  for (int i = 0; i < 2; ++i) run(*engine, all, prompt(256, 1 + i), 0);
  engine->close(all);
}

// Threads, chunks and cells agree: docs/llamacpp.md.
TEST(LlamaWindow, AHandoverChangesNoBitInTheMiddleOfAWindowOrBeyond) {
  for (const std::string kv_type : {"f16", "q8_0", "f32_v_transposed"}) {
    const auto source = make_windowed(kv_type, 1), target = make_windowed(kv_type, 1);
    for (const std::size_t tokens : {10u, 24u, 25u, 120u}) {
      const SequenceId from = source->open(200).value();
      run(*source, from, prompt(tokens), 0);
      const SequenceId to = target->open(200).value();
      const kv::Binding bound = target->kv_sink()->bind(to, {0, tokens}).value().front();
      const auto state = source->kv_source()->export_range(from, {0, tokens}).value();
      copy_rows(state->bindings().front(), bound);
      ASSERT_TRUE(target->kv_sink()->adopt(to, {0, tokens}).ok());
      for (const TokenId token : prompt(40, 7)) {
        const auto expected = run(*source, from, {&token, 1}), found = run(*target, to, {&token, 1});
        ASSERT_TRUE(same_bits(expected, found))
            << kv_type << ", " << tokens << " tokens, then " << target->length(to) - tokens;
      }
      source->close(from);
      target->close(to);
    }
  }
}

TEST(LlamaWindow, HalfAsManySequencesFit) {
  const auto engine = [](std::uint32_t sequences_max) {
    return make_llamacpp(
        {.model_path = windowed_path(), .context_tokens = 256, .sequences_max = sequences_max});
  };
  EXPECT_TRUE(engine(127).ok());
  const auto refused = engine(128);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().detail, testing::HasSubstr("a model with a sliding window has at most 127"));
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
