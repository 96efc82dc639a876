// SPDX-License-Identifier: Apache-2.0
// Handoffs that are broken off, wherever: each ends well, and everything it held comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "faults/duo.h"
#include "support/tcp_relay.h"

namespace isthmus::faults {
namespace {

using support::Direction;
using support::Passage;
using support::RelayedFrame;
using support::TcpRelay;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using transport::FrameType;

constexpr std::size_t kTokens = 8;

void hurry(Node& p, Node& d) {
  p.timings = hasty();
  d.timings = hasty();
}

json::Value through(const TcpRelay& relay, json::Value transfer) {
  transfer.set("isthmus_endpoints", json::array({relay.endpoint().text()}));
  return transfer;
}

double placed(Duo& duo) {
  return Duo::count(duo.d(), "isthmus_handoff_bytes_total", {"side=\"consumer\""});
}

void expect_serves(Duo& duo, unsigned seed = 77) {
  const std::string prompt = prompt_of(300, seed);
  const Answer answer = duo.hand_over(prompt, kTokens);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("handoff"));
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

// --- Deaths.

TEST(Ends, AProducerThatDiesWhileChunksMoveLeavesARecomputedAnswer) {
  for (const bool fail : {false, true}) {
    Duo duo;
    const std::string prompt = prompt_of(700);
    duo.p().gate.hold_after(1);
    const auto asking = duo.ask_decode(prompt, duo.prefill(prompt), kTokens, {.fail = fail});
    ASSERT_TRUE(duo.until([&] { return placed(duo) > 0; }));
    duo.stop(duo.p());
    const Answer& answer = duo.finish(*asking);
    if (fail) {
      EXPECT_THAT(answer.error(), StartsWith("unavailable: ")) << answer.body;
    } else {
      EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
      EXPECT_THAT(answer.route(), StartsWith("recompute"));
    }
    EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.d());
    duo.start(duo.p());
    expect_serves(duo);
  }
}

TEST(Ends, AConsumerThatDiesWhileReceivingFreesTheProducersPinsWithinTheLease) {
  Duo duo("llamacpp:f16", "openvino:f32", hurry);
  const std::string prompt = prompt_of(700);
  duo.p().gate.hold_after(1);
  const auto asking = duo.ask_decode(prompt, duo.prefill(prompt), kTokens);
  ASSERT_TRUE(duo.until([&] { return placed(duo) > 0; }));
  duo.stop(duo.d());
  EXPECT_FALSE(duo.finish(*asking).is_whole());
  duo.p().gate.open();
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p());
  EXPECT_EQ(Duo::count(duo.p(), "isthmus_requests_total", {"not_handed_over"}), 1);
  // Leases are too short for a loaded machine to promise a handoff; the answer is right either way.
  duo.start(duo.d());
  EXPECT_EQ(duo.hand_over(prompt, kTokens).text(), support::fake_answer(prompt, kTokens));
  EXPECT_TRUE(duo.settled());
}

TEST(Ends, AConsumerThatDiesWhileDecodingHoldsNothingAtTheProducer) {
  Duo duo;
  const std::string prompt = prompt_of(300);
  duo.d().gate.hold_after(2);
  const auto asking = duo.ask_decode(prompt, duo.prefill(prompt), kTokens, {.stream = true});
  ASSERT_TRUE(duo.until([&] { return !asking->answer.text().empty(); }));
  duo.stop(duo.d());
  EXPECT_FALSE(duo.finish(*asking).is_whole());
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p());
  duo.start(duo.d());
  expect_serves(duo);
}

// --- Requests that wait for room.

TEST(Ends, AWaitingRequestStartsWhenAllThatRanEndInOneStep) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node&, Node& d) { d.engine.sequences_max = 1; });
  duo.d().gate.hold_after(1);
  const std::string body = completion_body(prompt_of(40), kTokens).dump();
  const auto first = duo.post(duo.d().http, "/v1/completions", body);
  ASSERT_TRUE(duo.until([&] { return duo.d().worker->engine().stats().jobs_running == 1; }));
  const auto second = duo.post(duo.d().http, "/v1/completions", body);
  ASSERT_TRUE(duo.until([&] { return duo.d().worker->agent().ledger().live() == 2; }));
  duo.d().gate.open();
  EXPECT_TRUE(duo.finish(*first).is_whole());
  EXPECT_TRUE(duo.finish(*second).is_whole());
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.d());
}

