// SPDX-License-Identifier: Apache-2.0
// The router between real HTTP clients and fake workers, all on one loop.
#include "router/shell/router.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/client.h"
#include "http/json.h"
#include "net/run_until.h"
#include "router/core/test_fleet.h"
#include "router/shell/fake_worker.h"

namespace isthmus::router::shell {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const net::Endpoint kAnyPort{"127.0.0.1", 0};
constexpr std::string_view kPrefillAsked =
    R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false})";

// What a client sees of one request.
struct Got {
  int status = 0;
  http::Headers headers;
  std::string body;
  std::optional<Status> done;
};

class RouterTest : public ::testing::Test {
 protected:
  // As core::test_fleet(); every worker is a fake that is up.
  void start(std::string_view workers, fleet::OnFailure on_failure = fleet::OnFailure::kRecompute,
             fleet::Canary canary = fleet::Canary::kOff) {
    options_.fleet = core::test_fleet(workers, on_failure);
    options_.fleet.models[0].canary = canary;
    for (fleet::Worker& worker : options_.fleet.workers) {
      fakes_[worker.name] = std::make_unique<FakeWorker>(loop_, kAnyPort, worker.name);
      worker.http = fakes_[worker.name]->endpoint();
    }
    options_.listen = kAnyPort;
    options_.health_interval = std::chrono::milliseconds(5);
    auto router = Router::start(loop_, options_, metrics_);
    ASSERT_TRUE(router.ok()) << router.error().text();
    router_ = *std::move(router);
    wait([&] { return count(worker_page(), "\"ready\":true") == fakes_.size(); });
  }

  FakeWorker& fake(const std::string& name) { return *fakes_.at(name); }
  void wait(const std::function<bool()>& done) { ASSERT_TRUE(net::run_until(loop_, done)); }

  static std::size_t count(std::string_view text, std::string_view word) {
    std::size_t found = 0;
    for (auto at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) ++found;
    return found;
  }

  std::unique_ptr<http::Call> send(Got& got, http::Request request) {
    http::ClientEvents events;
    events.on_head = [&got](int status, const http::Headers& headers) {
      got.status = status;
      got.headers = headers;
    };
    events.on_piece = [&got](std::string_view piece) { got.body += piece; };
    events.on_done = [&got](const Status& status) { got.done = status; };
    return client_->call(router_->endpoint(), std::move(request), std::move(events));
  }
  static http::Request post(std::string body, http::Headers headers = {}) {
    headers.emplace_back("Content-Type", "application/json");
    return {"POST", "/v1/completions", "", std::move(headers), std::move(body)};
  }
  Got ask(http::Request request) {
    Got got;
    const auto call = send(got, std::move(request));
    EXPECT_TRUE(net::run_until(loop_, [&] { return got.done.has_value(); }));
    return got;
  }
  Got get(std::string path) { return ask({"GET", std::move(path), "", {}, ""}); }
  std::string worker_page() { return get("/isthmus/workers").body; }
  void expect_idle() {
    wait([&] { return router_->ledger().live == 0 && router_->ledger().queued == 0; });
    const std::string page = worker_page();
    EXPECT_EQ(count(page, "\"requests\":0,\"tokens\":0"), fakes_.size()) << page;
  }

  net::Loop loop_;
  MetricsRegistry metrics_;
  RouterOptions options_;
  std::map<std::string, std::unique_ptr<FakeWorker>> fakes_;
  std::unique_ptr<http::Client> client_ = http::make_client(loop_, http::ClientLimits{});
  std::unique_ptr<Router> router_;
};

TEST_F(RouterTest, TriesAPairAtFirstContactBeforeItIsUsed) {
  start("p1:prefill d1:decode", fleet::OnFailure::kFail, fleet::Canary::kFirstContact);
  wait([&] { return !router_->pairs().empty(); });
  ASSERT_EQ(fake("d1").canaries.size(), 1u);
  EXPECT_THAT(fake("d1").canaries[0].body, HasSubstr(R"("isthmus_ticket":"p1-ticket")"));
  EXPECT_EQ(ask(post(R"({"prompt":"hi"})")).status, 200);
  EXPECT_THAT(worker_page(), HasSubstr(R"({"prefill":"p1","decode":"d1","is_sound":true)"));
}

