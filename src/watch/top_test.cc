// SPDX-License-Identifier: Apache-2.0
// The page from given answers: both ends of a handoff in one line, rates, workers that are down.
#include "watch/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "http/json.h"
#include "watch/sample_state_test.h"
#include "watch/text.h"

namespace isthmus::watch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Result<http::Response> ok(std::string body) {
  return http::Response{200, {}, std::move(body)};
}

std::string metrics(int moved, int ended) {
  return "# HELP x\nisthmus_handoff_bytes_total{side=\"producer\",wire=\"a } b\"} " + std::to_string(moved) +
         "\nisthmus_handoff_bytes_total{side=\"producer\",wire=\"c\"} 1000\n"
         "isthmus_handoff_seconds_sum{stage=\"receive\"} " +
         std::to_string(ended * 0.05) + "\nisthmus_handoff_seconds_count{stage=\"receive\"} " +
         std::to_string(ended) + "\nisthmus_handoffs_total{outcome=\"owned\",side=\"consumer\"} " +
         std::to_string(ended) + "\n";
}

class TopTest : public ::testing::Test {
 protected:
  TopTest() {
    targets_.workers = {{"p1", "prefill", {"127.0.0.1", 1}}, {"d1", "decode", {"127.0.0.1", 2}}};
    targets_.router = net::Endpoint{"127.0.0.1", 3};
  }
  Sample sample(int moved, int ended, double at_s) {
    const std::string router =
        "isthmus_router_queued 3\nisthmus_router_requests_total{code=\"ok\"} 10\n"
        "isthmus_router_requests_total{code=\"exhausted\"} 2\nisthmus_ttft_seconds_sum 5\n"
        "isthmus_ttft_seconds_count 10\n";
    return sample_of(targets_,
                     {ok(sample_state("p1", "producer")), ok(metrics(moved, ended)),
                      ok(sample_state("d1", "consumer")), ok(metrics(0, ended)), ok(router)},
                     Instant{std::chrono::duration_cast<Duration>(std::chrono::duration<double>(at_s))});
  }
  TopTargets targets_;
};

TEST_F(TopTest, ReadsPrometheusText) {
  const Numbers numbers =
      read_metrics("a 1\na{x=\"y\"} 2\n# a 9\nbad\nb{ax=\"no\",x=\"z\"} 4 \n\nc nan\n", {{"b", "x"}});
  EXPECT_EQ(numbers.at("a"), 3);
  EXPECT_EQ(numbers.at("b|z"), 4);
  EXPECT_FALSE(numbers.contains("bad"));
}

TEST_F(TopTest, ShowsAHandoffOnceWithBothEnds) {
  const Sample now = sample(0, 0, 1);
  const std::string text = page(targets_, nullptr, now, {"fleet demo", 200, ""});
  EXPECT_THAT(text, HasSubstr("fleet demo · 2 of 2 workers up\n"));
  EXPECT_THAT(text, HasSubstr("c0ffee01.17  p1    d1  receiving / receiving"));
  EXPECT_EQ(text.find("c0ffee01.17"), text.rfind("c0ffee01.17"));
  EXPECT_THAT(text, HasSubstr("██░░░░░░ 1.0 MiB of 4.0 MiB"));
  EXPECT_THAT(text, HasSubstr("queued 3 · under way 0 · answered 10 · not 2"));
  EXPECT_THAT(text, HasSubstr("mean TTFT 500 ms"));
}

TEST_F(TopTest, RatesAreOverTheTimeBetweenSamples) {
  const Sample before = sample(1000, 1, 1), now = sample(1000 + 4 * 1024 * 1024, 3, 3);
  const std::string text = page(targets_, &before, now, {"x", 200, ""});
  EXPECT_THAT(text, HasSubstr("2.0 MiB/s"));
  EXPECT_THAT(text, HasSubstr("receive 50 ms"));
  EXPECT_THAT(page_json(targets_, &before, now), HasSubstr("\"bytes_out_per_second\":2097152"));
}

TEST_F(TopTest, AWorkerOrRouterThatIsDownIsSaidAndTheRestIsShown) {
  const Error refused{Code::kUnavailable, "GET http://127.0.0.1:1/state: Connection refused"};
  const Sample before = sample(0, 0, 1);
  const Sample now = sample_of(
      targets_, {refused, refused, ok(sample_state("d1", "consumer")), http::Response{500, {}, ""}, refused},
      Instant{std::chrono::seconds(2)});
  const std::string text = page(targets_, &before, now, {"x", 120, ""});
  EXPECT_THAT(text, HasSubstr("1 of 2 workers up"));
  EXPECT_THAT(text, HasSubstr("p1      DOWN  GET http://127.0.0.1:1/state: Connection refused"));
  EXPECT_THAT(text, HasSubstr("ROUTER    http://127.0.0.1:3  DOWN"));
  EXPECT_THAT(text, HasSubstr("? / receiving"));
  const auto parsed = json::parse(page_json(targets_, &before, now));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->require<bool>("workers.0.up").value(), false);
  EXPECT_EQ(parsed->require<std::string>("handoffs.0.from").value(), "p1");
}

TEST_F(TopTest, LinesAreCutToTheTerminal) {
  std::istringstream lines(page(targets_, nullptr, sample(0, 0, 1), {"x", 40, ""}));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(width_of(line), 40u) << line;
}

}  // namespace
}  // namespace isthmus::watch
