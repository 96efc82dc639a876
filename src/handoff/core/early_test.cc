// SPDX-License-Identifier: Apache-2.0
// Chunks that come before CREDIT: both cores, face to face.
#include <gtest/gtest.h>

#include "handoff/core/both_cores_test.h"
#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using namespace sim;
using std::chrono::milliseconds;
using std::chrono::seconds;

const ChannelId kFirst{TestCores::kSession, 1}, kSecond{TestCores::kSession, 2};

class Early : public ::testing::Test, public TestCores {
 protected:
  Early() : TestCores({.at_producer = 0, .at_consumer = 4 * 4800, .early_bytes = 600 * 8}, 2) {}

  // PLAN and what goes right behind it.
  ProducerActions answer(const wire::Open& frame) {
    EXPECT_EQ(all<MakePlan>(to_p(frame)).size(), 1u);
    return at_p([&](auto& o) { p.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
  }
  wire::ChunkHeader header(const SendChunk& send) {
    return chunk_header(plan_facts({0, 600}), {send.chunk.handoff, send.chunk.attempt, send.chunk.generation},
                        send.chunk.index, send.slot);
  }
  Result<Judgement> judge(const SendChunk& send) {
    const wire::ChunkHeader chunk = header(send);
    return d.judge(send.channel, chunk, chunk.stored_bytes, now);
  }
  // It is here, in memory of its own.
  void keep(const SendChunk& send) {
    const auto judged = judge(send);
    ASSERT_TRUE(judged.ok()) << judged.error().text();
    EXPECT_TRUE(judged->early);
    EXPECT_FALSE(judged->place);
    EXPECT_TRUE(at_d([&](auto& o) { d.chunk_arrived(send.channel, now, o); }).empty());
  }
  void fence(ChannelId channel) {
    at_d([&](auto& o) { d.fence_seen(channel, wire::fence_token(handoff, 1), now, o); });
  }
  ConsumerActions plan_and_memory(const wire::Plan& plan) {
    to_d(plan);
    at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
    return at_d([&](auto& o) { d.capacity_ready(handoff, 1, now, o); });
  }
  // All packed and sent; what P says then.
  wire::Seal seal(const std::vector<SendChunk>& sends) {
    for (const SendChunk& send : sends) {
      at_p([&](auto& o) { p.chunk_packed(send.chunk, now, o); });
      at_p([&](auto& o) { p.chunk_sent(send.chunk, {}, now, o); });
    }
    const auto sealed = at_p([&](auto& o) { p.seal_ready(handoff, 1, 1, {1, 2}, now, o); });
    return frames<wire::Seal>(sealed).at(0);
  }
  ConsumerState state() { return d.state_of(handoff).value_or(ConsumerState::kClosed); }
};

TEST_F(Early, ASmallStateComesRightBehindThePlan) {
  const auto behind = answer(open());
  ASSERT_TRUE(frames<wire::Plan>(behind).at(0).early);
  const auto sends = all<SendChunk>(behind);
  ASSERT_EQ(sends.size(), 3u);
  const auto ready = plan_and_memory(frames<wire::Plan>(behind)[0]);
  EXPECT_TRUE(frames<wire::Credit>(ready).empty());
  ASSERT_EQ(all<TakeEarly>(ready).size(), 1u);
  for (const SendChunk& send : sends) {
    const auto judged = judge(send);
    ASSERT_TRUE(judged.ok()) << judged.error().text();
    EXPECT_TRUE(judged->place);
    EXPECT_EQ(judged->slot, send.chunk.index);
    const auto place = all<PlaceChunk>(at_d([&](auto& o) { d.chunk_arrived(send.channel, now, o); })).at(0);
    at_d([&](auto& o) { d.chunk_placed(place, {}, now, o); });
  }
  to_d(seal(sends));
  fence(kFirst);
  EXPECT_EQ(state(), ConsumerState::kReceiving);
  fence(kSecond);
  EXPECT_EQ(state(), ConsumerState::kVerifying);
}

// Chunks, fences and SEAL overtake everything that D has to do before there is memory.
TEST_F(Early, WhatComesBeforeMemoryWaitsForIt) {
  const auto behind = answer(open());
  const auto sends = all<SendChunk>(behind);
  for (const SendChunk& send : sends) keep(send);
  fence(kFirst);
  EXPECT_EQ(state(), ConsumerState::kOpening);
  EXPECT_EQ(at_consumer.live(), 0u);  // R10: nothing is reserved.
  to_d(frames<wire::Plan>(behind)[0]);
  to_d(seal(sends));
  fence(kSecond);
  at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
  EXPECT_EQ(state(), ConsumerState::kReserving);
  const auto ready = at_d([&](auto& o) { d.capacity_ready(handoff, 1, now, o); });
  ASSERT_EQ(all<TakeEarly>(ready).size(), 1u);
  std::vector<PlaceChunk> places;
  for (const SendChunk& send : sends) {
    const auto given = at_d([&](auto& o) {
      const auto judged = d.early_chunk(send.channel, header(send), o);
      ASSERT_TRUE(judged.ok()) << judged.error().text();
      EXPECT_TRUE(judged->place);
    });
    places.push_back(all<PlaceChunk>(given).at(0));
  }
  at_d([&](auto& o) { d.early_given(handoff, 1, now, o); });
  EXPECT_EQ(state(), ConsumerState::kReceiving);
  for (const PlaceChunk& place : places) at_d([&](auto& o) { d.chunk_placed(place, {}, now, o); });
  EXPECT_EQ(state(), ConsumerState::kVerifying);
}

TEST_F(Early, MoreThanOpenAllowsClosesTheChannel) {
  const auto sends = all<SendChunk>(answer(open()));
  for (const SendChunk& send : sends) keep(send);
  EXPECT_EQ(judge(sends[0]).code(), Code::kMalformed);  // All 4,800 bytes are used.
}

TEST_F(Early, NothingComesEarlyAfterTheFence) {
  const auto sends = all<SendChunk>(answer(open()));
  fence(sends[0].channel);
  EXPECT_EQ(judge(sends[0]).code(), Code::kMalformed);
}

TEST_F(Early, ALargerStateWaitsForCredit) {
  wire::Open asked = open();
  asked.early_bytes = 600 * 8 - 1;
  const auto behind = answer(asked);
  EXPECT_FALSE(frames<wire::Plan>(behind).at(0).early);
  EXPECT_TRUE(all<SendChunk>(behind).empty());
  const auto ready = plan_and_memory(frames<wire::Plan>(behind)[0]);
  EXPECT_EQ(frames<wire::Credit>(ready).size(), 1u);
}

TEST_F(Early, APlanThatTakesMoreThanOpenAllowsIsRefused) {
  wire::Plan plan = frames<wire::Plan>(answer(open())).at(0);
  plan.chunk_count = 5;
  const auto ended = to_d(plan);
  EXPECT_EQ(all<ConsumerHandoffEnded>(ended).at(0).kind, TerminalKind::kRejected);
}

TEST_F(Early, AChannelLostBeforeMemoryCostsTheAttempt) {
  const auto behind = answer(open());
  to_d(frames<wire::Plan>(behind)[0]);
  at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
  at_d([&](auto& o) { d.channel_down(kSecond, Error{Code::kUnavailable, "reset"}, now, o); });
  const auto next = at_d([&](auto& o) { d.capacity_ready(handoff, 1, now, o); });
  ASSERT_EQ(frames<wire::Open>(next).size(), 1u);
  EXPECT_EQ(frames<wire::Open>(next)[0].address.attempt, 2u);
}

// R9: early chunks are of the generation that was planned.
TEST_F(Early, RestartTakesThePermissionBack) {
  const auto behind = answer(open());
  const auto sends = all<SendChunk>(behind);
  keep(sends[0]);
  const auto restarted = at_p([&](auto& o) { p.preempted(kReservation, now, o); });
  to_d(frames<wire::Plan>(behind)[0]);
  to_d(frames<wire::Restart>(restarted).at(0));
  at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
  const auto ready = at_d([&](auto& o) { d.capacity_ready(handoff, 1, now, o); });
  EXPECT_EQ(frames<wire::Credit>(ready).size(), 1u);
  EXPECT_TRUE(all<TakeEarly>(ready).empty());
  at_d([&](auto& o) {
    const auto judged = d.early_chunk(sends[0].channel, header(sends[0]), o);
    EXPECT_TRUE(judged.ok() && !judged->place);
  });
}

// What comes then goes nowhere near the memory that was reserved.
TEST_F(Early, AnEndBeforeMemoryIsOpenNeedsNoFence) {
  const auto behind = answer(open());
  const auto sends = all<SendChunk>(behind);
  to_d(frames<wire::Plan>(behind)[0]);
  at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
  ASSERT_EQ(state(), ConsumerState::kReserving);
  const auto ended = at_d([&](auto& o) { d.cancel(handoff, Error{Code::kCancelled, "gone"}, now, o); });
  EXPECT_EQ(all<ReleaseDestination>(ended).size(), 1u);
  const auto judged = judge(sends[0]);
  ASSERT_TRUE(judged.ok()) << judged.error().text();
  EXPECT_FALSE(judged->place || judged->early);
}

TEST_F(Early, SoManyMayAtOnce) {
  Limits limits = limits_with(600 * 8);
  limits.early_handoffs_max = 0;
  ConsumerCore none{ConsumerOptions{"d1", kConsumer, test_key(1), {target_descriptor()}, 4, {}, limits},
                    &at_consumer};
  const auto is_early = [](const wire::Open& frame) { return frame.early_bytes > 0; };
  EXPECT_TRUE(is_early(open()));
  std::swap(d, none);
  ConsumerActions heard;
  ASSERT_TRUE(
      d.session_up(kSession, Peer{"p1", kProducer, test_key(1), {source_descriptor()}}, now, heard).ok());
  ASSERT_TRUE(d.channel_up(kFirst).ok());
  EXPECT_FALSE(is_early(open()));
}

}  // namespace
}  // namespace isthmus::handoff
