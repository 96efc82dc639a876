// SPDX-License-Identifier: Apache-2.0
// Runs against a server that answers, stalls, refuses and goes away.
#include "load/run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "http/json.h"
#include "http/openai_error.h"
#include "http/server.h"
#include "net/run_until.h"

namespace isthmus::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Length kLength{.prompt = 4, .output = 3};

// Writes a whole answer to `exchange`, as its body asks.
void answer(http::Exchange& exchange) {
  const json::Value body = json::parse(exchange.request().body).value();
  const std::uint64_t tokens = *body.find("max_tokens")->as_uint();
  exchange.begin({.headers = {{"Content-Type", "text/event-stream"}}, .body = ""});
  for (std::uint64_t i = 0; i < tokens; ++i) exchange.write("data: {\"choices\":[{\"text\":\"x\"}]}\n\n");
  exchange.write("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n");
  exchange.write(
      fmt::format("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{}}}}}\n\n",
                  body.find("prompt")->as_array()->size(), tokens));
  exchange.write("data: [DONE]\n\n");
  exchange.end();
}

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = http::serve(loop_, {"127.0.0.1", 0}, {}, [this](std::shared_ptr<http::Exchange> exchange) {
      ++arrived_;
      on_request_(std::move(exchange));
    });
    ASSERT_TRUE(server.ok()) << server.error().detail;
    server_ = *std::move(server);
  }
  RunOptions options(LoadShape shape, Duration window) const {
    return {.to = server_->endpoint(),
            .model = "m",
            .lengths = Lengths(*Distribution::parse(fmt::format("fixed:{}", kLength.prompt)),
                               *Distribution::parse(fmt::format("fixed:{}", kLength.output))),
            .draws = {.seed = 4},
            .shape = shape,
            .window = window,
            .timeout = seconds(20)};
  }
  static LoadShape rate(double per_second) { return {.rate = per_second}; }
  void start(RunOptions options) {
    auto run =
        load::Run::start(loop_, std::move(options), [this](Report report) { report_ = std::move(report); });
    ASSERT_TRUE(run.ok()) << run.error().text();
    run_ = *std::move(run);
  }
  bool until(const std::function<bool()>& done) { return net::run_until(loop_, done, seconds(30)); }
  Report report_of(RunOptions options) {
    start(std::move(options));
    EXPECT_TRUE(until([&] { return report_.has_value(); }));
    return report_.value_or(Report{});
  }
  std::uint64_t count(Outcome outcome) const { return count_of(report_->counts, outcome); }

  net::Loop loop_;
  std::unique_ptr<http::Server> server_;
  std::function<void(std::shared_ptr<http::Exchange>)> on_request_ =
      [](const std::shared_ptr<http::Exchange>& exchange) { answer(*exchange); };
  std::uint64_t arrived_ = 0;
  std::unique_ptr<load::Run> run_;
  std::optional<Report> report_;
};

TEST_F(RunTest, EveryRequestOfTheScheduleIsSentAndMeasured) {
  const RunOptions options = this->options(rate(200), milliseconds(500));
  const auto due = poisson_arrivals(200, options.window, options.draws);
  const Report report = report_of(options);
  EXPECT_EQ(report.requests, due->size());
  EXPECT_EQ(arrived_, due->size());
  EXPECT_EQ(count(Outcome::kOk), due->size());
  EXPECT_EQ(report.good, due->size());
  EXPECT_EQ(report.ttft.count, due->size());
  EXPECT_EQ(report.itl.count, 2 * due->size());
  EXPECT_EQ(report.output_tokens_mean, 3);
  EXPECT_EQ(report.prompt_tokens_mean, 4);
}

TEST_F(RunTest, ARequestAsksForAStreamOfItsLengthsWithUsage) {
  std::string body;
  on_request_ = [&](const std::shared_ptr<http::Exchange>& exchange) {
    body = exchange->request().body;
    answer(*exchange);
  };
  report_of(options({.concurrency = 1}, milliseconds(1)));
  const json::Value asked = json::parse(body).value();
  EXPECT_EQ(*asked.find("model")->as_string(), "m");
  EXPECT_EQ(asked.find("prompt")->as_array()->size(), kLength.prompt);
  EXPECT_EQ(asked.find("max_tokens")->as_uint(), kLength.output);
  EXPECT_EQ(asked.find("stream")->as_bool(), true);
  EXPECT_EQ(asked.find("stream_options.include_usage")->as_bool(), true);
}

