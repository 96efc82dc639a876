// SPDX-License-Identifier: Apache-2.0
// States that were handed over, for later ones of the same origin: nothing is kept that wasn't adopted, no
// block of it is ever written, and the bits are those of a state that crossed as a whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/digest.h"
#include "engine/api/sampler.h"
#include "engine/openvino/test_engine.h"

namespace isthmus::engine::openvino {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::uint64_t kBlock = 32, kPoolTokens = 1024, kAnswer = 40;

Engine& engine(const std::string& kv_type) {
  static TestEngines engines({.gguf_path = model_path(),
                              .threads = 1,
                              .kv_tokens = kPoolTokens,
                              .sequences_max = 6,
                              .step_tokens_max = 600});
  return engines.of(kv_type);
}

// Block for block, from the one of the first position that `to` may be written at.
void copy_blocks(const kv::Binding& from, const kv::Binding& to) {
  ASSERT_EQ(from.memory.size(), to.memory.size());
  const std::uint64_t first = to.first_position / kBlock;
  ASSERT_EQ(from.blocks.size(), first + to.blocks.size());
  for (std::size_t i = 0; i < from.memory.size(); ++i) {
    const std::uint64_t bytes = from.memory[i].bytes / from.memory[i].open_extent;
    for (std::size_t b = 0; b < to.blocks.size(); ++b) {
      std::memcpy(to.memory[i].base + to.blocks[b] * bytes,
                  from.memory[i].base + from.blocks[first + b] * bytes, bytes);
    }
  }
}

class OpenvinoArrived : public ::testing::TestWithParam<const char*> {
 protected:
  Engine& engine_ = engine(GetParam());
  const std::string salt_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();

  void TearDown() override {
    EXPECT_EQ(engine_.usage().sequences, 0u);
    EXPECT_EQ(engine_.usage().blocks_used, 0u);
  }

  ArrivingState state(const Tokens& prompt) const {
    return {.prompt = prompt,
            .origin = {.producer = {1, 2}, .descriptor = {.high = 3, .low = 4}, .wire = "rows"},
            .repeated = prompt.size() / kBlock * kBlock,
            .salt = salt_};
  }

  std::uint64_t known(const ArrivingState& state) {
    const auto held = engine_.prefix_keeper()->hold_arrived(state);
    return held ? held->tokens() : 0;
  }

  // Opened over `known` tokens, and bound behind them.
  SequenceId open(const ArrivingState& state, std::uint64_t known, kv::Binding& bound) {
    const auto opened = engine_.prefix_keeper()->open_arriving(state.prompt.size() + kAnswer, state, known);
    if (!opened.ok()) {
      ADD_FAILURE() << opened.error().text();
      return 0;
    }
    EXPECT_EQ(engine_.length(*opened), known);
    auto bindings = engine_.kv_sink()->bind(*opened, {known, state.prompt.size()});
    EXPECT_TRUE(bindings.ok()) << bindings.error().text();
    if (bindings.ok()) bound = bindings->front();
    return *opened;
  }

  // What a producer with the same storage computes crosses from `known` on; a sequence that has adopted it.
  SequenceId arrive(const ArrivingState& state, std::uint64_t known) {
    const Tokens& prompt = state.prompt;
    const SequenceId source = *engine_.open(prompt.size());
    const StepItem item{source, prompt, 1};
    EXPECT_TRUE(engine_.step({&item, 1}).ok());
    kv::Binding bound;
    const SequenceId sequence = open(state, known, bound);
    {
      const auto exported = *engine_.kv_source()->export_range(source, {0, prompt.size()});
      copy_blocks(exported->bindings().front(), bound);
    }
    engine_.close(source);
    const Status adopted = engine_.kv_sink()->adopt(sequence, {known, prompt.size()});
    EXPECT_TRUE(adopted.ok()) << adopted.error().text();
    return sequence;
  }