TEST(Ends, WhoWaitsForAPromptThatRunsHoldsUpNobodyElse) {
  const std::string prompt = prompt_of(700), other = prompt_of(40, 1);
  std::vector<std::string> begun;  // Chunks of prompts, in the order that the engine ran them.
  Duo duo("llamacpp:f16", "openvino:f32", [&](Node&, Node& d) {
    d.tap.keeps_prefixes = true;
    d.tap.before_step = [&](std::span<const engine::StepItem> items) {
      for (const engine::StepItem& item : items) {
        if (item.tokens.size() < 2) continue;
        const std::string text(item.tokens.begin(), item.tokens.end());
        begun.push_back(prompt.starts_with(text) ? "prompt" : other.starts_with(text) ? "other" : "more");
      }
      return ok_status();
    };
  });
  duo.d().gate.hold_after(1);
  std::vector<std::unique_ptr<Asking>> askings;
  for (const std::string& text : {prompt, prompt, other}) {
    askings.push_back(duo.post(duo.d().http, "/v1/completions", completion_body(text, kTokens).dump()));
    ASSERT_TRUE(duo.until([&] { return duo.d().worker->agent().ledger().live() == askings.size(); }));
    ASSERT_TRUE(duo.until([&] { return duo.d().gate.begun() == 2; }));
  }
  duo.d().gate.open();
  for (const auto& asking : askings) EXPECT_TRUE(duo.finish(*asking).is_whole());
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.d());
  // The second begins when the first has computed what they share.
  const std::vector<std::string> expected{"prompt", "more", "more", "other", "prompt", "more", "more"};
  EXPECT_EQ(begun, expected);
}

// --- Clients that leave.

TEST(Ends, AClientThatLeavesBeforeTheOpenIsAnsweredLeavesNothing) {
  Duo duo;
  for (const std::uint64_t passed :
       {0, 1, 2, 3}) {  // Frames of P that still get through: HELLO, proof, DATA_HELLO.
    std::uint64_t seen = 0;
    TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
    relay.set_judge([&](RelayedFrame& frame) {
      if (frame.direction == Direction::kToTarget) return Passage::kForward;
      return seen++ < passed ? Passage::kForward : Passage::kHold;
    });
    const std::string prompt = prompt_of(300);
    auto asking = duo.ask_decode(prompt, through(relay, duo.prefill(prompt, "id")), kTokens);
    ASSERT_TRUE(duo.until([&] { return relay.held() > 0; }));
    asking = nullptr;
    ASSERT_TRUE(duo.until(
        [&] { return Duo::count(duo.d(), "isthmus_requests_total", {"disconnected"}) == passed + 1.0; }));
    duo.cancel("id");
    relay.release();
    EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  }
  expect_serves(duo);
}

TEST(Ends, AClientThatLeavesWhileItsStateIsReceivedEndsThePrefillToo) {
  Duo duo;
  const std::string prompt = prompt_of(1500);
  duo.p().gate.hold_after(1);
  auto asking = duo.ask_decode(prompt, duo.prefill(prompt), kTokens);
  ASSERT_TRUE(duo.until([&] { return placed(duo) > 0; }));
  asking = nullptr;
  ASSERT_TRUE(
      duo.until([&] { return Duo::count(duo.p(), "isthmus_requests_total", {"not_handed_over"}) == 1; }));
  duo.p().gate.open();
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  EXPECT_LE(duo.p().worker->engine().stats().prompt_tokens_computed, 512U)
      << "the rest of the prompt was computed for nobody";
  expect_serves(duo);
}

