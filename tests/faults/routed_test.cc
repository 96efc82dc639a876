// SPDX-License-Identifier: Apache-2.0
// The whole path: client, router, prefiller, decoder, on one loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "faults/duo.h"
#include "faults/routed.h"
#include "fleet/fleet.h"
#include "net/run_until.h"
#include "router/shell/router.h"

namespace isthmus::faults {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::size_t kTokens = 10;

class Routed : public testing::Test {
 protected:
  void start(fleet::OnFailure on_failure = fleet::OnFailure::kRecompute) {
    fleet::Model model;
    model.name = kModel;
    model.on_failure = on_failure;
    model.canary = fleet::Canary::kOff;  // Engines without weights.
    router::shell::RouterOptions options;
    options.fleet.name = "pair";
    options.fleet.models = {model};
    options.fleet.workers = workers_of(duo_);
    options.listen = {"127.0.0.1", 0};
    options.health_interval = std::chrono::milliseconds(20);
    auto router = router::shell::Router::start(duo_.loop(), options, metrics_);
    ASSERT_TRUE(router.ok()) << router.error().text();
    router_ = *std::move(router);
    ASSERT_TRUE(duo_.until([&] { return router_->ready().ok() && ready_workers() == 2; }));
  }

  std::size_t ready_workers() { return faults::ready_workers(duo_, router_->endpoint()); }

  std::unique_ptr<Asking> ask(const std::string& prompt, std::size_t tokens = kTokens, bool stream = false) {
    return duo_.post(router_->endpoint(), "/v1/completions", completion_body(prompt, tokens, stream).dump());
  }

  Duo duo_;
  MetricsRegistry metrics_;
  std::unique_ptr<router::shell::Router> router_;
};

TEST_F(Routed, AnswersComeFromHandedOverStates) {
  start();
  for (const std::size_t length : {3, 300, 600}) {
    const std::string prompt = prompt_of(length);
    for (const bool stream : {false, true}) {
      const auto asking = ask(prompt, kTokens, stream);
      const Answer& answer = duo_.finish(*asking);
      EXPECT_TRUE(answer.is_whole());
      EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
      EXPECT_THAT(answer.route(), StartsWith("handoff"));
    }
  }
  EXPECT_TRUE(duo_.settled());
  EXPECT_EQ(duo_.d().worker->engine().stats().prompt_tokens_computed, 0U);
}

TEST_F(Routed, APrefillerThatDiesMidwayLeavesARecomputedAnswer) {
  start();
  const std::string prompt = prompt_of(700);
  duo_.p().gate.hold_after(1);
  const auto asking = ask(prompt);
  ASSERT_TRUE(duo_.until(
      [&] { return Duo::count(duo_.d(), "isthmus_handoff_bytes_total", {"side=\"consumer\""}) > 0; }));
  duo_.stop(duo_.p());
  EXPECT_EQ(duo_.finish(*asking).text(), support::fake_answer(prompt, kTokens));
  const auto next = ask(prompt);
  const Answer& answer = duo_.finish(*next);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body << " without any prefiller";
  EXPECT_TRUE(duo_.settled());
}

TEST_F(Routed, ADecoderThatIsGoneIsATypedErrorAndFreesThePrefiller) {
  start();
  const std::string prompt = prompt_of(700);
  duo_.p().gate.hold_after(1);
  const auto asking = ask(prompt);
  ASSERT_TRUE(duo_.until(
      [&] { return Duo::count(duo_.d(), "isthmus_handoff_bytes_total", {"side=\"consumer\""}) > 0; }));
  duo_.stop(duo_.d());
  const Answer& answer = duo_.finish(*asking);
  EXPECT_GE(answer.status, 500) << answer.body;
  EXPECT_FALSE(answer.error().empty()) << answer.body;
  duo_.p().gate.open();
  EXPECT_TRUE(duo_.settled()) << Duo::holdings(duo_.p());
}

TEST_F(Routed, AClientThatLeavesEndsBothLegs) {
  start();
  const std::string prompt = prompt_of(1500);
  duo_.p().gate.hold_after(1);
  auto asking = ask(prompt);
  ASSERT_TRUE(duo_.until(
      [&] { return Duo::count(duo_.d(), "isthmus_handoff_bytes_total", {"side=\"consumer\""}) > 0; }));
  asking = nullptr;
  ASSERT_TRUE(duo_.until([&] {
    return Duo::count(duo_.d(), "isthmus_requests_total", {"disconnected"}) == 1 &&
           Duo::count(duo_.p(), "isthmus_requests_total", {"not_handed_over"}) == 1;
  }));
  duo_.p().gate.open();
  EXPECT_TRUE(duo_.settled()) << Duo::holdings(duo_.p()) << Duo::holdings(duo_.d());
}

TEST_F(Routed, ManyAtOnceAreAllRight) {
  start();
  std::vector<std::string> prompts;
  std::vector<std::unique_ptr<Asking>> askings;
  for (std::size_t i = 0; i < 12; ++i) {
    prompts.push_back(prompt_of(20 + 61 * i, static_cast<unsigned>(i)));
    askings.push_back(ask(prompts.back(), kTokens, i % 2 == 0));
  }
  for (std::size_t i = 0; i < askings.size(); ++i) {
    EXPECT_EQ(duo_.finish(*askings[i]).text(), support::fake_answer(prompts[i], kTokens)) << i;
  }
  EXPECT_TRUE(duo_.settled()) << Duo::holdings(duo_.p()) << Duo::holdings(duo_.d());
}

}  // namespace
}  // namespace isthmus::faults
