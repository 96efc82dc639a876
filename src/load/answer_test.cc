// SPDX-License-Identifier: Apache-2.0
// Every way an answer can end, each with the outcome that it must be counted as.
#include "load/answer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::load {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Length kAsked{.prompt = 5, .output = 3};
const http::Headers kStream = {{"Content-Type", "text/event-stream"}};

Instant at_ms(int ms) {
  return Instant{milliseconds(ms)};
}
std::string text_event(std::string_view text) {
  return fmt::format("data: {{\"choices\":[{{\"index\":0,\"text\":\"{}\",\"finish_reason\":null}}]}}\n\n",
                     text);
}
std::string finish_event(std::string_view reason) {
  return fmt::format("data: {{\"choices\":[{{\"text\":\"\",\"finish_reason\":\"{}\"}}]}}\n\n", reason);
}
std::string usage_event(int prompt, int completion) {
  return fmt::format(
      "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{}}}}}\n\n", prompt,
      completion);
}
const std::string kDone = "data: [DONE]\n\n";
const std::string kThree = text_event("a") + text_event("b") + text_event("c");

Ending ending_of(std::string_view stream) {
  AnswerReader reader(kAsked);
  reader.head(200, kStream);
  reader.piece(stream, at_ms(1));
  return reader.end(ok_status());
}
Ending refusal_of(int status, const http::Headers& headers, std::string_view body) {
  AnswerReader reader(kAsked);
  reader.head(status, headers);
  reader.piece(body, at_ms(1));
  return reader.end(ok_status());
}

TEST(Answer, IsTimedByItsPiecesHoweverTheirBytesCome) {
  AnswerReader reader(kAsked);
  reader.head(200, kStream);
  const std::string first = ": hello\r\n" + text_event("a");
  reader.piece(first.substr(0, 20), at_ms(10));
  reader.piece(first.substr(20), at_ms(30));
  reader.piece(text_event("b"), at_ms(70));
  reader.piece(text_event("c"), at_ms(90));
  reader.piece(finish_event("length") + usage_event(5, 3) + kDone, at_ms(95));
  EXPECT_EQ(reader.end(ok_status()).outcome, Outcome::kOk);
  EXPECT_EQ(reader.first_token, at_ms(30));
  EXPECT_EQ(reader.last_token, at_ms(90));
  EXPECT_THAT(reader.gaps, ElementsAre(Duration(milliseconds(40)), Duration(milliseconds(20))));
  EXPECT_EQ(reader.tokens, 3u);
  EXPECT_FALSE(reader.is_early);
}

TEST(Answer, ThatEndsByItselfIsWholeAndEarly) {
  AnswerReader reader(kAsked);
  reader.head(200, kStream);
  reader.piece(text_event("a") + finish_event("stop") + usage_event(5, 2) + kDone, at_ms(1));
  EXPECT_EQ(reader.end(ok_status()).outcome, Outcome::kOk);
  EXPECT_TRUE(reader.is_early);
}

TEST(Answer, WithoutTextHasItsFirstTokenAtItsEnd) {
  AnswerReader reader(kAsked);
  reader.head(200, kStream);
  reader.piece(finish_event("stop") + usage_event(5, 1) + kDone, at_ms(8));
  EXPECT_EQ(reader.end(ok_status()).outcome, Outcome::kOk);
  EXPECT_EQ(reader.first_token, at_ms(8));
}

TEST(Answer, ThatIsNotWholeIsBroken) {
  EXPECT_THAT(ending_of(kThree + finish_event("length") + usage_event(5, 3)).detail, HasSubstr("[DONE]"));
  for (const std::string& stream :
       {std::string(), kThree + finish_event("length") + usage_event(5, 3), std::string("data: {oops\n\n"),
        kThree + finish_event("length") + usage_event(5, 3) + kDone + text_event("d"),
        std::string("data: {\"error\":{}}\n\n") + kDone, std::string(std::size_t{2} << 20, 'x')})
    EXPECT_EQ(ending_of(stream).outcome, Outcome::kBroken) << stream.substr(0, 200);
  EXPECT_EQ(refusal_of(200, {{"Content-Type", "application/json"}}, "{}").outcome, Outcome::kBroken);
}