TEST(Ends, AClientThatLeavesWhileItsAnswerIsDecodedEndsTheDecoding) {
  Duo duo;
  const std::string prompt = prompt_of(300);
  duo.d().gate.hold_after(2);
  auto asking = duo.ask_decode(prompt, duo.prefill(prompt), 1000, {.stream = true});
  ASSERT_TRUE(duo.until([&] { return asking->answer.text().size() >= 2; }));
  asking = nullptr;
  ASSERT_TRUE(
      duo.until([&] { return Duo::count(duo.d(), "isthmus_requests_total", {"disconnected"}) == 1; }));
  duo.d().gate.open();
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.d());
  EXPECT_LE(duo.d().worker->engine().stats().tokens_generated, 4U);
  expect_serves(duo);
}

TEST(Ends, APrefillThatItsRouterCancelsIsOverAtBothEnds) {
  Duo duo;
  const std::string prompt = prompt_of(1500);
  duo.p().gate.hold_after(1);
  const json::Value transfer = duo.prefill(prompt, "unwanted");
  const auto asking = duo.ask_decode(prompt, transfer, kTokens, {.fail = true});
  ASSERT_TRUE(duo.until([&] { return placed(duo) > 0; }));
  duo.cancel("unwanted");
  EXPECT_THAT(duo.finish(*asking).error(), StartsWith("cancelled: "));
  duo.p().gate.open();
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  const auto late = duo.ask_decode(prompt, transfer, kTokens);
  EXPECT_EQ(duo.finish(*late).text(), support::fake_answer(prompt, kTokens));
  EXPECT_TRUE(duo.settled());
}

// --- Full pools.

TEST(Ends, ADecoderWithoutRoomSays429AndTakesTheNextOnceThereIs) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node&, Node& d) {
    d.engine.kv_tokens = 512;
    d.timings.capacity_max = std::chrono::milliseconds(100);
  });
  const std::string first = prompt_of(300, 1), second = prompt_of(300, 2);
  duo.d().gate.hold_after(1);
  const auto holder = duo.ask_decode(first, duo.prefill(first), kTokens, {.stream = true});
  ASSERT_TRUE(duo.until([&] { return !holder->answer.text().empty(); }));
  const auto refused = duo.ask_decode(second, duo.prefill(second, "second"), kTokens);
  const Answer& answer = duo.finish(*refused);
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_EQ(http::header(answer.headers, "Retry-After"), "5");  // The holder may take longer.
  EXPECT_THAT(answer.error(), StartsWith("exhausted: "));
  EXPECT_THAT(answer.body, HasSubstr("rate_limit_error"));
  duo.cancel("second");
  duo.d().gate.open();
  EXPECT_EQ(duo.finish(*holder).text(), support::fake_answer(first, kTokens));
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  expect_serves(duo);
}

TEST(Ends, APrefillerWithoutRoomSays429AndTakesTheNextOnceThereIs) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) { p.engine.kv_tokens = 512; });
  const std::string prompt = prompt_of(300);
  const json::Value kept = duo.prefill(prompt, "holder");
  const auto refused = duo.ask_prefill(prompt_of(300, 2), "refused");
  const Answer& answer = duo.finish(*refused);
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_EQ(http::header(answer.headers, "Retry-After"), "5");  // The holder's lease may take longer.
  EXPECT_THAT(answer.error(), StartsWith("exhausted: "));
  duo.cancel("holder");
  EXPECT_TRUE(duo.settled());
  expect_serves(duo);
}

TEST(Ends, AWorkerFullOfRequestsSays429AndLeaksNothing) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node& d) {
    p.limits.jobs_max = 1;
    d.limits.jobs_max = 1;
  });
  const std::string prompt = prompt_of(300);
  duo.prefill(prompt, "holder");
  const auto refused = duo.ask_prefill(prompt_of(300, 2), "refused");
  EXPECT_EQ(duo.finish(*refused).status, 429);
  duo.cancel("holder");
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p());

  duo.d().gate.hold_after(3);  // Two tiles and a token.
  const auto holder =
      duo.post(duo.d().http, "/v1/completions", completion_body(prompt, kTokens, true).dump());
  ASSERT_TRUE(duo.until([&] { return !holder->answer.text().empty(); }));
  const auto second = duo.post(duo.d().http, "/v1/completions", completion_body(prompt, kTokens).dump());
  EXPECT_EQ(duo.finish(*second).status, 429);
  duo.d().gate.open();
  EXPECT_TRUE(duo.finish(*holder).is_whole());
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.d());
  expect_serves(duo);
}

