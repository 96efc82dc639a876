// SPDX-License-Identifier: Apache-2.0
// Where the producer opens the connections: the consumer can't, or isn't to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "faults/routed.h"
#include "router/shell/router.h"
#include "support/tcp_relay.h"

namespace isthmus::faults {
namespace {

using support::Direction;
using support::Passage;
using support::RelayedFrame;
using support::TcpRelay;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using transport::FrameType;

constexpr std::size_t kTokens = 6;

// As if a firewall stood before P: nothing listens at what the ticket comes with.
json::Value pushed(json::Value transfer) {
  transfer.set("isthmus_endpoints", json::array({"tcp://127.0.0.1:1"}));
  transfer.set("isthmus_dialer", "prefill");
  return transfer;
}

void reach(Duo& duo, const json::Value& endpoints) {
  const auto asking =
      duo.post(duo.p().http, "/isthmus/reach", json::object({{"endpoints", endpoints}}).dump());
  EXPECT_EQ(duo.finish(*asking).status, 200) << asking->answer.body;
}

json::Value endpoints_of(const Node& node) {
  json::Array texts;
  for (const std::string& endpoint : node.worker->agent().endpoints()) texts.emplace_back(endpoint);
  return texts;
}

class Push : public ::testing::TestWithParam<std::string> {};

TEST_P(Push, TheProducerDialsAndTheStateCrosses) {
  Duo duo("llamacpp:f16", "openvino:f32",
          [](Node& p, Node& d) { p.transports = d.transports = {GetParam()}; });
  const std::string prompt = prompt_of(700);
  for (int round = 0; round < 2; ++round) {  // The second one finds the session.
    const json::Value transfer = pushed(duo.prefill(prompt));
    const auto asking = duo.ask_decode(prompt, transfer, kTokens, {.fail = true});
    reach(duo, endpoints_of(duo.d()));
    const Answer& answer = duo.finish(*asking);
    EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
    EXPECT_THAT(answer.route(), StartsWith("handoff"));
    EXPECT_THAT(answer.route(), HasSubstr("transport=" + GetParam()));
  }
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

INSTANTIATE_TEST_SUITE_P(Over, Push, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

TEST(Pushed, AProducerThatNeverDialsCostsABoundedWait) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node&, Node& d) {
    d.timings.connect_max = d.timings.handshake_max = std::chrono::milliseconds(100);
  });
  const std::string prompt = prompt_of(300);
  const auto asking = duo.ask_decode(prompt, pushed(duo.prefill(prompt, "id")), kTokens);
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("recompute"));
  duo.cancel("id");
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

TEST(Pushed, ALinkThatBreaksIsDialledAgainByTheProducer) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node& d) { p.transports = d.transports = {"tcp"}; });
  TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.d().agent));
  std::uint64_t chunks = 0, cut_at = ~std::uint64_t{0};
  relay.set_judge([&](RelayedFrame& frame) {
    if (frame.direction != Direction::kToTarget || frame.type != FrameType::kData) return Passage::kForward;
    return ++chunks == cut_at ? Passage::kCut : Passage::kForward;
  });
  const std::string prompt = prompt_of(2000);
  const auto hand_over = [&] {
    const json::Value transfer = pushed(duo.prefill(prompt));
    auto asking = duo.ask_decode(prompt, transfer, kTokens, {.fail = true});
    reach(duo, json::array({relay.endpoint().text()}));
    return asking;
  };
  EXPECT_THAT(duo.finish(*hand_over()).route(), StartsWith("handoff"));
  const std::uint64_t of_one = std::exchange(chunks, 0);
  ASSERT_GE(of_one, 4u);
  // With the last chunk goes what P has sealed already.
  for (const std::uint64_t at : {of_one / 2, of_one - 1, of_one}) {
    SCOPED_TRACE(at);
    chunks = 0;
    cut_at = at;
    const auto asking = hand_over();
    const Answer& answer = duo.finish(*asking);
    EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
    EXPECT_THAT(answer.route(), StartsWith("handoff")) << answer.body;
    EXPECT_GE(chunks, of_one);  // The one that was lost came again.
    EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  }
}

TEST(Pushed, TheRouterTellsTheProducerWhomToReach) {
  Duo duo;
  router::shell::RouterOptions options;
  options.fleet.name = "pushed";
  options.fleet.dialer = fleet::Dialer::kPrefill;
  fleet::Model& model = options.fleet.models.emplace_back();
  model.name = kModel;
  model.on_failure = fleet::OnFailure::kFail;
  model.canary = fleet::Canary::kOff;
  options.fleet.workers = workers_of(duo);
  options.listen = {"127.0.0.1", 0};
  options.health_interval = std::chrono::milliseconds(20);
  MetricsRegistry metrics;
  auto router = router::shell::Router::start(duo.loop(), std::move(options), metrics);
  ASSERT_TRUE(router.ok()) << router.error().text();
  ASSERT_TRUE(duo.until([&] { return ready_workers(duo, (*router)->endpoint()) == 2; }));
  const std::string prompt = prompt_of(300);
  const auto asking =
      duo.post((*router)->endpoint(), "/v1/completions", completion_body(prompt, kTokens).dump());
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("handoff"));
  EXPECT_EQ(Duo::count(duo.p(), "isthmus_handoff_consumers_reached_total"), 1);
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

TEST(Pushed, OddWordsAreRefused) {
  Duo duo;
  for (const char* body : {"", "{}", R"({"endpoints":[]})", R"({"endpoints":[1]})", R"({"endpoints":"x"})"}) {
    const auto asking = duo.post(duo.p().http, "/isthmus/reach", body);
    EXPECT_EQ(duo.finish(*asking).status, 400) << body;
  }
  const std::string prompt = prompt_of(30);
  json::Value transfer = duo.prefill(prompt, "id");
  transfer.set("isthmus_dialer", "nobody");
  EXPECT_EQ(duo.finish(*duo.ask_decode(prompt, transfer, kTokens)).status, 400);
  duo.cancel("id");
  EXPECT_TRUE(duo.settled());
}

}  // namespace
}  // namespace isthmus::faults