TEST(Answer, WhoseUsageIsNotWhatWasSeenIsWrong) {
  const auto detail = [](const std::string& stream) {
    const Ending ending = ending_of(stream + kDone);
    EXPECT_EQ(ending.outcome, Outcome::kWrong) << stream;
    return ending.detail;
  };
  const std::string length = finish_event("length");
  EXPECT_THAT(detail(kThree + length), HasSubstr("no usage"));
  EXPECT_THAT(detail(kThree + length + usage_event(4, 3)), HasSubstr("5 prompt tokens were asked"));
  EXPECT_THAT(detail(kThree + finish_event("stop") + usage_event(5, 2)), HasSubstr("3 pieces"));
  EXPECT_THAT(detail(text_event("a") + length + usage_event(5, 2)), HasSubstr("3 tokens were asked"));
  EXPECT_THAT(detail(kThree + finish_event("stop") + usage_event(5, 4)), HasSubstr("3 tokens were asked"));
  EXPECT_THAT(detail(kThree + usage_event(5, 3)), HasSubstr("finish_reason ''"));
}

TEST(Answer, ThatFailsWithinItsStreamSaysWhy) {
  const Ending ending = ending_of(
      text_event("a") +
      "data: "
      "{\"error\":{\"message\":\"gone\",\"type\":\"service_unavailable\",\"code\":\"unavailable\"}}\n\n");
  EXPECT_EQ(ending.outcome, Outcome::kFailed);
  EXPECT_EQ(ending.detail, "unavailable: gone");
}

TEST(Refusal, IsTypedOrNot) {
  const std::string body = R"({"error":{"message":"full","type":"rate_limit_error","code":"exhausted"}})";
  EXPECT_EQ(refusal_of(429, {{"Retry-After", "2"}}, body).outcome, Outcome::kRefused429);
  EXPECT_EQ(refusal_of(429, {{"Retry-After", "2"}}, body).detail, "429 exhausted: full");
  EXPECT_THAT(refusal_of(429, {}, body).detail, HasSubstr("Retry-After"));
  EXPECT_EQ(refusal_of(429, {}, body).outcome, Outcome::kUntyped);
  EXPECT_EQ(refusal_of(429, {{"Retry-After", "soon"}}, body).outcome, Outcome::kUntyped);
  EXPECT_EQ(refusal_of(429, {{"Retry-After", "2"}}, "busy").outcome, Outcome::kUntyped);
  EXPECT_EQ(refusal_of(503, {}, body).outcome, Outcome::kRefused503);
  EXPECT_EQ(refusal_of(400, {}, body).outcome, Outcome::kRefusedOther);
  EXPECT_EQ(refusal_of(502, {}, "<html>").outcome, Outcome::kUntyped);
  EXPECT_EQ(refusal_of(500, {}, R"({"error":"x"})").outcome, Outcome::kUntyped);
}

TEST(Refusal, TellsHowLongToWait) {
  AnswerReader reader(kAsked);
  reader.head(429, {{"Retry-After", "7"}});
  EXPECT_EQ(reader.retry_after, Duration(std::chrono::seconds(7)));
}

TEST(Answer, ThatNeverCameIsNotOneThatBroke) {
  const Error gone{Code::kUnavailable, "reset"};
  AnswerReader none(kAsked), begun(kAsked), late(kAsked);
  EXPECT_EQ(none.end(gone).outcome, Outcome::kNoAnswer);
  begun.head(200, kStream);
  EXPECT_EQ(begun.end(gone).outcome, Outcome::kBroken);
  EXPECT_EQ(late.end(Error{Code::kDeadlineExceeded, "late"}).outcome, Outcome::kTimedOut);
}

}  // namespace
}  // namespace isthmus::load