// --- Failing engines and links.

TEST(Ends, AStepThatFailsInThePrefillAbortsTheHandoffAndTheDecoderComputes) {
  std::atomic<int> steps = 0;
  Duo duo("llamacpp:f16", "openvino:f32", [&](Node& p, Node&) {
    p.tap.before_step = [&](auto) -> Status {
      if (++steps == 2 || steps == 4) return Error{Code::kInternal, "the accelerator fell off"};
      return ok_status();
    };
  });
  const std::string prompt = prompt_of(700);
  for (const bool fail : {true, false}) {
    duo.p().gate.hold_after(1);
    const auto asking = duo.ask_decode(prompt, duo.prefill(prompt), kTokens, {.fail = fail});
    const double before = placed(duo);
    ASSERT_TRUE(duo.until([&] { return placed(duo) > before; }));
    duo.p().gate.open();
    const Answer& answer = duo.finish(*asking);
    if (fail) {
      EXPECT_THAT(answer.error(), HasSubstr("the accelerator fell off")) << answer.body;
    } else {
      EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
      EXPECT_THAT(answer.route(), StartsWith("recompute"));
    }
    EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  }
  expect_serves(duo);
}

TEST(Ends, AStepThatFailsWhileDecodingIsATypedErrorInTheStream) {
  std::atomic<int> steps = 0;
  Duo duo("llamacpp:f16", "openvino:f32", [&](Node&, Node& d) {
    d.tap.before_step = [&](auto) -> Status {
      if (++steps == 3) return Error{Code::kInternal, "the accelerator fell off"};
      return ok_status();
    };
  });
  const std::string prompt = prompt_of(300);
  const Answer answer = duo.hand_over(prompt, kTokens, {.stream = true});
  EXPECT_FALSE(answer.is_whole());
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, 3));
  EXPECT_EQ(answer.error(), "internal: the accelerator fell off");
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.d());
  expect_serves(duo);
}

TEST(Ends, ALinkThatBreaksAnywhereEndsInTheRightAnswer) {
  for (const Passage passage : {Passage::kCut, Passage::kCutWithin}) {
    for (const FrameType type : {FrameType::kControl, FrameType::kData, FrameType::kFence}) {
      for (const std::uint64_t index : {0, 1, 3}) {
        SCOPED_TRACE(testing::Message() << "frame " << index << " of type " << static_cast<int>(type));
        Duo duo;
        TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
        relay.set_judge([&](RelayedFrame& frame) {
          return frame.direction == Direction::kFromTarget && frame.type == type && frame.index == index
                     ? passage
                     : Passage::kForward;
        });
        const std::string prompt = prompt_of(600);
        const auto asking = duo.ask_decode(prompt, through(relay, duo.prefill(prompt, "id")), kTokens);
        const Answer& answer = duo.finish(*asking);
        EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
        duo.cancel("id");
        EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
      }
    }
  }
}

// Connections break one after the other: what is dialed on a session that is dying fails with it, and that
// isn't the producer's end.
TEST(Ends, ASessionThatBreaksWhileItGetsAnotherChannelIsMadeAnew) {
  Duo duo;
  TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
  bool is_cut = false, is_broken = false;
  relay.set_judge([&](RelayedFrame& frame) {
    if (frame.type == FrameType::kData && !std::exchange(is_cut, true)) return Passage::kCut;
    if (frame.connection != 2 || std::exchange(is_broken, true)) return Passage::kForward;
    duo.loop().post([&] { relay.cut(); });
    return Passage::kHold;
  });
  const std::string prompt = prompt_of(600);
  const auto asking = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  const Answer& answer = duo.finish(*asking);
  EXPECT_TRUE(is_broken);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("handoff")) << answer.body;
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