TEST_F(RouterTest, HandsNothingOverBetweenWorkersWhoseStatesDiffer) {
  options_.health_interval = std::chrono::milliseconds(5);
  start("p1:prefill d1:decode", fleet::OnFailure::kFail, fleet::Canary::kFirstContact);
  fake("d1").is_sound = false;
  wait([&] { return !router_->pairs().empty(); });
  const std::size_t of_trial = fake("p1").seen.size();
  const Got got = ask(post(R"({"prompt":"hi"})"));
  EXPECT_EQ(got.status, 503);
  EXPECT_THAT(got.body, HasSubstr("no pair with d1: v differs"));
  EXPECT_EQ(fake("p1").seen.size(), of_trial);
  // Another process behind the same address is another worker.
  fake("d1").is_sound = true;
  fake("d1").incarnation = "2";
  wait([&] { return fake("d1").canaries.size() == 2 && !router_->is_trying(); });
  EXPECT_EQ(ask(post(R"({"prompt":"hi"})")).status, 200);
}

TEST_F(RouterTest, TriesManyPairsEachWorkerInOneTrialAtATime) {
  start("p1:prefill p2:prefill d1:decode d2:decode", fleet::OnFailure::kFail, fleet::Canary::kFirstContact);
  wait([&] { return router_->pairs().size() == 4 && !router_->is_trying(); });
  EXPECT_EQ(fake("d1").canaries.size() + fake("d2").canaries.size(), 4u);
  EXPECT_EQ(ask(post(R"({"prompt":"hi"})")).status, 200);
}

TEST_F(RouterTest, StreamsTheDecodersAnswerAfterRelayingThePrefillersTicket) {
  start("p1:prefill d1:decode");
  const Got got = ask(post(R"({"prompt":"hi", "stream":true,"max_tokens":9})",
                           {{"X-Request-Id", "abc-1"}, {"traceparent", "00-aa-bb-01"}}));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.body,
            "data: {\"choices\":[{\"text\":\"Hello\"}]}\n\n"
            "data: {\"choices\":[{\"text\":\" world\"}]}\n\ndata: [DONE]\n\n");
  EXPECT_EQ(http::header(got.headers, "Content-Type"), "text/event-stream");
  EXPECT_EQ(http::header(got.headers, "X-Request-Id"), "abc-1");
  EXPECT_EQ(http::header(got.headers, "X-Isthmus-Prefill"), "p1");
  EXPECT_EQ(http::header(got.headers, "X-Isthmus-Decode"), "d1");
  ASSERT_EQ(fake("p1").seen.size(), 1u);
  ASSERT_EQ(fake("d1").seen.size(), 1u);
  EXPECT_EQ(fake("p1").seen[0].body,
            fmt::format(R"({{"prompt":"hi", "stream":false,"max_tokens":1,{}}})", kPrefillAsked));
  EXPECT_EQ(
      fake("d1").seen[0].body,
      R"({"prompt":"hi", "stream":true,"max_tokens":9,"kv_transfer_params":{"do_remote_prefill": true, )"
      R"("isthmus_ticket":"p1-ticket","n":9007199254740993,"isthmus_on_failure":"recompute"}})");
  for (const std::string worker : {"p1", "d1"}) {
    EXPECT_EQ(fake(worker).seen[0].path, "/v1/completions");
    EXPECT_EQ(http::header(fake(worker).seen[0].headers, "X-Request-Id"), "abc-1");
    EXPECT_EQ(http::header(fake(worker).seen[0].headers, "traceparent"), "00-aa-bb-01");
  }
  EXPECT_TRUE(fake("p1").cancelled.empty());
  expect_idle();
}

TEST_F(RouterTest, GivesAWholeAnswerAsItIs) {
  start("p1:prefill d1:decode", fleet::OnFailure::kFail);
  const Got got = ask(post(R"({"model":"m","prompt":"hi"})"));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.body, R"({"id":"d","choices":[{"text":"Hello world"}]})");
  EXPECT_THAT(fake("d1").seen[0].body, HasSubstr(R"("isthmus_on_failure":"fail")"));
  EXPECT_THAT(std::string(http::header(got.headers, "X-Request-Id")), HasSubstr("req-"));
}

