// SPDX-License-Identifier: Apache-2.0
// Under more than a worker can do, requests that can't begin in time are refused, typed, and the rest served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "faults/duo.h"

namespace isthmus::faults {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr Duration kShort = std::chrono::milliseconds(20);

// One sequence at a time, which its gate holds.
void crowd(Node& node) {
  node.engine.sequences_max = 1;
  node.queue_wait = kShort;
}

http::Request completion(const std::string& prompt, http::Headers headers = {}) {
  return {.method = "POST",
          .path = "/v1/completions",
          .query = {},
          .headers = std::move(headers),
          .body = completion_body(prompt, 4).dump()};
}

// So many requests have come to `node` and are counted there; what may wait only for a short time is late
// then.
void let_wait(Duo& duo, const Node& node, std::size_t requests) {
  ASSERT_TRUE(duo.until([&] { return node.worker->agent().ledger().live() >= requests; }));
  bool is_late = false;
  const auto timer = duo.loop().after(kShort, [&] { is_late = true; });
  ASSERT_TRUE(duo.until([&] { return is_late; }));
}

void expect_refused(const Answer& answer) {
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_THAT(answer.error(), StartsWith("exhausted: too much is before this request"));
  EXPECT_EQ(http::header(answer.headers, "Retry-After"), "1");
}

TEST(Queue, ARequestThatCannotBeginInTimeIsRefusedAndTheOneBeforeItServed) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) { crowd(p); });
  duo.p().gate.hold_after(1);  // The prompt's step runs, decoding stands still.
  const auto first = duo.send(duo.p().http, completion("abc"));
  ASSERT_TRUE(duo.until([&] { return duo.p().gate.begun() == 2; }));
  const auto second = duo.send(duo.p().http, completion("abd"));
  let_wait(duo, duo.p(), 2);
  duo.p().gate.open();  // The engine's thread looks at its queue between two steps.
  expect_refused(duo.finish(*second));
  EXPECT_EQ(duo.finish(*first).text(), support::fake_answer("abc", 4)) << "it had begun";
  EXPECT_TRUE(duo.settled());
}

// Sequences are open, but a step has no room for all their prompts: the last haven't begun.
TEST(Queue, AnOpenSequenceWhosePromptHasNotBegunIsRefusedToo) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) {
    p.engine.step_tokens_max = 64;
    p.queue_wait = kShort;
  });
  duo.p().gate.hold_after(0);
  const std::string prompt = prompt_of(300);
  const auto first = duo.send(duo.p().http, completion(prompt));
  ASSERT_TRUE(duo.until([&] { return duo.p().gate.begun() == 1; }));
  const auto second = duo.send(duo.p().http, completion(prompt_of(301)));
  const auto third = duo.send(duo.p().http, completion("abc", {{"X-Isthmus-Queue-Wait-Ms", "1"}}));
  let_wait(duo, duo.p(), 3);
  duo.p().gate.open();
  expect_refused(duo.finish(*second));
  expect_refused(duo.finish(*third));
  EXPECT_EQ(duo.finish(*first).text(), support::fake_answer(prompt, 4));
  EXPECT_TRUE(duo.settled());
}

TEST(Queue, ARouterSaysHowLongARequestMayStillWait) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) { p.engine.sequences_max = 1; });
  duo.p().gate.hold_after(1);
  const auto first = duo.send(duo.p().http, completion("abc"));
  ASSERT_TRUE(duo.until([&] { return duo.p().gate.begun() == 2; }));
  const auto patient = duo.send(duo.p().http, completion("abd"));
  const auto hasty = duo.send(duo.p().http, completion("abe", {{"X-Isthmus-Queue-Wait-Ms", "20"}}));
  let_wait(duo, duo.p(), 3);
  duo.p().gate.open();
  expect_refused(duo.finish(*hasty));
  EXPECT_EQ(duo.finish(*patient).text(), support::fake_answer("abd", 4));
  EXPECT_EQ(duo.finish(*first).status, 200);
  const auto wrong = duo.send(duo.p().http, completion("abf", {{"X-Isthmus-Queue-Wait-Ms", "soon"}}));
  EXPECT_EQ(duo.finish(*wrong).status, 400);
  EXPECT_TRUE(duo.settled());
}

TEST(Queue, FurtherChoicesOfARequestThatHasBegunAreNotLate) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) { crowd(p); });
  duo.p().gate.hold_after(1);
  const auto asking =
      duo.post(duo.p().http, "/v1/completions", R"({"prompt":"abc","max_tokens":4,"temperature":0,"n":3})");
  ASSERT_TRUE(duo.until([&] { return duo.p().gate.begun() == 2; }));
  let_wait(duo, duo.p(), 3);
  duo.p().gate.open();
  EXPECT_EQ(duo.finish(*asking).status, 200) << asking->answer.body;
  EXPECT_TRUE(duo.settled());
}

TEST(Queue, APrefillThatCannotBeginInTimeIsNotComputedByItsDecoderEither) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node& d) {
    crowd(p);
    crowd(d);
  });
  const std::string prompt = prompt_of(40), other = prompt_of(41);
  duo.p().gate.hold_after(0);
  const auto busy = duo.send(duo.p().http, completion("abc"));
  ASSERT_TRUE(duo.until([&] { return duo.p().gate.begun() == 1; }));
  const json::Value transfer = duo.prefill(prompt);
  const auto decode = duo.ask_decode(prompt, transfer, 4);
  let_wait(duo, duo.d(), 1);
  duo.p().gate.open();
  const Answer& answer = duo.finish(*decode);
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_THAT(answer.error(), HasSubstr("too much is before this request"));
  EXPECT_EQ(Duo::count(duo.d(), "isthmus_prompt_tokens_computed_total"), 0);
  EXPECT_EQ(duo.finish(*busy).status, 200);
  EXPECT_TRUE(duo.settled());
}

}  // namespace
}  // namespace isthmus::faults