// Coordinated omission: a generator that waits for answers asks a stalled server less, and doesn't see how
// long those would have waited whom it didn't ask.
TEST_F(RunTest, AStalledServerIsAskedOnAndItsStallIsInTheLatencies) {
  constexpr std::size_t kHeld = 40;
  std::vector<std::shared_ptr<http::Exchange>> held;
  bool is_stalled = true;
  on_request_ = [&](std::shared_ptr<http::Exchange> exchange) {
    if (!is_stalled) return answer(*exchange);
    held.push_back(std::move(exchange));
    if (held.size() < kHeld) return;
    is_stalled = false;
    for (const auto& each : held) answer(*each);
    held.clear();
  };
  const RunOptions options = this->options(rate(200), milliseconds(400));
  const auto due = *poisson_arrivals(200, options.window, options.draws);
  ASSERT_GT(due.size(), kHeld);
  const Report report = report_of(options);
  EXPECT_EQ(count(Outcome::kOk), due.size());
  const auto stall_of = [&](std::size_t i) {
    return std::chrono::duration<double>(due[kHeld - 1] - due[i]).count();
  };
  EXPECT_GE(report.ttft.max, stall_of(0));
  // Half of those that were held waited as long as the one in their middle, or longer.
  const double share = 100.0 * (1 - static_cast<double>(kHeld) / 2 / static_cast<double>(due.size()));
  EXPECT_GE(report.ttft_quantiles[static_cast<std::size_t>(share) + 1], stall_of(kHeld / 2));
}

// What keeps the generator itself from its work is told, and is in the latencies: they count from when a
// request was due.
TEST_F(RunTest, AGeneratorThatWasAwayIsInvalidAndItsLatenessIsInTheLatencies) {
  constexpr Duration kAway = milliseconds(90);
  on_request_ = [&](const std::shared_ptr<http::Exchange>& exchange) {
    for (const Instant end = now() + kAway; arrived_ == 1 && now() < end;) {
    }
    answer(*exchange);
  };
  const Report report = report_of(options(rate(300), milliseconds(300)));
  EXPECT_GT(report.lag.max, 0.06);
  EXPECT_EQ(report.lag.count, report.e2e.count);  // Each is at least its own lag, so are the means.
  EXPECT_GE(report.e2e.mean, report.lag.mean);
  EXPECT_GE(report.ttft.mean, report.lag.mean);
  EXPECT_THAT(report.invalid, ElementsAre(HasSubstr("the generator was late")));
}

TEST_F(RunTest, RequestsBeyondTheConnectionsAreCountedAsUnsent) {
  std::vector<std::shared_ptr<http::Exchange>> held;
  on_request_ = [&](std::shared_ptr<http::Exchange> exchange) { held.push_back(std::move(exchange)); };
  RunOptions options = this->options(rate(200), milliseconds(200));
  const auto due = *poisson_arrivals(200, options.window, options.draws);
  options.connections_max = 3;
  options.timeout = milliseconds(600);
  const Report report = report_of(options);
  EXPECT_EQ(count(Outcome::kTimedOut), 3u);
  EXPECT_EQ(count(Outcome::kUnsent), due.size() - 3);
  EXPECT_EQ(report.connections_peak, 3u);
  EXPECT_THAT(report.invalid, ElementsAre(HasSubstr("--connections")));
}

