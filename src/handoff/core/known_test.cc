// SPDX-License-Identifier: Apache-2.0
// A consumer that has the beginning of a state asks for the rest: both cores, face to face.
#include <gtest/gtest.h>

#include "handoff/core/both_cores_test.h"
#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using namespace sim;

constexpr kv::TokenRange kRest{256, 600};

class Known : public ::testing::Test, public TestCores {
 protected:
  Known() : TestCores({.at_producer = 0, .at_consumer = 4 * kTestTile * 8}, 2) {}

  Begin rest() const {
    Begin begin = whole();
    begin.wanted = kRest;
    begin.retained = {256, 0};
    begin.destination = {344, 0};
    return begin;
  }
  std::uint64_t held(Category category) const { return at_consumer.held(category).bytes; }
  ConsumerState state() { return d.state_of(handoff).value_or(ConsumerState::kClosed); }

  // Up to D's own plan.
  ConsumerActions plan(const wire::Open& frame, SessionId session = kSession) {
    const std::uint32_t attempt = frame.address.attempt;
    auto said = to_p(frame, session);
    for (const MakePlan& make : all<MakePlan>(said)) {
      EXPECT_EQ(make.tokens, kRest);
      said = at_p([&](auto& o) { p.plan_ready(handoff, attempt, plan_facts(make.tokens), now, o); });
    }
    const wire::Plan offered = frames<wire::Plan>(said).at(0);
    EXPECT_EQ(offered.tokens, kRest);
    EXPECT_EQ(offered.chunk_count, 2u);
    auto next = to_d(offered, session);
    if (all<MakePlan>(next).empty()) return next;
    return at_d([&](auto& o) { d.plan_ready(handoff, attempt, plan_facts(kRest), now, o); });
  }
  std::vector<SendChunk> credit(SessionId session = kSession) {
    const auto ready = at_d([&](auto& o) { d.capacity_ready(handoff, 1, now, o); });
    return all<SendChunk>(to_p(frames<wire::Credit>(ready).at(0), session));
  }
  void place(const SendChunk& send) {
    const wire::ChunkHeader chunk =
        chunk_header(plan_facts(kRest), {send.chunk.handoff, send.chunk.attempt, send.chunk.generation},
                     send.chunk.index, send.slot);
    const auto judged = d.judge(send.channel, chunk, chunk.stored_bytes, now);
    ASSERT_TRUE(judged.ok()) << judged.error().text();
    const auto placed = all<PlaceChunk>(at_d([&](auto& o) { d.chunk_arrived(send.channel, now, o); })).at(0);
    at_d([&](auto& o) { d.chunk_placed(placed, {}, now, o); });
  }
  wire::Seal seal(const std::vector<SendChunk>& sends) {
    std::uint32_t attempt = 1;
    for (const SendChunk& send : sends) {
      attempt = send.chunk.attempt;
      at_p([&](auto& o) { p.chunk_packed(send.chunk, now, o); });
      at_p([&](auto& o) { p.chunk_sent(send.chunk, {}, now, o); });
    }
    const auto sealed = at_p([&](auto& o) { p.seal_ready(handoff, attempt, 1, {1, 2}, now, o); });
    return frames<wire::Seal>(sealed).at(0);
  }
  void own(const std::vector<SendChunk>& sends, std::uint32_t attempt, SessionId session = kSession) {
    const wire::Seal sealed = seal(sends);
    EXPECT_EQ(sealed.tokens, kRest);
    EXPECT_EQ(sealed.token_digest, token_digest_of(600)) << "of the whole prompt";
    to_d(sealed, session);
    for (const std::uint32_t number : {1u, 2u})
      at_d([&](auto& o) { d.fence_seen({session, number}, wire::fence_token(handoff, attempt), now, o); });
    ASSERT_EQ(state(), ConsumerState::kVerifying);
    const auto owned = all<Own>(at_d([&](auto& o) { d.verified(handoff, attempt, {}, now, o); }));
    ASSERT_EQ(owned.size(), 1u);
    EXPECT_EQ(held(Category::kActive), 600u) << "one grant, of all that the sequence has";
    EXPECT_EQ(held(Category::kRetained) + held(Category::kIncoming), 0u);
    at_consumer.release(owned[0].destination);
    EXPECT_EQ(at_consumer.live(), 0u);
    EXPECT_TRUE(at_consumer.check().ok()) << at_consumer.check().error().text();
  }
};

