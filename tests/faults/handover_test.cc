// SPDX-License-Identifier: Apache-2.0
// States that cross well: every length, format and way of answering, and the pipeline under a prefill.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "faults/duo.h"

namespace isthmus::faults {
namespace {

constexpr std::size_t kTokens = 12;
// Around blocks of 32, tiles of 256, and beyond two steps.
constexpr std::size_t kLengths[] = {3, 31, 32, 33, 255, 256, 257, 511, 512, 513, 600, 1500};

class EveryDecoder : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Formats, EveryDecoder, testing::Values("openvino:f32", "openvino:u8"),
                         [](const auto& each) {
                           return std::string(each.param).substr(std::string(each.param).find(':') + 1);
                         });

void expect_handed_over(Duo& duo, std::size_t length, bool stream) {
  const std::string prompt = prompt_of(length, static_cast<unsigned>(length));
  const auto before = duo.d().worker->engine().stats();
  const Answer answer = duo.hand_over(prompt, kTokens, {.stream = stream});
  ASSERT_TRUE(answer.is_whole()) << answer.status << " " << answer.body;
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << "length " << length;
  EXPECT_TRUE(answer.route().starts_with("handoff")) << answer.route();
  ASSERT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  const auto after = duo.d().worker->engine().stats();
  EXPECT_EQ(after.prompt_tokens_computed, 0U) << "D computed what P had";
  EXPECT_EQ(after.prompt_tokens_adopted - before.prompt_tokens_adopted, length);
}

TEST_P(EveryDecoder, AnswersFromAHandedOverStateAreThoseOfTheModelAtEveryLength) {
  Duo duo("llamacpp:f16", GetParam());
  for (const std::size_t length : kLengths) expect_handed_over(duo, length, false);
  EXPECT_EQ(Duo::count(duo.d(), "isthmus_handoffs_total", {"side=\"consumer\"", "outcome=\"owned\""}),
            std::size(kLengths));
  EXPECT_EQ(Duo::count(duo.p(), "isthmus_handoffs_total", {"side=\"producer\"", "outcome=\"done\""}),
            std::size(kLengths));
}

TEST_P(EveryDecoder, StreamedAnswersAreTheSame) {
  Duo duo("llamacpp:f16", GetParam());
  for (const std::size_t length : {33, 257, 600}) expect_handed_over(duo, length, true);
}

TEST(Handover, TheFirstChunksArePlacedWhileLaterOnesAreStillComputed) {
  Duo duo;
  const std::string prompt = prompt_of(700);
  duo.p().gate.hold_after(1);  // The first tile of 256 tokens is computed, the second isn't.
  const json::Value transfer = duo.prefill(prompt);
  const auto asking = duo.ask_decode(prompt, transfer, kTokens);
  ASSERT_TRUE(duo.until(
      [&] { return Duo::count(duo.d(), "isthmus_handoff_bytes_total", {"side=\"consumer\""}) > 0; }));
  // An export is told of before the step that made it is counted.
  EXPECT_TRUE(duo.until([&] { return duo.p().worker->engine().stats().prompt_tokens_computed == 256; }));
  EXPECT_FALSE(asking->answer.is_over);
  duo.p().gate.open();
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_TRUE(answer.route().starts_with("handoff")) << answer.route();
  EXPECT_TRUE(duo.settled());
}

TEST(Handover, SeveralAtOnceWithMixedLengthsAreAllRight) {
  Duo duo;
  constexpr std::size_t kMixed[] = {40, 700, 3, 256, 90, 513, 31, 300};
  std::vector<std::string> prompts;
  std::vector<std::unique_ptr<Asking>> askings;
  for (std::size_t i = 0; i < std::size(kMixed); ++i) {
    prompts.push_back(prompt_of(kMixed[i], static_cast<unsigned>(i)));
    askings.push_back(
        duo.ask_decode(prompts.back(), duo.prefill(prompts.back()), kTokens, {.stream = i % 2 == 1}));
  }
  for (std::size_t i = 0; i < askings.size(); ++i) {
    const Answer& answer = duo.finish(*askings[i]);
    EXPECT_EQ(answer.text(), support::fake_answer(prompts[i], kTokens)) << i << ": " << answer.body;
    EXPECT_TRUE(answer.route().starts_with("handoff")) << answer.route();
  }
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  EXPECT_EQ(duo.d().worker->engine().stats().prompt_tokens_computed, 0U);
}

TEST(Handover, AnAnswerOfOneTokenIsTheProducersAndNeedsNoStepOfTheDecoder) {
  Duo duo;
  const std::string prompt = prompt_of(300);
  for (const bool stream : {false, true}) {
    const Answer answer = duo.hand_over(prompt, 1, {.stream = stream});
    EXPECT_TRUE(answer.is_whole());
    EXPECT_EQ(answer.text(), support::fake_answer(prompt, 1)) << answer.body;
    EXPECT_NE(answer.body.find(R"("finish_reason":"length")"), std::string::npos) << answer.body;
  }
  EXPECT_TRUE(duo.settled());
  EXPECT_EQ(duo.d().gate.begun(), 0U);
}

// Answers end where this token would be drawn.
class EndingTokenizer final : public engine::Tokenizer {
 public:
  explicit EndingTokenizer(engine::TokenId end) : end_(end) {}
  Result<std::vector<engine::TokenId>> encode(std::string_view text, bool special,
                                              bool parse) const override {
    return fake_->encode(text, special, parse);
  }
  std::string piece(engine::TokenId token, bool special) const override {
    return fake_->piece(token, special);
  }
  bool is_end_of_generation(engine::TokenId token) const override { return token == end_; }
  std::uint32_t vocabulary() const override { return fake_->vocabulary(); }
  Result<std::string> apply_chat_template(std::span<const engine::ChatMessage> messages) const override {
    return fake_->apply_chat_template(messages);
  }
  std::string digest() const override { return fake_->digest(); }

 private:
  engine::TokenId end_;
  std::shared_ptr<const engine::Tokenizer> fake_ = support::make_fake_tokenizer();
};

TEST(Handover, APrefillWhoseFirstTokenEndsTheAnswerIsAnEmptyAnswerAndNoState) {
  const std::string prompt = prompt_of(300);
  const auto ending = std::make_shared<EndingTokenizer>(support::fake_answer(prompt, 1)[0]);
  Duo duo("llamacpp:f16", "openvino:f32", [&](Node& p, Node& d) { p.tokenizer = d.tokenizer = ending; });
  for (const bool stream : {false, true}) {
    const Answer answer = duo.hand_over(prompt, kTokens, {.stream = stream});
    EXPECT_TRUE(answer.is_whole());
    EXPECT_EQ(answer.text(), "") << answer.body;
    EXPECT_NE(answer.body.find(R"("finish_reason":"stop")"), std::string::npos) << answer.body;
    EXPECT_TRUE(answer.route().starts_with("handoff")) << answer.route();
  }
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  EXPECT_EQ(duo.d().gate.begun(), 0U);
}

TEST(Handover, APromptTooShortToBeWorthItIsAnsweredByTheDecoderAlone) {
  Duo duo;
  const auto asking = duo.ask_prefill("ab");
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body.find("isthmus_ticket"), std::string::npos) << answer.body;
  EXPECT_EQ(duo.alone(duo.d(), "ab", kTokens).text(), support::fake_answer("ab", kTokens));
  EXPECT_TRUE(duo.settled());
}

}  // namespace
}  // namespace isthmus::faults
