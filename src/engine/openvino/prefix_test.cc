// SPDX-License-Identifier: Apache-2.0
// Known beginnings of prompts: the same bits as without, whatever was computed, decoded, cancelled or evicted
// before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/digest.h"
#include "engine/api/sampler.h"
#include "engine/openvino/test_engine.h"

namespace isthmus::engine::openvino {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<TokenId>;
using Salt = std::optional<std::string>;

constexpr std::uint64_t kBlock = 32, kPoolTokens = 1024;

Engine& engine(const std::string& kv_type) {
  static TestEngines engines({.gguf_path = model_path(),
                              .threads = 1,
                              .kv_tokens = kPoolTokens,
                              .sequences_max = 6,
                              .step_tokens_max = 600});
  return engines.of(kv_type);
}

Tokens joined(Tokens head, const Tokens& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

// A sequence as an answer sees it: the bits of each row that a token is drawn from, and the token.
struct Answering {
  Engine* engine = nullptr;
  SequenceId sequence = 0;
  Tokens prompt;
  std::uint64_t known = 0;
  Tokens drawn;
  std::vector<std::string> bits;

  void take(std::span<const float> row) {
    drawn.push_back(likeliest(row));
    bits.push_back(digest128(std::as_bytes(row)).hex());
  }
};

Answering open(Engine& engine, const Tokens& prompt, const Salt& salt, std::uint64_t answer = 40) {
  const auto opened = engine.prefix_keeper()->open_known(prompt.size() + answer, prompt, salt);
  if (!opened.ok()) {
    ADD_FAILURE() << opened.error().text();
    return {};
  }
  return {&engine, *opened, prompt, engine.length(*opened), {}, {}};
}

// The next `tokens` of the prompt; the last of it gives a row.
void prefill(Answering& answering, std::size_t tokens) {
  const std::uint64_t at = answering.engine->length(answering.sequence);
  const bool is_last = at + tokens == answering.prompt.size();
  const StepItem item{answering.sequence, std::span(answering.prompt).subspan(at, tokens), is_last ? 1u : 0u};
  const auto output = answering.engine->step({&item, 1});
  ASSERT_TRUE(output.ok()) << output.error().text();
  if (is_last) answering.take(output->logits);
}

// In cuts of 256 tokens, as a worker's scheduler does.
void prefill(Answering& answering) {
  for (std::uint64_t left = 1; left > 0;) {
    const std::uint64_t at = answering.engine->length(answering.sequence);
    std::uint64_t end = std::min<std::uint64_t>(answering.prompt.size(), (at / 256 + 1) * 256);
    if (answering.prompt.size() - end == 1) ++end;
    prefill(answering, end - at);
    left = answering.prompt.size() - end;
  }
}

// One step of all.
void decode(std::vector<Answering*> all) {
  std::vector<StepItem> items;
  for (Answering* one : all) items.push_back({one->sequence, std::span(one->drawn).last(1), 1});
  const auto output = all.front()->engine->step(items);
  ASSERT_TRUE(output.ok()) << output.error().text();
  const std::uint64_t vocabulary = all.front()->engine->info().vocabulary;
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i]->take(output->logits.subspan(i * vocabulary, vocabulary));
}

Answering answer(Engine& engine, const Tokens& prompt, const Salt& salt, std::size_t steps = 4) {
  Answering made = open(engine, prompt, salt);
  prefill(made);
  for (std::size_t i = 0; i < steps; ++i) decode({&made});
  engine.close(made.sequence);
  return made;
}

// What is known of a prompt.
std::uint64_t open_and_close(Engine& engine, const Tokens& prompt, const Salt& salt) {
  const Answering made = open(engine, prompt, salt);
  engine.close(made.sequence);
  return made.known;
}

// What nothing was known of.
Answering cold(Engine& engine, const Tokens& prompt, std::size_t steps = 4) {
  static int salts = 0;
  Answering made = answer(engine, prompt, "cold " + std::to_string(++salts), steps);
  EXPECT_EQ(made.known, 0u);
  return made;
}

class OpenvinoPrefix : public ::testing::TestWithParam<const char*> {
 protected:
  Engine& engine_ = engine(GetParam());
  const std::string salt_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();

