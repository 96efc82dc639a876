// SPDX-License-Identifier: Apache-2.0
// A lone answer whose next token is guessed: right guesses save steps, wrong ones leave nothing.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "faults/duo.h"

namespace isthmus::faults {
namespace {

// What the engine says has no sense: one guess of 26 is right.
constexpr std::size_t kTokens = 400;

std::unique_ptr<Duo> make_duo(bool speculates) {
  return std::make_unique<Duo>("llamacpp:f16", "openvino:f32",
                               [=](Node&, Node& d) { d.engine.speculates = speculates; });
}

worker::EngineLoopStats stats(Duo& duo) {
  return duo.d().worker->engine().stats();
}

TEST(Draft, ALoneAnswerHasTheSameTokensInFewerSteps) {
  const auto duo = make_duo(true);
  const std::string prompt = prompt_of(40);
  EXPECT_EQ(duo->alone(duo->d(), prompt, kTokens).text(), support::fake_answer(prompt, kTokens));
  ASSERT_TRUE(duo->until([&] { return stats(*duo).tokens_generated == kTokens; }));  // Its last step is over.
  const worker::EngineLoopStats after = stats(*duo);
  EXPECT_GT(after.draft_tokens_accepted, 0U);
  EXPECT_GT(after.draft_tokens, after.draft_tokens_accepted);
  EXPECT_EQ(duo->d().gate.begun() + after.draft_tokens_accepted, kTokens);
  const auto scrape =
      duo->send(duo->d().http, {.method = "GET", .path = "/metrics", .query = {}, .headers = {}, .body = {}});
  (void)duo->finish(*scrape);
  EXPECT_EQ(Duo::count(duo->d(), "isthmus_draft_tokens_total"), after.draft_tokens);
  EXPECT_EQ(Duo::count(duo->d(), "isthmus_draft_tokens_accepted_total"), after.draft_tokens_accepted);
  EXPECT_TRUE(duo->settled()) << Duo::holdings(duo->d());
}

TEST(Draft, AStateThatWasHandedOverGoesOnAlike) {
  const auto duo = make_duo(true);
  const std::string prompt = prompt_of(300);
  EXPECT_EQ(duo->hand_over(prompt, kTokens).text(), support::fake_answer(prompt, kTokens));
  EXPECT_GT(stats(*duo).draft_tokens_accepted, 0U);
  EXPECT_TRUE(duo->settled()) << Duo::holdings(duo->p()) << Duo::holdings(duo->d());
}

// The random number of a token follows from its place alone.
TEST(Draft, SampledTokensAreTheSame) {
  const std::string prompt = prompt_of(40);
  std::string texts[2];
  for (const bool speculates : {false, true}) {
    const auto duo = make_duo(speculates);
    const json::Value body = json::object({{"model", kModel},
                                           {"prompt", prompt},
                                           {"max_tokens", kTokens},
                                           {"temperature", 2.0},
                                           {"ignore_eos", true},
                                           {"seed", 7}});
    const auto asking = duo->post(duo->d().http, "/v1/completions", body.dump());
    texts[speculates ? 1 : 0] = duo->finish(*asking).text();
    EXPECT_EQ(stats(*duo).draft_tokens_accepted > 0, speculates);
  }
  EXPECT_EQ(texts[0].size(), kTokens);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0], support::fake_answer(prompt, kTokens));
}

// Two at once: nothing is run beside them. An answer's last token has none behind it.
TEST(Draft, OnlyALoneTokenHasADraft) {
  const auto duo = make_duo(true);
  duo->d().gate.hold_after(0);
  std::unique_ptr<Asking> asking[2];
  for (unsigned i = 0; i < 2; ++i)
    asking[i] = duo->post(duo->d().http, "/v1/completions", completion_body(prompt_of(40, i), 60).dump());
  ASSERT_TRUE(duo->until([&] { return duo->d().worker->agent().ledger().live() == 2; }));
  duo->d().gate.open();
  for (unsigned i = 0; i < 2; ++i)
    EXPECT_EQ(duo->finish(*asking[i]).text(), support::fake_answer(prompt_of(40, i), 60));
  EXPECT_LE(stats(*duo).draft_tokens, 2U);  // Where one began or ended a step before the other.
  const std::uint64_t before = stats(*duo).draft_tokens;
  EXPECT_EQ(duo->alone(duo->d(), prompt_of(40), 2).text(), support::fake_answer(prompt_of(40), 2));
  EXPECT_EQ(stats(*duo).draft_tokens, before);
}

}  // namespace
}  // namespace isthmus::faults
