// SPDX-License-Identifier: Apache-2.0
// Sequences that grow, leave the pool and come back: the same bits as without, and no block lost or used
// twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "engine/api/sampler.h"
#include "engine/openvino/test_engine.h"

namespace isthmus::engine::openvino {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<TokenId>;

constexpr std::uint64_t kPoolTokens = 512, kPoolBlocks = 16, kParkedTokens = 320, kParkedBlocks = 10;

Engine& engine(const std::string& kv_type) {
  static TestEngines engines({.gguf_path = model_path(),
                              .threads = 1,
                              .kv_tokens = kPoolTokens,
                              .parked_tokens = kParkedTokens,
                              .sequences_max = 6,
                              .step_tokens_max = 512});
  return engines.of(kv_type);
}

// A sequence, and the bits of each row that a token of its answer was drawn from.
struct Answering {
  Engine* engine = nullptr;
  SequenceId sequence = 0;
  Tokens drawn;
  std::vector<std::string> bits;

  void take(std::span<const float> row) {
    drawn.push_back(likeliest(row));
    bits.push_back(digest128(std::as_bytes(row)).hex());
  }
};

class OpenvinoParking : public ::testing::TestWithParam<const char*> {
 protected:
  Engine& engine_ = engine(GetParam());
  Parking& parking_ = *engine_.parking();

  void TearDown() override {
    EXPECT_EQ(engine_.usage().sequences, 0u);
    EXPECT_EQ(engine_.usage().blocks_used, 0u);
    EXPECT_EQ(engine_.usage().blocks_parked, 0u);
  }

  Answering open(std::uint64_t tokens_max = kPoolTokens) {
    const auto opened = parking_.open_growing(tokens_max);
    EXPECT_TRUE(opened.ok());
    return {&engine_, *opened, {}, {}};
  }

  void run(Answering& answering, std::span<const TokenId> tokens, bool is_last = true) {
    const StepItem item{answering.sequence, tokens, is_last ? 1u : 0u};
    const auto output = engine_.step({&item, 1});
    ASSERT_TRUE(output.ok()) << output.error().text();
    if (is_last) answering.take(output->logits);
  }
  void decode(Answering& answering, int steps) {
    for (int i = 0; i < steps; ++i) run(answering, std::span(answering.drawn).last(1));
  }

  // So that what lay in the blocks released last is overwritten: they are taken first.
  void overwrite() {
    Answering other = open();
    run(other, some_tokens(7 * 32, 5));
    engine_.close(other.sequence);
  }

  Answering undisturbed(const Tokens& prompt, int steps) {
    Answering made = open();
    run(made, prompt);
    decode(made, steps);
    engine_.close(made.sequence);
    return made;
  }

  Code step_code(const Answering& answering, const Tokens& tokens) {
    const StepItem item{answering.sequence, tokens, 1};
    return engine_.step({&item, 1}).code();
  }
};

class OpenvinoParkingBits : public OpenvinoParking {};

TEST_P(OpenvinoParkingBits, WhatWasParkedGoesOnBitForBit) {
  const Tokens prompt = some_tokens(75);
  const Answering expected = undisturbed(prompt, 40);
  Answering parked = open();
  run(parked, prompt);
  // Whole and in pieces, in the middle of a block and at its end.
  for (const std::uint64_t left : {0u, 2u, 1u, 0u}) {
    decode(parked, left == 2 ? 20 : 5);
    for (std::uint64_t keep = 4; keep-- > left;) ASSERT_TRUE(parking_.park(parked.sequence, keep).ok());
    EXPECT_EQ(engine_.usage().blocks_used, left);
    overwrite();
    ASSERT_TRUE(parking_.unpark(parked.sequence).ok());
  }
  decode(parked, 5);
  engine_.close(parked.sequence);
  EXPECT_EQ(parked.drawn, expected.drawn);
  EXPECT_EQ(parked.bits, expected.bits);
}

class OpenvinoParkingPrompts : public OpenvinoParking {};

TEST_P(OpenvinoParkingPrompts, OneThatWasParkedInTheMiddleGoesOnBitForBit) {
  const Tokens prompt = some_tokens(200);
  const Answering expected = undisturbed(prompt, 3);
  Answering parked = open();
  for (const std::size_t at : {0u, 64u, 128u}) {
    const std::size_t count = at == 128 ? 72 : 64;
    run(parked, std::span(prompt).subspan(at, count), at == 128);
    ASSERT_TRUE(parking_.park(parked.sequence, at == 64 ? 1 : 0).ok());
    overwrite();
    ASSERT_TRUE(parking_.unpark(parked.sequence).ok());
  }
  decode(parked, 3);
  engine_.close(parked.sequence);
  EXPECT_EQ(parked.bits, expected.bits);
}

INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoParkingBits,
                         ::testing::Values("f32", "f16", "u8", "u8_channel", "u4"),
                         [](const auto& param) { return std::string(param.param); });
INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoParkingPrompts, ::testing::Values("f32", "u8_channel"),
                         [](const auto& param) { return std::string(param.param); });
INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoParking, ::testing::Values("u8"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(OpenvinoParking, ASequenceTakesBlocksAsItGrows) {
  Answering one = open(100);
  EXPECT_EQ(engine_.usage().blocks_used, 0u);
  run(one, some_tokens(32));
  EXPECT_EQ(engine_.usage().blocks_used, 1u);
  decode(one, 1);
  EXPECT_EQ(engine_.usage().blocks_used, 2u);
  EXPECT_EQ(step_code(one, some_tokens(68)), Code::kExhausted) << "33 + 68 > 100";
  engine_.close(one.sequence);
  // What is asked to be known has its prompt's.
  const Tokens prompt = some_tokens(65, 9);
  const SequenceId known = *engine_.prefix_keeper()->open_known(200, prompt, "growing");
  EXPECT_EQ(engine_.usage().blocks_used, 3u);
  engine_.close(known);
}

TEST_P(OpenvinoParking, AStepWithoutBlocksChangesNothingAndRunsOnceThereAreSome) {
  Answering one = open(), two = open();
  const Tokens prompt = some_tokens(32, 1), most = some_tokens(kPoolTokens - 64, 2);
  const Answering expected = undisturbed(prompt, 1);
  run(one, prompt);
  run(two, most);
  const StepItem both[] = {{one.sequence, std::span(one.drawn).last(1), 1},
                           {two.sequence, std::span(two.drawn).last(1), 1}};
  const auto refused = engine_.step(both);
  ASSERT_EQ(refused.code(), Code::kExhausted);
  EXPECT_THAT(refused.error().detail, HasSubstr("2 KV blocks asked for, 1 of 17 are free"));
  EXPECT_EQ(engine_.length(one.sequence), 32u);
  EXPECT_EQ(engine_.length(two.sequence), most.size());
  EXPECT_EQ(engine_.usage().blocks_used, kPoolBlocks - 1);
  ASSERT_TRUE(parking_.park(two.sequence, kPoolBlocks - 3).ok());
  decode(one, 1);
  EXPECT_EQ(one.bits, expected.bits);
  engine_.close(one.sequence);
  engine_.close(two.sequence);
}

TEST_P(OpenvinoParking, RoomIsBoundedBothWays) {
  Answering one = open(), two = open();
  run(one, some_tokens(32 * 11));
  const auto refused = parking_.park(one.sequence, 0);
  ASSERT_EQ(refused.code(), Code::kExhausted);
  EXPECT_THAT(refused.error().detail, HasSubstr("11 blocks, and room for 10 of 10"));
  EXPECT_EQ(engine_.usage().blocks_used, 11u);
  ASSERT_TRUE(parking_.park(one.sequence, 1).ok());
  EXPECT_EQ(engine_.usage().blocks_parked, kParkedBlocks);
  EXPECT_EQ(parking_.blocks(), kParkedBlocks);
  run(two, some_tokens(32 * 6, 1));
  EXPECT_EQ(parking_.unpark(one.sequence).code(), Code::kExhausted);
  EXPECT_EQ(engine_.usage().blocks_parked, kParkedBlocks);
  EXPECT_EQ(engine_.usage().blocks_used, 7u);
  engine_.close(two.sequence);
  EXPECT_TRUE(parking_.unpark(one.sequence).ok());
  EXPECT_EQ(engine_.usage().blocks_parked, 0u);
  EXPECT_EQ(engine_.usage().blocks_used, 11u);
  engine_.close(one.sequence);
}

TEST_P(OpenvinoParking, NothingIsDoneWithOneThatIsParkedButToCloseIt) {
  Answering one = open();
  run(one, some_tokens(40));
  ASSERT_TRUE(parking_.park(one.sequence, 1).ok());
  EXPECT_EQ(step_code(one, {7}), Code::kInvalidArgument);
  EXPECT_EQ(engine_.kv_source()->export_range(one.sequence, {0, 32}).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_.length(one.sequence), 40u);
  engine_.close(one.sequence);
}

TEST_P(OpenvinoParking, WhatOthersReadOrWriteStays) {
  Answering one = open(), bound = open();
  run(one, some_tokens(40));
  auto exported = *engine_.kv_source()->export_range(one.sequence, {0, 40});
  EXPECT_EQ(parking_.park(one.sequence, 0).code(), Code::kInvalidArgument);
  ASSERT_TRUE(engine_.kv_sink()->bind(bound.sequence, {0, 70}).ok());
  EXPECT_EQ(engine_.usage().blocks_used, 2u + 3u);
  EXPECT_EQ(parking_.park(bound.sequence, 0).code(), Code::kInvalidArgument);
  engine_.close(one.sequence);
  EXPECT_EQ(engine_.usage().blocks_lingering, 2u);
  exported.reset();
  EXPECT_EQ(engine_.usage().blocks_lingering, 0u);
  ASSERT_TRUE(engine_.kv_sink()->adopt(bound.sequence, {0, 70}).ok());
  EXPECT_TRUE(parking_.park(bound.sequence, 0).ok());
  engine_.close(bound.sequence);
}

TEST_P(OpenvinoParking, ADestinationWithoutRoomIsRefusedAndStaysEmpty) {
  Answering one = open(), bound = open();
  run(one, some_tokens(32 * 14));
  EXPECT_EQ(engine_.kv_sink()->bind(bound.sequence, {0, 65}).code(), Code::kExhausted);
  EXPECT_EQ(engine_.usage().blocks_used, 14u);
  EXPECT_TRUE(engine_.kv_sink()->bind(bound.sequence, {0, 64}).ok());
  engine_.close(one.sequence);
  engine_.close(bound.sequence);
}

// Two over one beginning: what one leaves, the other still has; what comes back is its own.
TEST_P(OpenvinoParking, ASharedBeginningIsParkedForEachAndChangesNoBit) {
  const Tokens prompt = some_tokens(100, 3);
  const Answering expected = undisturbed(prompt, 20);
  std::vector<Answering> two;
  for (int i = 0; i < 2; ++i) {
    two.push_back({&engine_, *engine_.prefix_keeper()->open_known(300, prompt, "shared"), {}, {}});
    run(two[i], std::span(prompt).subspan(engine_.length(two[i].sequence)));
  }
  EXPECT_EQ(engine_.usage().blocks_used, 5u) << "three shared, one each";
  ASSERT_TRUE(parking_.park(two[0].sequence, 0).ok());
  EXPECT_EQ(engine_.usage().blocks_used, 4u);
  decode(two[1], 10);
  ASSERT_TRUE(parking_.park(two[1].sequence, 2).ok());
  EXPECT_EQ(engine_.usage().blocks_used, 2u);
  ASSERT_TRUE(parking_.unpark(two[0].sequence).ok());
  decode(two[0], 20);
  ASSERT_TRUE(parking_.unpark(two[1].sequence).ok());
  decode(two[1], 10);
  for (Answering& one : two) {
    EXPECT_EQ(one.bits, expected.bits);
    engine_.close(one.sequence);
  }
}

TEST_P(OpenvinoParking, APromptParkedInTheMiddleSharesNothingAfterwards) {
  const Tokens prompt = some_tokens(160, 4);
  const auto known = [&] {
    const SequenceId sequence = *engine_.prefix_keeper()->open_known(300, prompt, "middle");
    const std::uint64_t length = engine_.length(sequence);
    engine_.close(sequence);
    return length;
  };
  Answering one{&engine_, *engine_.prefix_keeper()->open_known(300, prompt, "middle"), {}, {}};
  run(one, std::span(prompt).first(64), false);
  ASSERT_TRUE(parking_.park(one.sequence, 1).ok());
  engine_.close(*engine_.open((kPoolBlocks - 1) * 32));  // Nothing is kept behind it.
  ASSERT_TRUE(parking_.unpark(one.sequence).ok());
  run(one, std::span(prompt).subspan(64));
  EXPECT_EQ(known(), 32u) << "the block that it has held";
  engine_.close(one.sequence);
  EXPECT_EQ(engine_.usage().blocks_kept, 1u);
}

}  // namespace
}  // namespace isthmus::engine::openvino