TEST_F(Known, OnlyTheRestMovesAndTheStateIsOwnedAsAWhole) {
  const wire::Open asked = open(rest());
  EXPECT_EQ(asked.wanted, kRest);
  EXPECT_EQ(held(Category::kRetained), 256u);
  EXPECT_EQ(held(Category::kIncoming), 0u);  // R10
  EXPECT_EQ(all<ReserveCapacity>(plan(asked)).at(0).destination.bytes, 344u);
  EXPECT_EQ(held(Category::kRetained), 256u);
  EXPECT_EQ(held(Category::kIncoming), 344u);
  const auto sends = credit();
  ASSERT_EQ(sends.size(), 2u);
  for (const SendChunk& send : sends) place(send);
  own(sends, 1);
}

TEST_F(Known, AfterALostConnectionOnlyWhatTheRestMissesMoves) {
  plan(open(rest()));
  const auto sends = credit();
  ASSERT_EQ(sends.size(), 2u);
  place(sends[0]);
  at_p([&](auto& o) { p.session_down(kSession, now, o); });
  at_d([&](auto& o) { d.session_down(kSession, now, o); });
  EXPECT_EQ(held(Category::kRetained), 256u);
  constexpr SessionId kNext = 2;
  connect(kNext, 2, false);
  for (const SendChunk& send : sends) {
    at_p([&](auto& o) { p.chunk_packed(send.chunk, now, o); });
    at_p([&](auto& o) { p.chunk_sent(send.chunk, Error{Code::kUnavailable, "cut"}, now, o); });
  }
  const auto again = frames<wire::Open>(at_d([&](auto& o) { d.session_found(handoff, kNext, now, o); }));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].wanted, kRest);
  EXPECT_TRUE(again[0].resumes);
  EXPECT_EQ(again[0].missing, (std::vector<wire::ChunkRange>{{1, 2}}));
  const auto resumed = plan(again[0], kNext);
  const auto rest_of_it = all<SendChunk>(to_p(frames<wire::Credit>(resumed).at(0), kNext));
  ASSERT_EQ(rest_of_it.size(), 1u);
  EXPECT_EQ(rest_of_it[0].chunk.index, 1u);
  place(rest_of_it[0]);
  own(rest_of_it, 2, kNext);
}

TEST_F(Known, ANewGenerationVoidsTheRestAndNothingElse) {
  plan(open(rest()));
  for (const SendChunk& send : credit()) place(send);
  to_d(wire::Restart{{handoff, 1, 2}});
  EXPECT_EQ(state(), ConsumerState::kReceiving);
  EXPECT_EQ(held(Category::kRetained), 256u);
  EXPECT_EQ(held(Category::kIncoming), 344u);
}

TEST_F(Known, WhatIsRetainedGoesWhereverItEnds) {
  const Error unwanted{Code::kCancelled, "the client left"};
  const auto expect_ended = [&](ConsumerActions actions, Destination destination) {
    const auto ended = all<ConsumerHandoffEnded>(actions);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].destination, destination);
    EXPECT_EQ(at_consumer.live(), 0u);
  };
  open(rest());
  expect_ended(at_d([&](auto& o) { d.cancel(handoff, unwanted, now, o); }), Destination::kNone);
  const wire::Open asked = open(rest());
  expect_ended(to_d(wire::Reject{asked.address, Code::kNotFound, "it is over", {}, {}}), Destination::kNone);
}