TEST_F(RunTest, RefusalsAreCountedByKind) {
  on_request_ = [&](const std::shared_ptr<http::Exchange>& exchange) {
    const Code code = arrived_ % 3 == 0   ? Code::kExhausted
                      : arrived_ % 3 == 1 ? Code::kUnavailable
                                          : Code::kInvalidArgument;
    exchange->send(http::error_response({code, "no"}));
  };
  const Report report = report_of(options(rate(200), milliseconds(100)));
  EXPECT_EQ(count(Outcome::kRefused429), arrived_ / 3);
  EXPECT_EQ(count(Outcome::kRefused503), (arrived_ + 2) / 3);
  EXPECT_EQ(count(Outcome::kRefusedOther), (arrived_ + 1) / 3);
  EXPECT_EQ(report.refusal.count, arrived_);
  EXPECT_EQ(report.goodput, 0);
  EXPECT_EQ(report.first_of.at(Outcome::kRefused429), "429 exhausted: no");
}

TEST_F(RunTest, ABrokenStreamIsNotAnAnswer) {
  on_request_ = [](const std::shared_ptr<http::Exchange>& exchange) {
    exchange->begin({.headers = {{"Content-Type", "text/event-stream"}}, .body = ""});
    exchange->write("data: {\"choices\":[{\"text\":\"x\"}]}\n\n");
  };
  const Report report = report_of(options(rate(100), milliseconds(100)));
  EXPECT_EQ(count(Outcome::kBroken), report.requests);
  EXPECT_EQ(report.ttft.count, 0u);
}

TEST_F(RunTest, AServerThatIsNotThereIsNoAnswer) {
  RunOptions options = this->options(rate(100), milliseconds(100));
  server_.reset();
  const Report report = report_of(options);
  EXPECT_GT(report.requests, 0u);
  EXPECT_EQ(count(Outcome::kNoAnswer), report.requests);
}

TEST_F(RunTest, TheClosedLoopKeepsSoManyUnderWay) {
  std::vector<std::shared_ptr<http::Exchange>> held;
  std::size_t most = 0;
  on_request_ = [&](std::shared_ptr<http::Exchange> exchange) {
    held.push_back(std::move(exchange));
    most = std::max(most, held.size());
    if (held.size() < 4) return;
    for (const auto& each : held) answer(*each);
    held.clear();
  };
  start(options({.concurrency = 4}, milliseconds(200)));
  ASSERT_TRUE(until([&] { return arrived_ >= 12; }));
  run_->stop();
  ASSERT_TRUE(until([&] { return report_.has_value(); }));
  EXPECT_EQ(most, 4u);
  EXPECT_EQ(report_->connections_peak, 4u);
  EXPECT_EQ(report_->shape.text(), "4 at once");
}

TEST_F(RunTest, TheClosedLoopRestsAfterARefusal) {
  on_request_ = [](const std::shared_ptr<http::Exchange>& exchange) {
    exchange->send(http::error_response({Code::kExhausted, "full"}, "", seconds(60)));
  };
  const Report report = report_of(options({.concurrency = 2}, milliseconds(100)));
  EXPECT_EQ(report.requests, 2u);
}

TEST_F(RunTest, StoppedItTellsWhatWasMeasured) {
  std::vector<std::shared_ptr<http::Exchange>> held;  // Nobody answers these.
  on_request_ = [&](const std::shared_ptr<http::Exchange>& exchange) {
    if (arrived_ <= 5) return answer(*exchange);
    held.push_back(exchange);
  };
  start(options(rate(100), seconds(60)));
  ASSERT_TRUE(until([&] { return arrived_ >= 7 && run_->progress().ok == 5; }));
  const Progress before = run_->progress();
  EXPECT_EQ(before.due, before.in_flight + 5);
  run_->stop();
  ASSERT_TRUE(until([&] { return report_.has_value(); }));
  EXPECT_EQ(count(Outcome::kOk), 5u);
  EXPECT_EQ(count(Outcome::kCut), before.in_flight);
  EXPECT_LT(report_->window_s, 60);
  EXPECT_THAT(report_->invalid, ElementsAre(HasSubstr("stopped")));
}

TEST_F(RunTest, WhatCannotBeIsRefused) {
  EXPECT_EQ(load::Run::start(loop_, options(rate(0), seconds(1)), {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(load::Run::start(loop_, options({.concurrency = 0}, seconds(1)), {}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(load::Run::start(loop_, options({.concurrency = 5000}, seconds(1)), {}).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus::load