  // The bits of the next rows; closes it.
  std::vector<std::string> answer(SequenceId sequence) {
    std::vector<std::string> bits;
    TokenId token = 321;
    for (int i = 0; i < 5; ++i) {
      const StepItem item{sequence, {&token, 1}, 1};
      const auto output = engine_.step({&item, 1});
      if (!output.ok()) {
        ADD_FAILURE() << output.error().text();
        break;
      }
      bits.push_back(digest128(std::as_bytes(output->logits)).hex());
      const auto row = output->logits;
      token = likeliest(row);
    }
    engine_.close(sequence);
    return bits;
  }
};

INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoArrived, ::testing::Values("f32", "u8", "u8_channel"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(OpenvinoArrived, ARestBehindKnownBlocksGivesTheBitsOfTheWhole) {
  const ArrivingState first = state(some_tokens(100));
  EXPECT_EQ(known(first), 0u);
  const std::vector<std::string> expected = answer(arrive(first, 0));
  EXPECT_EQ(known(first), 96u);
  for (const std::uint64_t from : {96u, 64u, 32u, 0u})
    EXPECT_EQ(answer(arrive(first, from)), expected) << "from " << from;

  Tokens longer = first.prompt;
  for (const TokenId token : some_tokens(37, 1)) longer.push_back(token);
  ArrivingState second = state(longer), alone = second;
  alone.salt = salt_ + "alone";
  EXPECT_EQ(known(second), 96u);
  EXPECT_EQ(answer(arrive(second, 96)), answer(arrive(alone, 0)));
  EXPECT_EQ(known(second), 128u);
}

TEST_P(OpenvinoArrived, WhatIsKnownIsThatOriginsAlone) {
  const ArrivingState kept = state(some_tokens(100, 2));
  engine_.close(arrive(kept, 0));
  std::vector<ArrivingState> others(6, kept);
  others[0].origin.producer.low = 3;
  others[1].origin.descriptor.high = 5;
  others[2].origin.wire = "row";
  others[3].salt = salt_ + "other";
  others[4].salt.reset();
  others[5].prompt[0] += 1;
  for (const ArrivingState& other : others) EXPECT_EQ(known(other), 0u);
  EXPECT_EQ(known(kept), 96u);
  // Nor with what was computed here.
  PrefixKeeper& keeper = *engine_.prefix_keeper();
  const SequenceId own = *keeper.open_known(140, kept.prompt, kept.salt);
  EXPECT_EQ(engine_.length(own), 0u);
  engine_.close(own);
  const ArrivingState computed = state(some_tokens(100, 3));
  const SequenceId made = *keeper.open_known(140, computed.prompt, computed.salt);
  const StepItem item{made, computed.prompt, 1};
  ASSERT_TRUE(engine_.step({&item, 1}).ok());
  EXPECT_EQ(known(computed), 0u);
  engine_.close(made);
}

TEST_P(OpenvinoArrived, OnlyWhatWasAdoptedAndRepeatsIsKept) {
  ArrivingState some = state(some_tokens(100, 4));
  kv::Binding bound;
  engine_.close(open(some, 0, bound));
  EXPECT_EQ(known(some), 0u) << "bound, never adopted";
  some.repeated = 95;
  engine_.close(arrive(some, 0));
  some.repeated = 100;
  EXPECT_EQ(known(some), 64u) << "the third block doesn't repeat";
  // Less is adopted than was bound.
  const ArrivingState part = state(some_tokens(100, 11));
  const SequenceId partly = open(part, 0, bound);
  ASSERT_TRUE(engine_.kv_sink()->adopt(partly, {0, 50}).ok());
  engine_.close(partly);
  EXPECT_EQ(known(part), 32u);
  // All of a prompt is known, and its last two tokens have to come all the same.
  const ArrivingState whole = state(some_tokens(64, 5));
  engine_.close(arrive(whole, 0));
  EXPECT_EQ(known(whole), 32u);
  // What is decoded behind it isn't kept.
  const SequenceId sequence = arrive(state(some_tokens(60, 6)), 0);
  const Tokens more = some_tokens(10, 7);
  const StepItem item{sequence, more, 1};
  ASSERT_TRUE(engine_.step({&item, 1}).ok());
  engine_.close(sequence);
  Tokens both = some_tokens(60, 6);
  both.insert(both.end(), more.begin(), more.end());
  EXPECT_EQ(known(state(both)), 32u);
}

TEST_P(OpenvinoArrived, NoBlockThatIsSharedIsBound) {
  const ArrivingState some = state(some_tokens(100, 8));
  kv::Binding whole, rest;
  const SequenceId a = arrive(some, 0);
  const auto exported = *engine_.kv_source()->export_range(a, {0, 100});
  const std::vector<std::uint32_t> shared = exported->bindings().front().blocks;
  const SequenceId b = open(some, 64, rest);
  EXPECT_EQ(rest.first_position, 64u);
  EXPECT_EQ(rest.valid, (kv::TokenRange{64, 100}));
  ASSERT_EQ(rest.blocks.size(), 2u);
  for (const std::uint32_t block : rest.blocks)
    EXPECT_EQ(std::ranges::count(shared, block), 0) << "a block of another's";
  KvSink& sink = *engine_.kv_sink();
  EXPECT_EQ(sink.adopt(b, {0, 100}).code(), Code::kInvalidArgument);
  engine_.close(b);
  const SequenceId c = *engine_.prefix_keeper()->open_arriving(140, some, 64);
  EXPECT_EQ(sink.bind(c, {0, 100}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(c, {32, 100}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sink.bind(c, {64, 64}).code(), Code::kInvalidArgument);
  engine_.close(c);
  engine_.close(a);
}

TEST_P(OpenvinoArrived, WhatIsHeldStaysUntilItIsLetGo) {
  const ArrivingState some = state(some_tokens(100, 9));
  const std::vector<std::string> expected = answer(arrive(some, 0));
  auto held = engine_.prefix_keeper()->hold_arrived(some);
  ASSERT_TRUE(held);
  EXPECT_EQ(engine_.usage().blocks_used, 3u);
  EXPECT_EQ(engine_.open(kPoolTokens - 2 * kBlock).code(), Code::kExhausted);
  engine_.close(*engine_.open(kPoolTokens - 3 * kBlock));
  EXPECT_EQ(answer(arrive(some, 96)), expected);
  held.reset();
  EXPECT_EQ(engine_.usage().blocks_used, 0u);
  engine_.close(*engine_.open(kPoolTokens));
  EXPECT_EQ(known(some), 0u);
  PrefixKeeper& keeper = *engine_.prefix_keeper();
  EXPECT_EQ(keeper.open_arriving(140, some, 96).code(), Code::kInvalidArgument) << "gone";
  EXPECT_EQ(keeper.open_arriving(140, some, 40).code(), Code::kInvalidArgument) << "no whole block";
  EXPECT_EQ(keeper.open_arriving(99, some, 0).code(), Code::kInvalidArgument) << "too small";
}

TEST_P(OpenvinoArrived, TwoOfOneStateShareItOnceBothAreAdopted) {
  const ArrivingState some = state(some_tokens(100, 10));
  const SequenceId a = arrive(some, 0);
  const std::uint64_t used = engine_.usage().blocks_used;
  const SequenceId b = arrive(some, 0);
  EXPECT_EQ(engine_.usage().blocks_used, used + 1) << "the part block";
  const std::vector<std::string> bits = answer(a);
  EXPECT_EQ(answer(b), bits);
}

}  // namespace
}  // namespace isthmus::engine::openvino
