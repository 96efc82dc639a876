// SPDX-License-Identifier: Apache-2.0
// States of which the decoder has the beginning already: the rest crosses, whatever befalls it, and where
// anything is in doubt all of it does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "faults/duo.h"
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

constexpr std::size_t kTokens = 12;
constexpr const char* kDecoder = "openvino:u8";

void repeat(Node& p, Node& d) {
  p.engine.repeats_states = true;
  d.engine.keeps_arrived = true;
}

// What crossed, and what was here, of one request.
struct Crossed {
  double bytes = 0, known = 0;
};

class KnownStates : public ::testing::Test {
 protected:
  explicit KnownStates(const std::function<void(Node&, Node&)>& prepare = repeat)
      : duo("llamacpp:f16", kDecoder, prepare) {}

  double bytes() const { return Duo::count(duo.d(), "isthmus_handoff_bytes_total", {"side=\"consumer\""}); }
  // The counter stands in what a client of /metrics gets.
  double known() {
    const auto asking =
        duo.send(duo.d().http, {.method = "GET", .path = "/metrics", .query = {}, .headers = {}, .body = {}});
    (void)duo.finish(*asking);
    return Duo::count(duo.d(), "isthmus_handoff_prefix_hit_tokens_total");
  }
  void expect_right(const Answer& answer, const std::string& prompt) {
    EXPECT_TRUE(answer.is_whole()) << answer.status << " " << answer.body;
    EXPECT_EQ(answer.text(), support::fake_answer(prompt, kTokens));
    EXPECT_THAT(answer.route(), StartsWith("handoff")) << answer.body;
    EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  }
  Crossed cross(const std::string& prompt) {
    const Crossed before{bytes(), known()};
    const Answer answer = duo.hand_over(prompt, kTokens);
    expect_right(answer, prompt);
    const Crossed one{bytes() - before.bytes, known() - before.known};
    const auto cached = static_cast<int>(one.known);
    EXPECT_THAT(answer.body, HasSubstr("\"cached_tokens\":" + std::to_string(cached)));
    return one;
  }

  mutable Duo duo;
  const std::string base = prompt_of(600);
};

TEST_F(KnownStates, OnlyTheRestCrosses) {
  const Crossed first = cross(base);
  EXPECT_EQ(first.known, 0);
  const Crossed again = cross(base);
  EXPECT_EQ(again.known, 576) << "whole blocks, two tokens less than all at the most";
  EXPECT_GT(again.bytes, 0);
  EXPECT_LT(again.bytes, first.bytes / 10);
  const Crossed longer = cross(base + prompt_of(100, 1));
  EXPECT_EQ(longer.known, 576);
  EXPECT_LT(longer.bytes, first.bytes / 4);
  EXPECT_EQ(cross(base.substr(0, 300) + prompt_of(100, 2)).known, 288);
  EXPECT_EQ(cross(prompt_of(600, 3)).known, 0);
  EXPECT_EQ(cross(base + prompt_of(100, 1)).known, 672);
}

TEST_F(KnownStates, AnotherLifeOfTheProducerIsAnotherOrigin) {
  cross(base);
  EXPECT_EQ(cross(base).known, 576);
  duo.stop(duo.p());
  duo.start(duo.p());
  EXPECT_EQ(cross(base).known, 0);
  EXPECT_EQ(cross(base).known, 576);
}

TEST_F(KnownStates, ALinkThatBreaksUnderTheRestIsMadeAnew) {
  cross(base);
  TcpRelay relay(duo.loop(), *net::Endpoint::parse(duo.p().agent));
  std::uint64_t chunks = 0;
  bool is_cut = false;
  relay.set_judge([&](RelayedFrame& frame) {
    if (frame.direction != Direction::kFromTarget || frame.type != FrameType::kData) return Passage::kForward;
    return ++chunks == 3 && !std::exchange(is_cut, true) ? Passage::kCut : Passage::kForward;
  });
  const std::string prompt = base + prompt_of(1400, 4);
  const Crossed before{bytes(), known()};
  duo.p().gate.hold_after(4);
  json::Value transfer = duo.prefill(prompt);
  transfer.set("isthmus_endpoints", json::array({relay.endpoint().text()}));
  const auto asking = duo.ask_decode(prompt, transfer, kTokens);
  ASSERT_TRUE(duo.until([&] { return bytes() > before.bytes; }));
  duo.p().gate.open();
  expect_right(duo.finish(*asking), prompt);
  EXPECT_TRUE(is_cut);
  EXPECT_EQ(known() - before.known, 576);
}

// What is here keeps its place, and there is none beside it: all is asked for, and waits like any other.
TEST_F(KnownStates, WithoutRoomForTheRestItBeginsAgainAndWaits) {
  const Crossed first = cross(base);
  handoff::Agent& agent = duo.d().worker->agent();
  for (const std::uint64_t left : {600, 300}) {  // Tokens' room: for what is here alone, or not even that.
    const handoff::Ledger& ledger = agent.ledger();
    const handoff::Amount all = ledger.capacity().kv;
    const std::uint64_t blocks = all.blocks - left / 32;
    const handoff::GrantId other = *agent.take_memory({all.bytes / all.blocks * blocks, blocks}, kFarFuture);
    const Crossed before{bytes(), known()};
    const auto asking = duo.ask_decode(base, duo.prefill(base), kTokens);
    ASSERT_TRUE(duo.until([&] {
      const auto fetches = agent.snapshot(9).handoffs;
      return !fetches.empty() && fetches.front().state == "reserving";
    }));
    EXPECT_EQ(ledger.held(handoff::Category::kRetained).bytes, 0u);
    agent.free_memory(other);
    expect_right(duo.finish(*asking), base);
    EXPECT_EQ(known() - before.known, 0);
    EXPECT_EQ(bytes() - before.bytes, first.bytes);
  }
  EXPECT_EQ(cross(base).known, 576);
}

TEST_F(KnownStates, AClientThatLeavesGivesBackWhatWasHeld) {
  cross(base);
  duo.p().gate.hold_after(0);
  {
    const auto asking =
        duo.ask_decode(base + prompt_of(100, 5), duo.prefill(base + prompt_of(100, 5)), kTokens);
    const handoff::Ledger& ledger = duo.d().worker->agent().ledger();
    ASSERT_TRUE(duo.until([&] { return ledger.held(handoff::Category::kRetained).blocks == 18; }));
  }
  duo.p().gate.open();
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
  EXPECT_EQ(cross(base).known, 576);
}

class OfOneThatDoesNotRepeat : public KnownStates {
 protected:
  OfOneThatDoesNotRepeat() : KnownStates([](Node&, Node& d) { d.engine.keeps_arrived = true; }) {}
};

TEST_F(OfOneThatDoesNotRepeat, NothingIsKept) {
  const Crossed first = cross(base), again = cross(base);
  EXPECT_EQ(first.known + again.known, 0);
  EXPECT_EQ(first.bytes, again.bytes);
}

}  // namespace
}  // namespace isthmus::faults