  void TearDown() override {
    EXPECT_EQ(engine_.usage().sequences, 0u);
    EXPECT_EQ(engine_.usage().blocks_used, 0u);
  }
};

class OpenvinoPrefixLengths : public OpenvinoPrefix {};

// Around blocks and the cut of prefill, which costs time and is run for one type; the longest first, so that
// its beginning stays in use.
std::vector<std::size_t> lengths_of(const std::string& kv_type) {
  if (kv_type == "f32") return {330, 259, 258, 257, 98, 97, 66, 65, 64, 34, 33, 2};
  return {130, 97, 66, 65, 33};
}

TEST_P(OpenvinoPrefixLengths, AKnownBeginningChangesNoBit) {
  const std::vector<std::size_t> lengths = lengths_of(GetParam());
  const Tokens base = some_tokens(lengths.front());
  (void)answer(engine_, base, salt_, 0);
  for (const std::size_t length : lengths) {
    const Tokens prompt(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(length));
    const Answering expected = cold(engine_, prompt), found = answer(engine_, prompt, salt_);
    EXPECT_EQ(found.known, (length - 2) / kBlock * kBlock) << length;  // The last two are always computed.
    EXPECT_EQ(found.bits, expected.bits) << length << " tokens";
  }
}

TEST_P(OpenvinoPrefix, OtherEndsBehindAKnownBeginningChangeNoBit) {
  const Tokens base = some_tokens(130);
  (void)answer(engine_, base, salt_, 0);
  for (const std::size_t common : {31, 32, 33, 64, 100}) {
    const Tokens prompt =
        joined({base.begin(), base.begin() + static_cast<std::ptrdiff_t>(common)}, some_tokens(50, common));
    const Answering expected = cold(engine_, prompt), found = answer(engine_, prompt, salt_);
    EXPECT_EQ(found.known, common / kBlock * kBlock);
    EXPECT_EQ(found.bits, expected.bits) << common << " tokens in common";
  }
}

TEST_P(OpenvinoPrefix, SequencesOverTheSameBlocksAnswerAsAlone) {
  const Tokens base = some_tokens(96);
  const Tokens prompts[] = {joined(base, some_tokens(20, 1)), joined(base, some_tokens(3, 2)), base};
  std::vector<Answering> expected, found;
  for (const Tokens& prompt : prompts) expected.push_back(cold(engine_, prompt, 12));
  // The second begins while the first is at it, the third while both decode.
  found.push_back(open(engine_, prompts[0], salt_));
  prefill(found[0]);
  decode({&found[0]});
  found.push_back(open(engine_, prompts[1], salt_));
  prefill(found[1]);
  decode({&found[1], &found[0]});
  found.push_back(open(engine_, prompts[2], salt_));
  prefill(found[2]);
  EXPECT_EQ(found[1].known, 96u);
  EXPECT_EQ(found[2].known, 64u);
  for (int i = 0; i < 10; ++i) decode({&found[0], &found[1], &found[2]});
  for (std::size_t i = 0; i < 3; ++i) {
    const std::vector<std::string> first(expected[i].bits.begin(),
                                         expected[i].bits.begin() + static_cast<std::ptrdiff_t>(11));
    found[i].bits.resize(11);
    EXPECT_EQ(found[i].bits, first) << "sequence " << i;
    engine_.close(found[i].sequence);
  }
}

TEST_P(OpenvinoPrefix, OneThatWasCancelledInTheMiddleLeavesWhatItHadComputed) {
  const Tokens prompt = some_tokens(200);
  Answering gone = open(engine_, prompt, salt_);
  prefill(gone, 96);
  engine_.close(gone.sequence);
  const Answering expected = cold(engine_, prompt), found = answer(engine_, prompt, salt_);
  EXPECT_EQ(found.known, 96u);
  EXPECT_EQ(found.bits, expected.bits);
}

TEST_P(OpenvinoPrefix, TwoAtOnceThatComputeTheSameShareItAfterwards) {
  const Tokens prompt = some_tokens(100);
  const Answering expected = cold(engine_, prompt, 3);
  Answering a = open(engine_, prompt, salt_), b = open(engine_, prompt, salt_);
  EXPECT_EQ(a.known + b.known, 0u);
  const std::uint64_t used = engine_.usage().blocks_used;
  prefill(a);
  prefill(b);
  EXPECT_EQ(engine_.usage().blocks_used, used - 3) << "three full blocks";
  for (int i = 0; i < 3; ++i) decode({&a, &b});
  EXPECT_EQ(a.bits, expected.bits);
  EXPECT_EQ(b.bits, expected.bits);
  engine_.close(a.sequence);
  decode({&b});
  engine_.close(b.sequence);
}

TEST_P(OpenvinoPrefix, WhatWasDecodedOrFilledInPiecesIsNotKept) {
  const Tokens prompt = some_tokens(70);
  const Answering decoded = answer(engine_, prompt, salt_, 35);
  const Tokens more = joined(joined(prompt, decoded.drawn), some_tokens(5, 3));
  const Answering expected = cold(engine_, more), found = answer(engine_, more, salt_);
  EXPECT_EQ(found.known, 64u) << "the third block has decoded tokens";
  EXPECT_EQ(found.bits, expected.bits);

  const Tokens pieces = some_tokens(130, 4);
  Answering chunked = open(engine_, pieces, salt_);
  prefill(chunked, 40);
  prefill(chunked, 90);
  engine_.close(chunked.sequence);
  EXPECT_EQ(open_and_close(engine_, pieces, salt_), 32u) << "two steps have filled the second block";
  // Nor under the tokens of a chunk that began in the middle of it.
  const Tokens shifted = joined({pieces.begin(), pieces.begin() + 32}, {pieces.begin() + 40, pieces.end()});
  EXPECT_EQ(open_and_close(engine_, shifted, salt_), 32u);
}

INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoPrefixLengths,
                         ::testing::Values("f32", "f16", "u8", "u8_channel", "u4"),
                         [](const auto& param) { return std::string(param.param); });
INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoPrefix, ::testing::Values("f32", "u8_channel"),
                         [](const auto& param) { return std::string(param.param); });

class OpenvinoPrefixBounds : public OpenvinoPrefix {};
INSTANTIATE_TEST_SUITE_P(KvTypes, OpenvinoPrefixBounds, ::testing::Values("u8"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(OpenvinoPrefixBounds, OnlyEqualSaltsShare) {
  const Tokens prompt = some_tokens(70);
  (void)answer(engine_, prompt, "one", 0);
  EXPECT_EQ(answer(engine_, prompt, "another", 0).known, 0u);
  EXPECT_EQ(answer(engine_, prompt, std::nullopt, 0).known, 0u);
  EXPECT_EQ(answer(engine_, prompt, "one", 0).known, 64u);
  EXPECT_EQ(answer(engine_, prompt, std::nullopt, 0).known, 64u);
}

TEST_P(OpenvinoPrefixBounds, OnlyWhatIsNotKnownNeedsRoom) {
  const Tokens prompt = some_tokens(20 * kBlock + 2);
  Answering first = open(engine_, prompt, salt_, 30);
  prefill(first);
  EXPECT_EQ(engine_.usage().blocks_used, 21u);
  Answering second = open(engine_, prompt, salt_, 30);
  EXPECT_EQ(second.known, 20 * kBlock);
  EXPECT_EQ(engine_.usage().blocks_used, 22u);
  const auto other = engine_.prefix_keeper()->open_known(prompt.size() + 30, prompt, "nobody's");
  ASSERT_EQ(other.code(), Code::kExhausted);
  EXPECT_THAT(other.error().detail, HasSubstr("21 KV blocks asked for, 10 of 33 are free"));
  engine_.close(first.sequence);
  engine_.close(second.sequence);
  EXPECT_GE(engine_.usage().blocks_kept, 20u);
}

TEST_P(OpenvinoPrefixBounds, WhatIsKeptMakesRoomTheEndFirst) {
  const Tokens prompt = some_tokens(10 * kBlock + 2);
  (void)answer(engine_, prompt, salt_, 0);
  engine_.close(*engine_.open(kPoolTokens - 4 * kBlock));
  EXPECT_EQ(engine_.usage().blocks_kept, 4u);
  const Answering expected = cold(engine_, prompt);
  (void)answer(engine_, prompt, salt_, 0);
  engine_.close(*engine_.open(kPoolTokens - 4 * kBlock));
  const Answering found = answer(engine_, prompt, salt_);
  EXPECT_EQ(found.known, 4 * kBlock);
  EXPECT_EQ(found.bits, expected.bits);
  engine_.close(*engine_.open(kPoolTokens));
  EXPECT_EQ(engine_.usage().blocks_kept, 0u);
  EXPECT_EQ(answer(engine_, prompt, salt_, 0).known, 0u);
}

TEST_P(OpenvinoPrefixBounds, AnExportOfSharedBlocksKeepsThemAfterAllHaveLeft) {
  const Tokens prompt = some_tokens(70);
  (void)answer(engine_, prompt, salt_, 0);
  Answering a = open(engine_, prompt, salt_, 1), b = open(engine_, prompt, salt_, 1);
  prefill(a);
  auto exported = *engine_.kv_source()->export_range(a.sequence, {0, 70});
  engine_.close(a.sequence);
  EXPECT_EQ(engine_.usage().blocks_used, 4u);
  engine_.close(b.sequence);
  EXPECT_EQ(engine_.usage().blocks_used, 3u);
  EXPECT_EQ(engine_.open(kPoolTokens - 2 * kBlock).code(), Code::kExhausted);
  exported.reset();
  EXPECT_EQ(engine_.usage().blocks_used, 0u);
  engine_.close(*engine_.open(kPoolTokens));
}

TEST_P(OpenvinoPrefixBounds, APromptFitsItsSequence) {
  EXPECT_EQ(engine_.prefix_keeper()->open_known(69, some_tokens(70), salt_).code(), Code::kInvalidArgument);
  engine_.close(*engine_.prefix_keeper()->open_known(9, {}, salt_));
}

}  // namespace
}  // namespace isthmus::engine::openvino