TEST_F(RouterTest, ComputesAtDWhenThePrefillersProcessIsGone) {
  start("p1:prefill d1:decode");
  fake("p1").die();
  const Got got = ask(post(R"({"prompt":"hi"})"));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(fake("d1").seen[0].body, R"({"prompt":"hi"})");
  EXPECT_EQ(http::header(got.headers, "X-Isthmus-Prefill"), "");
  EXPECT_THAT(get("/metrics").body, HasSubstr("isthmus_router_local_prefills_total 1"));
  expect_idle();
}

TEST_F(RouterTest, TriesAnotherPrefillerUnderAnotherLegIdWhenOneIsBusy) {
  start("p1:prefill p2:prefill d1:decode");
  fake("p1").script({FakeWorker::error(429, "exhausted", "full")});
  const Got got = ask(post(R"({"prompt":"hi"})", {{"X-Request-Id", "abc"}}));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(http::header(fake("p2").seen.at(0).headers, "X-Request-Id"), "abc.2");
  EXPECT_EQ(http::header(fake("d1").seen.at(0).headers, "X-Request-Id"), "abc.2");
  EXPECT_EQ(http::header(got.headers, "X-Request-Id"), "abc");
  EXPECT_THAT(fake("d1").seen[0].body, HasSubstr("p2-ticket"));
}

TEST_F(RouterTest, NamesLegsApartWhenAClientRepeatsItsRequestId) {
  start("p1:prefill d1:decode");
  for (int i = 0; i < 2; ++i) {
    const Got got = ask(post(R"({"prompt":"hi"})", {{"X-Request-Id", "abc"}}));
    EXPECT_EQ(http::header(got.headers, "X-Request-Id"), "abc");
  }
  for (const std::string worker : {"p1", "d1"}) {
    EXPECT_EQ(http::header(fake(worker).seen.at(0).headers, "X-Request-Id"), "abc");
    EXPECT_EQ(http::header(fake(worker).seen.at(1).headers, "X-Request-Id"), "abc.101");
  }
}

TEST_F(RouterTest, PassesOnHowTheDecoderCameByTheState) {
  start("p1:prefill d1:decode");
  fake("d1").script({[](const std::shared_ptr<http::Exchange>& exchange) {
    exchange->send({200, {{"X-Isthmus-Route", "handoff; bytes=7"}, {"X-Other", "x"}}, "{}"});
  }});
  const Got got = ask(post(R"({"prompt":"hi"})"));
  EXPECT_EQ(http::header(got.headers, "X-Isthmus-Route"), "handoff; bytes=7");
  EXPECT_EQ(http::header(got.headers, "X-Other"), "");
}

TEST_F(RouterTest, AnswersTheTypedErrorWhenPolicyForbidsToRecompute) {
  start("p1:prefill d1:decode", fleet::OnFailure::kFail);
  fake("p1").script({FakeWorker::error(502, "corrupt", "digest of tile 3 differs")});
  const Got got = ask(post(R"({"prompt":"hi"})"));
  EXPECT_EQ(got.status, 502);
  EXPECT_THAT(got.body, AllOf(HasSubstr("digest of tile 3 differs"), HasSubstr("\"corrupt\"")));
  EXPECT_TRUE(fake("d1").seen.empty());
}

TEST_F(RouterTest, PassesOnAWorkersRefusalOfTheRequestVerbatim) {
  start("p1:prefill d1:decode");
  fake("p1").script({FakeWorker::error(400, "invalid_argument", "'temperature' must be a number")});
  const Got got = ask(post(R"({"prompt":"hi","temperature":"hot"})"));
  EXPECT_EQ(got.status, 400);
  EXPECT_EQ(
      got.body,
      R"({"error":{"message":"'temperature' must be a number","code":"invalid_argument","param":"worker"}})");
  EXPECT_TRUE(fake("d1").seen.empty());
}