TEST(Ends, ALinkThatBreaksBeforeSealIsMadeAnewAndWhatHasComeStays) {
  Duo duo;
  TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
  std::uint64_t chunks = 0, cut_at = ~std::uint64_t{0};
  relay.set_judge([&](RelayedFrame& frame) {
    if (frame.direction != Direction::kFromTarget || frame.type != FrameType::kData) return Passage::kForward;
    return ++chunks == cut_at ? Passage::kCut : Passage::kForward;
  });
  const std::string prompt = prompt_of(2000);
  const auto whole = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  EXPECT_THAT(duo.finish(*whole).route(), StartsWith("handoff"));
  const std::uint64_t of_one = std::exchange(chunks, 0);
  ASSERT_GE(of_one, 6u);
  cut_at = of_one - 1;
  duo.p().gate.hold_after(1);  // So that chunks come one after the other, and are placed.
  const auto asking = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  ASSERT_TRUE(duo.until([&] { return placed(duo) > 0; }));
  duo.p().gate.open();
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("handoff")) << answer.body;
  EXPECT_GT(chunks, of_one);           // The chunk that was lost, at least.
  EXPECT_LT(chunks, cut_at + of_one);  // Not all of them again.
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

TEST(Ends, ABlackHoleBetweenThemEndsByLeaseAndTheDecoderComputes) {
  Duo duo("llamacpp:f16", "openvino:f32", hurry);
  TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
  const std::string prompt = prompt_of(700);
  duo.p().gate.hold_after(1);
  const auto asking = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  ASSERT_TRUE(duo.until([&] { return placed(duo) > 0; }));
  relay.stall();
  duo.p().gate.open();
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("recompute"));
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());

  // While it lasts each handoff ends by its own timeout; what comes out of the hole later harms nobody.
  const auto during = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  EXPECT_EQ(duo.finish(*during).text(), support::fake_answer(prompt, kTokens));
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  relay.release();
  const auto after = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  EXPECT_EQ(duo.finish(*after).text(), support::fake_answer(prompt, kTokens));
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

TEST(Ends, ASilentSessionIsGivenUpAndTheNextHandoffDialsAgain) {
  Duo duo("llamacpp:f16", "openvino:f32", hurry);
  TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
  const std::string prompt = prompt_of(300);
  const auto before = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  EXPECT_THAT(duo.finish(*before).route(), StartsWith("handoff"));
  // The connections that there are swallow everything from now on, and nobody is told.
  relay.set_judge(
      [](RelayedFrame& frame) { return frame.connection < 2 ? Passage::kHold : Passage::kForward; });
  const auto lost = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  EXPECT_EQ(duo.finish(*lost).text(), support::fake_answer(prompt, kTokens));
  EXPECT_THAT(lost->answer.route(), StartsWith("recompute"));
  const auto after = duo.ask_decode(prompt, through(relay, duo.prefill(prompt)), kTokens);
  EXPECT_EQ(duo.finish(*after).text(), support::fake_answer(prompt, kTokens));
  EXPECT_THAT(after->answer.route(), StartsWith("handoff"));
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

TEST(Ends, APeerThatNeverAnswersItsHandshakeEndsInRecompute) {
  Duo duo;
  TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
  relay.stall();
  const std::string prompt = prompt_of(300);
  const auto asking = duo.ask_decode(prompt, through(relay, duo.prefill(prompt, "id")), kTokens);
  const Answer& answer = duo.finish(*asking);
  EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens)) << answer.body;
  EXPECT_THAT(answer.route(), StartsWith("recompute"));
  duo.cancel("id");
  EXPECT_TRUE(duo.settled());
}

TEST(Ends, ARequestWhoseTimeIsOverEndsInATimeoutAtBothEnds) {
  Duo duo("llamacpp:f16", "openvino:f32",
          [](Node&, Node& d) { d.request_timeout = std::chrono::milliseconds(300); });
  const std::string prompt = prompt_of(700);
  duo.p().gate.hold_after(1);
  const auto asking = duo.ask_decode(prompt, duo.prefill(prompt, "id"), kTokens);
  const Answer& answer = duo.finish(*asking);
  EXPECT_THAT(answer.error(), StartsWith("deadline_exceeded: ")) << answer.body;
  EXPECT_EQ(answer.status, 504);
  duo.p().gate.open();
  duo.cancel("id");
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

}  // namespace
}  // namespace isthmus::faults