TEST_F(Known, APlacementThatNeverReportsKeepsItWithTheDestination) {
  plan(open(rest()));
  const auto sends = credit();
  const wire::ChunkHeader chunk =
      chunk_header(plan_facts(kRest), {handoff, 1, 1}, sends[0].chunk.index, sends[0].slot);
  ASSERT_TRUE(d.judge(sends[0].channel, chunk, chunk.stored_bytes, now).ok());
  const auto placing =
      all<PlaceChunk>(at_d([&](auto& o) { d.chunk_arrived(sends[0].channel, now, o); })).at(0);
  at_d([&](auto& o) { d.cancel(handoff, Error{Code::kCancelled, "left"}, now, o); });
  for (int i = 0; i < 2; ++i) {
    now = now + Timings{}.quiesce_max;
    at_d([&](auto& o) { d.tick(now, o); });
  }
  ASSERT_EQ(state(), ConsumerState::kQuarantined);
  EXPECT_EQ(held(Category::kQuarantine), 344u);
  EXPECT_EQ(held(Category::kRetained), 256u);
  at_d([&](auto& o) { d.chunk_placed(placing, {}, now, o); });
  EXPECT_EQ(at_consumer.live(), 0u);
}

TEST_F(Known, WithoutRoomForWhatIsHereNothingIsBegun) {
  const GrantId other = *at_consumer.grant(Category::kActive, {800, 0});
  ConsumerActions out;
  EXPECT_EQ(d.begin(rest(), now, out).code(), Code::kExhausted);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(d.live(), 0u);
  at_consumer.release(other);
  EXPECT_EQ(at_consumer.live(), 0u);
}

// Two that wait for each other's retained memory would wait until both give up.
TEST_F(Known, WhoHoldsWhatIsHereDoesNotWaitForTheRest) {
  const GrantId other = *at_consumer.grant(Category::kActive, {500, 0});
  const auto refused = plan(open(rest()));
  ASSERT_EQ(all<ConsumerHandoffEnded>(refused).size(), 1u);
  EXPECT_EQ(all<ConsumerHandoffEnded>(refused)[0].kind, TerminalKind::kExhausted);
  EXPECT_EQ(all<ConsumerHandoffEnded>(refused)[0].destination, Destination::kNone);
  EXPECT_EQ(frames<wire::Abort>(refused).size(), 1u) << "the producer keeps the state for the next handoff";
  EXPECT_EQ(held(Category::kRetained), 0u);
  at_consumer.release(other);
}

TEST_F(Known, ItDoesNotPassThoseWhoWaitForMemory) {
  const GrantId other = *at_consumer.grant(Category::kActive, {400, 0});
  Begin large = whole();
  large.destination = {700, 0};
  const wire::Open first = open(large);
  to_p(first);
  const auto offered = at_p([&](auto& o) { p.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
  to_d(frames<wire::Plan>(offered).at(0));
  EXPECT_TRUE(at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); }).empty());
  const wire::HandoffId waiting = handoff;
  ASSERT_EQ(state(), ConsumerState::kReserving);
  // There is room for this one, and it isn't its turn.
  const wire::Open second = open(rest());
  wire::Plan plan = frames<wire::Plan>(offered)[0];
  plan.address.handoff = handoff;
  plan.tokens = kRest;
  plan.plan = plan_facts(kRest).digest;
  plan.chunk_count = plan_facts(kRest).chunk_count;
  plan.total_bytes = plan_facts(kRest).total_bytes;
  EXPECT_EQ(second.address.handoff, handoff);
  to_d(plan);
  const auto refused = at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts(kRest), now, o); });
  EXPECT_EQ(all<ConsumerHandoffEnded>(refused).at(0).kind, TerminalKind::kExhausted);
  at_consumer.release(other);
  EXPECT_EQ(all<ReserveCapacity>(at_d([&](auto& o) { d.memory_freed(o); })).at(0).handoff, waiting);
}

TEST_F(Known, ASealOfAnotherRangeIsCorrupt) {
  plan(open(rest()));
  const auto sends = credit();
  for (const SendChunk& send : sends) place(send);
  wire::Seal sealed = seal(sends);
  sealed.tokens = {0, 600};
  sealed.mac = wire::seal_mac(test_key(1), sealed);
  to_d(sealed);
  EXPECT_EQ(state(), ConsumerState::kQuiescing);
  for (const std::uint32_t number : {1u, 2u})
    at_d([&](auto& o) { d.fence_seen({kSession, number}, wire::fence_token(handoff, 1), now, o); });
  EXPECT_EQ(state(), ConsumerState::kClosed);
  EXPECT_EQ(at_consumer.live(), 0u);
}

}  // namespace
}  // namespace isthmus::handoff