TEST_F(RouterTest, GivesThePrefilledStateToAnotherDecoderBeforeTheFirstToken) {
  start("p1:prefill d1:decode d2:decode");
  fake("d1").script({FakeWorker::error(503, "unavailable", "draining")});
  const Got got = ask(post(R"({"prompt":"hi","stream":true})", {{"X-Request-Id", "abc"}}));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(count(got.body, "[DONE]"), 1u);
  EXPECT_EQ(http::header(got.headers, "X-Isthmus-Decode"), "d2");
  EXPECT_EQ(fake("p1").superseded, 1u);
  EXPECT_EQ(fake("p1").seen.size(), 1u) << "nothing is prefilled twice";
  EXPECT_THAT(fake("d1").seen.at(0).body, HasSubstr("p1-ticket"));
  EXPECT_THAT(fake("d2").seen.at(0).body, HasSubstr("p1-another"));
  EXPECT_TRUE(fake("p1").cancelled.empty());
}

TEST_F(RouterTest, StartsAnewAtAnotherDecoderWhenTheStateIsThereNoMore) {
  start("p1:prefill d1:decode d2:decode");
  fake("p1").keeps_states = false;
  fake("d1").script({FakeWorker::error(503, "unavailable", "draining")});
  const Got got = ask(post(R"({"prompt":"hi","stream":true})", {{"X-Request-Id", "abc"}}));
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(count(got.body, "[DONE]"), 1u);
  EXPECT_EQ(http::header(got.headers, "X-Isthmus-Decode"), "d2");
  EXPECT_EQ(http::header(fake("d2").seen.at(0).headers, "X-Request-Id"), "abc.2");
  wait([&] { return !fake("p1").cancelled.empty(); });
  EXPECT_THAT(fake("p1").cancelled, ElementsAre("abc"))
      << "the first leg's state is let go, not the second's";
}

TEST_F(RouterTest, AnswersUnavailableWhenTheOnlyDecoderFailsBeforeTheFirstToken) {
  start("p1:prefill d1:decode");
  fake("d1").script({[](const std::shared_ptr<http::Exchange>& exchange) {
    exchange->begin({200, {{"Content-Type", "text/event-stream"}}, ""});
    exchange->end();
  }});
  const Got got = ask(post(R"({"prompt":"hi","stream":true})"));
  EXPECT_EQ(got.status, 503);
  EXPECT_THAT(got.body, HasSubstr("its stream ended before the first token"));
  EXPECT_NE(http::header(got.headers, "Retry-After"), "");
  expect_idle();
}

TEST_F(RouterTest, PutsAnErrorEventIntoTheStreamWhenTheDecoderDiesLater) {
  start("p1:prefill d1:decode");
  fake("d1").script({fake("d1").stream_and_hold({"data: {\"choices\":[]}\n\n"})});
  Got got;
  const auto call = send(got, post(R"({"prompt":"hi","stream":true})"));
  wait([&] { return !got.body.empty(); });
  fake("d1").die();
  wait([&] { return got.done.has_value(); });
  EXPECT_TRUE(got.done->ok());
  EXPECT_EQ(got.status, 200);
  EXPECT_THAT(got.body, HasSubstr("data: {\"error\":{"));
  EXPECT_TRUE(got.body.ends_with("data: [DONE]\n\n"));
  EXPECT_THAT(get("/metrics").body, HasSubstr("isthmus_router_requests_total{code=\"unavailable\"} 1"));
}

TEST_F(RouterTest, TellsThePrefillerWhenTheClientLeavesDuringAdmission) {
  start("p1:prefill d1:decode");
  fake("p1").script({fake("p1").hold()});
  Got got;
  auto call = send(got, post(R"({"prompt":"hi"})", {{"X-Request-Id", "abc"}}));
  wait([&] { return !fake("p1").held.empty(); });
  call.reset();
  wait([&] { return !fake("p1").cancelled.empty() && fake("p1").disconnects == 1; });
  EXPECT_THAT(fake("p1").cancelled, ElementsAre("abc"));
  expect_idle();
  EXPECT_EQ(router_->ledger().cancelled, 1u);
}

