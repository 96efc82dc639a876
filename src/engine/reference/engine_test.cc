// SPDX-License-Identifier: Apache-2.0
// The reference engine by itself: what its logits depend on, and what they don't.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/reference.h"
#include "engine/reference/testing.h"

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;

TEST(Reference, StepsOfAnyCutGiveTheSameLogits) {
  const auto tokens = test_prompt(70);
  const auto whole = *make_reference({});
  const auto cut = *make_reference({});
  const SequenceId a = *whole->open(80), b = *cut->open(80);
  const std::vector<float> row = last_row(*whole, a, tokens);
  (void)last_row(*cut, b, std::span(tokens).first(17));
  EXPECT_EQ(row, last_row(*cut, b, std::span(tokens).subspan(17)));
  EXPECT_EQ(whole->usage().tokens_computed, 70u);
}

TEST(Reference, PartitionAndBlocksChangeNothing) {
  const auto tokens = test_prompt(70);
  std::vector<float> expected;
  for (const ReferenceOptions& options :
       {ReferenceOptions{.storage = "vllm:flash_nhd", .block_tokens = 16},
        ReferenceOptions{.storage = "vllm:flash_nhd", .block_tokens = 64},
        ReferenceOptions{.storage = "vllm:flash_hnd", .block_tokens = 1, .tensor_ranks = 2},
        ReferenceOptions{.storage = "vllm:flash_nhd", .tensor_ranks = 8, .pipeline_ranks = 3}}) {
    const auto engine = make_reference(options);
    ASSERT_TRUE(engine.ok()) << engine.error().text();
    const std::vector<float> row = last_row(**engine, *(*engine)->open(80), tokens);
    if (expected.empty()) expected = row;
    EXPECT_EQ(row, expected) << options.storage << " on " << options.tensor_ranks << " ranks";
  }
}

TEST(Reference, AnswersDependOnEveryStoredRow) {
  const auto tokens = test_prompt(40);
  for (const ReferenceAttention attention :
       {ReferenceAttention::kFull, ReferenceAttention::kSlidingMix, ReferenceAttention::kMla}) {
    ReferenceOptions options = test_options(attention);
    const auto engine = *make_reference(options);
    const SequenceId sequence = *engine->open(64);
    (void)last_row(*engine, sequence, tokens);
    const auto other = *make_reference(options);
    const SequenceId copy = *other->open(64);
    (void)last_row(*other, copy, tokens);
    // The last token's rows are in the window of every layer.
    const std::vector<transform::RankMemory> all = *other->bindings(copy, {0, 40});
    for (const kv::Binding& group : all.front().groups) {
      for (const kv::RegionMemory& memory : group.memory) {
        SCOPED_TRACE(memory.region);
        std::vector<std::byte> kept(memory.base, memory.base + memory.bytes);
        const TokenId next[] = {7};
        std::fill(memory.base, memory.base + memory.bytes, std::byte{0});
        EXPECT_NE(last_row(*other, copy, next), last_row(*engine, sequence, next));
        std::copy(kept.begin(), kept.end(), memory.base);
        ASSERT_TRUE(other->kv_sink()->adopt(copy, {0, 40}).ok());
        ASSERT_TRUE(engine->kv_sink()->adopt(sequence, {0, 40}).ok());
      }
    }
  }
}

TEST(Reference, MemoryIsGivenBackWhenNobodyHoldsIt) {
  const auto engine = *make_reference({.kv_tokens = 64});
  const SequenceId first = *engine->open(64);
  EXPECT_EQ(engine->open(1).code(), Code::kExhausted);
  (void)last_row(*engine, first, test_prompt(8));
  auto exported = *engine->kv_source()->export_range(first, {0, 8});
  engine->close(first);
  EXPECT_EQ(engine->open(64).code(), Code::kExhausted);
  exported.reset();
  EXPECT_TRUE(engine->open(64).ok());
}

TEST(Reference, WhatCannotBeIsRefusedByName) {
  EXPECT_EQ(make_reference({.storage = "vllm:none"}).code(), Code::kNotFound);
  const auto mla = make_reference({.storage = "vllm:mla_bf16"});
  EXPECT_EQ(mla.code(), Code::kIncompatible);
  EXPECT_THAT(mla.error().text(), HasSubstr("component"));
  EXPECT_EQ(make_reference({.shape = {.query_heads = 3, .kv_heads = 2}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(make_reference({.kv_tokens = 0}).code(), Code::kInvalidArgument);
  const auto engine = *make_reference({});
  const SequenceId sequence = *engine->open(10);
  EXPECT_EQ(engine->kv_source()->export_range(sequence, {0, 1}).code(), Code::kInvalidArgument);
  const std::vector<TokenId> tokens = test_prompt(11);
  EXPECT_EQ(engine->step({{{sequence, tokens, 1}}}).code(), Code::kExhausted);
  EXPECT_EQ(engine->length(sequence), 0u);
}

}  // namespace
}  // namespace isthmus::engine
