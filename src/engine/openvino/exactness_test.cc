// SPDX-License-Identifier: Apache-2.0
// Lossless is exact: a state that one engine has made and another goes on from gives the same bits as one
// engine doing everything, alone and in mixed batches, whatever blocks and chunks it went through.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "engine/openvino/openvino.h"
#include "engine/openvino/test_engine.h"

namespace isthmus::engine::openvino {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::size_t kSteps = 64;

struct Arithmetic {
  const char* kv_type;
  const char* activations;
};

Options options(const Arithmetic& arithmetic, std::uint64_t kv_tokens) {
  return {.gguf_path = model_path(),
          .kv_type = arithmetic.kv_type,
          .threads = 1,
          .kv_tokens = kv_tokens,
          .sequences_max = 16,
          .step_tokens_max = 600,
          .activations = arithmetic.activations};
}

Tokens prompt_of(std::size_t length) {
  Tokens tokens;
  for (std::size_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<TokenId>(300 + (i + length) * 7919 % 40000));
  }
  return tokens;
}

TokenId greedy(std::span<const float> row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

std::string bits_of(std::span<const float> row) {
  return digest128(std::as_bytes(row)).hex();
}

// What an answer consists of: the tokens drawn, and the bits that each was drawn from.
struct Trace {
  Tokens tokens;
  std::vector<std::string> bits;

  void take(std::span<const float> row) {
    tokens.push_back(greedy(row));
    bits.push_back(bits_of(row));
  }
  friend bool operator==(const Trace&, const Trace&) = default;
};

// The rows of one step over all items, a row an item.
std::vector<std::vector<float>> step(Engine& engine, std::span<const StepItem> items) {
  const auto output = engine.step(items);
  if (!output.ok()) {
    ADD_FAILURE() << output.error().text();
    return std::vector<std::vector<float>>(items.size(), std::vector<float>(1));
  }
  std::vector<std::vector<float>> rows;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto row = output->logits.subspan(i * engine.info().vocabulary, engine.info().vocabulary);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

// Runs `prompt` in chunks of at most `chunk`, none of one token; the last row.
std::vector<float> prefill(Engine& engine, SequenceId sequence, const Tokens& prompt, std::size_t chunk) {
  std::vector<float> last;
  for (std::size_t at = 0; at < prompt.size();) {
    std::size_t end = std::min(prompt.size(), at + chunk);
    if (prompt.size() - end == 1) end = prompt.size();
    const StepItem item{sequence, std::span(prompt).subspan(at, end - at), 1};
    last = step(engine, {&item, 1})[0];
    at = end;
  }
  return last;
}

Trace alone(Engine& engine, const Tokens& prompt) {
  const SequenceId sequence = *engine.open(prompt.size() + kSteps);
  Trace trace;
  trace.take(prefill(engine, sequence, prompt, 256));
  while (trace.tokens.size() <= kSteps) {
    const StepItem item{sequence, std::span(trace.tokens).last(1), 1};
    trace.take(step(engine, {&item, 1})[0]);
  }
  engine.close(sequence);
  return trace;
}

void copy_blocks(const kv::Binding& from, const kv::Binding& to) {
  ASSERT_EQ(from.memory.size(), to.memory.size());
  ASSERT_EQ(from.blocks.size(), to.blocks.size());
  for (std::size_t i = 0; i < from.memory.size(); ++i) {
    const std::uint64_t bytes = from.memory[i].bytes / from.memory[i].open_extent;
    ASSERT_EQ(to.memory[i].bytes / to.memory[i].open_extent, bytes);
    for (std::size_t b = 0; b < from.blocks.size(); ++b) {
      std::memcpy(to.memory[i].base + to.blocks[b] * bytes, from.memory[i].base + from.blocks[b] * bytes,
                  bytes);
    }
  }
}

// An answer under way at the target.
struct Running {
  SequenceId sequence = 0;
  Trace trace;
};

class LosslessHandover : public ::testing::TestWithParam<Arithmetic> {
 protected:
  std::unique_ptr<Engine> source_ = *make_openvino(options(GetParam(), 2048));
  std::unique_ptr<Engine> target_ = *make_openvino(options(GetParam(), 5120));

  void SetUp() override {
    // The target's free blocks come in another order than the source's.
    std::vector<SequenceId> held;
    for (const std::uint64_t tokens : {96u, 33u, 400u, 64u, 1000u}) held.push_back(*target_->open(tokens));
    for (const std::size_t i : {3u, 0u, 4u, 2u, 1u}) target_->close(held[i]);
  }

  // Prefills at the source in chunks of `chunk` and copies the blocks.
  Running hand_over(const Tokens& prompt, std::size_t chunk) {
    Running running;
    const SequenceId made = *source_->open(prompt.size());
    running.trace.take(prefill(*source_, made, prompt, chunk));
    const auto exported = *source_->kv_source()->export_range(made, {0, prompt.size()});
    running.sequence = *target_->open(prompt.size() + kSteps);
    const kv::Binding bound = target_->kv_sink()->bind(running.sequence, {0, prompt.size()})->front();
    EXPECT_NE(bound.blocks, exported->bindings().front().blocks);
    copy_blocks(exported->bindings().front(), bound);
    EXPECT_TRUE(target_->kv_sink()->adopt(running.sequence, {0, prompt.size()}).ok());
    source_->close(made);
    return running;
  }

  // One forward: a token of each answer, after the items of `others`.
  void decode(std::span<Running> all, std::vector<StepItem> others = {}) {
    const std::size_t first = others.size();
    std::vector<StepItem> items = std::move(others);
    for (Running& running : all) {
      items.push_back({running.sequence, std::span(running.trace.tokens).last(1), 1});
    }
    const auto rows = step(*target_, items);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].trace.take(rows[first + i]);
  }

  void expect_equal_together(std::span<const std::size_t> lengths, std::span<const Trace> expected) {
    std::vector<Running> together;
    for (const std::size_t length : lengths) together.push_back(hand_over(prompt_of(length), 100));
    const Tokens other = prompt_of(300);
    const SequenceId prefilling = *target_->open(other.size());
    for (std::size_t i = 0; i < kSteps; ++i) {
      std::vector<StepItem> others;
      const std::size_t at = target_->length(prefilling);
      if (i % 8 == 3) others.push_back({prefilling, std::span(other).subspan(at, 20 + i / 4), 1});
      decode(together, std::move(others));
    }
    target_->close(prefilling);
    for (std::size_t i = 0; i < together.size(); ++i) {
      EXPECT_EQ(together[i].trace, expected[i]) << "prompt of " << lengths[i] << " among others";
      target_->close(together[i].sequence);
    }
  }

  void expect_equal_alone(std::size_t length, const Trace& expected) {
    Running single = hand_over(prompt_of(length), 64);
    for (std::size_t i = 0; i < kSteps; ++i) decode({&single, 1});
    EXPECT_EQ(single.trace, expected) << "prompt of " << length << ", alone";
    target_->close(single.sequence);
  }
};

// Around the starts of prompts, blocks, tiles and steps; the quantised type, which costs twice the time, has
// some.
std::vector<std::size_t> lengths_of(const std::string& kv_type) {
  if (kv_type == "f32") return {33, 2, 3, 31, 32, 255, 256, 257, 511, 512, 513};
  return {33, 2, 257, 513};
}

TEST_P(LosslessHandover, AllStepsEqualBitForBitAloneAndBesidePrefillsAndDecodes) {
  const std::vector<std::size_t> lengths = lengths_of(GetParam().kv_type);
  std::vector<Trace> expected;
  for (const std::size_t length : lengths) expected.push_back(alone(*target_, prompt_of(length)));
  expect_equal_together(lengths, expected);
  expect_equal_alone(lengths[0], expected[0]);
}

INSTANTIATE_TEST_SUITE_P(KvTypes, LosslessHandover,
                         ::testing::Values(Arithmetic{"f32", "f32"}, Arithmetic{"u8", "f32"},
                                           Arithmetic{"u8", "int8"}),
                         [](const auto& param) {
                           return std::string(param.param.kv_type) + "_" + param.param.activations;
                         });

}  // namespace
}  // namespace isthmus::engine::openvino