TEST_F(RouterTest, TellsBothWorkersWhenTheClientLeavesBeforeTheFirstToken) {
  start("p1:prefill d1:decode");
  fake("d1").script({fake("d1").hold()});
  Got got;
  auto call = send(got, post(R"({"prompt":"hi"})", {{"X-Request-Id", "abc"}}));
  wait([&] { return !fake("d1").held.empty(); });
  call.reset();
  wait([&] { return !fake("p1").cancelled.empty() && fake("d1").disconnects == 1; });
  expect_idle();
}

TEST_F(RouterTest, ClosesTheDecodersStreamWhenTheClientLeaves) {
  start("p1:prefill d1:decode");
  fake("d1").script({fake("d1").stream_and_hold({"data: {}\n\n"})});
  Got got;
  auto call = send(got, post(R"({"prompt":"hi","stream":true})"));
  wait([&] { return !got.body.empty(); });
  call.reset();
  wait([&] { return fake("d1").disconnects == 1; });
  EXPECT_TRUE(fake("p1").cancelled.empty()) << "the state has been handed over";
  expect_idle();
}

TEST_F(RouterTest, RefusesBadInputBeforeAnyWorkerSeesIt) {
  start("p1:prefill d1:decode");
  const auto refused = [&](std::string body) {
    const Got got = ask(post(std::move(body)));
    EXPECT_THAT(got.body, HasSubstr("\"error\""));
    return fmt::format("{} {}", got.status, got.body);
  };
  EXPECT_THAT(refused("{\"prompt\":"), AllOf(HasSubstr("400 "), HasSubstr("at byte 10")));
  EXPECT_THAT(refused(""), HasSubstr("400 "));
  EXPECT_THAT(refused("[1]"), HasSubstr("400 "));
  EXPECT_THAT(refused(R"({"model":7})"), AllOf(HasSubstr("400 "), HasSubstr("'model' must be a string")));
  EXPECT_THAT(refused(R"({"model":"x"})"), AllOf(HasSubstr("404 "), HasSubstr("no model 'x'")));
  std::string large;
  large.resize(10'000'000, 'x');
  EXPECT_THAT(refused(R"({"prompt":")" + large + "\"}"), HasSubstr("413 "));
  EXPECT_EQ(get("/v1/completions").status, 405);
  EXPECT_EQ(get("/nothing").status, 404);
  EXPECT_TRUE(fake("p1").seen.empty());
  EXPECT_TRUE(fake("d1").seen.empty());
}

TEST_F(RouterTest, IsReadyOnlyWhileADecoderIsAndShowsTheReason) {
  start("p1:prefill d1:decode");
  EXPECT_EQ(get("/ready").status, 200);
  fake("d1").not_ready = "probe failed: rope base";
  wait([&] { return !router_->ready().ok(); });
  const Got ready = get("/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("d1: probe failed: rope base"));
  const Got got = ask(post(R"({"prompt":"hi"})"));
  EXPECT_EQ(got.status, 503);
  EXPECT_NE(http::header(got.headers, "Retry-After"), "");
  EXPECT_THAT(worker_page(), HasSubstr("\"reason\":\"probe failed: rope base\""));
  fake("d1").not_ready.clear();
  wait([&] { return router_->ready().ok(); });
  EXPECT_EQ(ask(post(R"({"prompt":"hi"})")).status, 200);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(RouterTest, BoundsItsQueueWithRetryAfter) {
  options_.core.worker_requests_max = 1;
  options_.core.queue_max = 1;
  start("p1:prefill d1:decode");
  fake("d1").script({fake("d1").hold(), FakeWorker::text("{}")});
  Got first, second;
  const auto first_call = send(first, post(R"({"prompt":"1"})"));
  wait([&] { return !fake("d1").held.empty(); });
  const auto second_call = send(second, post(R"({"prompt":"2"})"));
  wait([&] { return router_->ledger().queued == 1; });
  const Got third = ask(post(R"({"prompt":"3"})"));
  EXPECT_EQ(third.status, 429);
  EXPECT_NE(http::header(third.headers, "Retry-After"), "");
  FakeWorker::text("{}")(fake("d1").held[0]);
  wait([&] { return second.done.has_value(); });
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(second.status, 200);
}

TEST_F(RouterTest, ServesManyClientsAtOnceAndReturnsToIdle) {
  start("p1:prefill p2:prefill d1:decode d2:decode");
  constexpr std::size_t kClients = 100;
  std::vector<Got> got(kClients);
  std::vector<std::unique_ptr<http::Call>> calls;
  for (std::size_t i = 0; i < kClients; ++i) {
    calls.push_back(send(got[i], post(fmt::format(R"({{"prompt":"{}","stream":{}}})", i, i % 2 == 0))));
  }
  wait([&] { return std::ranges::all_of(got, [](const Got& g) { return g.done.has_value(); }); });
  for (const Got& g : got) {
    EXPECT_EQ(g.status, 200);
    EXPECT_THAT(g.body, AllOf(HasSubstr("Hello"), HasSubstr("world")));
  }
  EXPECT_EQ(router_->ledger().finished, kClients);
  EXPECT_EQ(fake("p1").seen.size() + fake("p2").seen.size(), kClients);
  EXPECT_GT(fake("d2").seen.size(), kClients / 4);
  expect_idle();
}

TEST_F(RouterTest, ListsModelsAndMetrics) {
  start("p1:prefill d1:decode");
  ask(post(R"({"prompt":"hi"})"));
  EXPECT_THAT(get("/v1/models").body, HasSubstr("\"id\":\"m\""));
  const std::string metrics = get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("isthmus_router_requests_total{code=\"ok\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("isthmus_ttft_seconds_count 1"));
  EXPECT_THAT(metrics, HasSubstr("isthmus_router_worker_ready{role=\"decode\",worker=\"d1\"} 1"));
}

TEST(RouterStart, RefusesAFleetWithoutWorkers) {
  net::Loop loop;
  MetricsRegistry metrics;
  RouterOptions options;
  options.fleet = core::test_fleet("");
  EXPECT_EQ(Router::start(loop, std::move(options), metrics).code(), Code::kInvalidArgument);
}

TEST_F(RouterTest, ASlowClientSlowsItsWorkerAndLosesNothing) {
  constexpr std::size_t kPiece = std::size_t{64} << 10;
  constexpr std::size_t kTotal = std::size_t{24} << 20;  // Far more than sockets hold.
  start("p1:prefill d1:decode");
  std::size_t sent = 0;
  std::function<void(std::shared_ptr<http::Exchange>)> flood =
      [&](const std::shared_ptr<http::Exchange>& exchange) {
        while (sent < kTotal && exchange->buffered() < 4 * kPiece) {
          exchange->write(std::string(kPiece, 'x'));
          sent += kPiece;
        }
        if (sent == kTotal) return exchange->end();
        exchange->on_drained(kPiece, [&, exchange] { flood(exchange); });
      };
  fake("d1").script({[&](const std::shared_ptr<http::Exchange>& exchange) {
    exchange->begin({200, {{"Content-Type", "text/event-stream"}}, ""});
    flood(exchange);
  }});
  std::size_t received = 0;
  std::optional<Status> done;
  std::unique_ptr<http::Call> call;
  call = client_->call(router_->endpoint(), post(R"({"prompt":"hi","stream":true})"),
                       {.on_piece =
                            [&](std::string_view piece) {
                              if (received == 0) call->rest();
                              received += piece.size();
                            },
                        .on_done = [&](Status status) { done = std::move(status); }});
  wait([&] { return received > 0; });
  for (int i = 0; i < 200; ++i) EXPECT_EQ(get("/health").status, 200);
  EXPECT_LT(sent, kTotal) << "the worker's sends stall";
  EXPECT_EQ(fake("d1").disconnects, 0u);
  call->go_on();
  wait([&] { return done.has_value(); });
  EXPECT_TRUE(done->ok()) << done->error().text();
  EXPECT_EQ(received, kTotal);
  expect_idle();
}

TEST_F(RouterTest, AnAnswerWithoutEndIsCutAtTheBound) {
  start("p1:prefill d1:decode");
  fake("d1").script({FakeWorker::text(std::string(17 << 20, 'x'))});
  const Got got = ask(post(R"({"prompt":"hi"})"));
  EXPECT_EQ(got.status, 503) << got.body.substr(0, 200);
  EXPECT_THAT(got.body, HasSubstr("its answer is longer than"));
  expect_idle();
}

}  // namespace
}  // namespace isthmus::router::shell
