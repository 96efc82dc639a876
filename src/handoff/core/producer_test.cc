// SPDX-License-Identifier: Apache-2.0
// The producer's duties, one at a time. R-numbers are those of spec/handoff.md, "Rules".
#include "handoff/core/producer.h"

#include <gtest/gtest.h>

#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using namespace sim;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr SessionId kSession = 1, kOtherSession = 2;
const Id128 kConsumer{1, 10}, kOther{1, 11}, kReservation{5, 1};

class ProducerTest : public ::testing::Test {
 protected:
  ProducerTest() {
    up(kSession, "d1", kConsumer);
    up(kOtherSession, "d2", kOther);
  }

  void up(SessionId session, const std::string& name, Id128 incarnation) {
    ASSERT_TRUE(
        core.session_up(
                session,
                Peer{name, incarnation, test_key(static_cast<std::uint8_t>(session)), {target_descriptor()}},
                now, out)
            .ok());
    core.channel_up({session, 1});
    core.channel_up({session, 2});
  }

  Reservation reservation(std::uint64_t tokens = 600) {
    Reservation made;
    made.id = kReservation;
    made.nonce = {6, 1};
    made.source = source_descriptor().digest();
    made.tokens = {0, tokens};
    made.deadline = now + seconds(60);
    made.pinned = {tokens, 0};
    return made;
  }
  void admit(std::uint64_t tokens = 600) {
    const auto minted = core.admitted(reservation(tokens), now, out);
    ASSERT_TRUE(minted.ok()) << minted.error().text();
    ticket = *minted;
  }

  wire::Address address(std::uint64_t sequence = 1, std::uint32_t attempt = 1, std::uint32_t generation = 1) {
    return {{kConsumer, sequence}, attempt, generation};
  }
  wire::Open open_frame(wire::Address at, SessionId session = kSession) {
    const Id128 nonce = wire::parse_ticket(ticket)->ticket.nonce;
    at.generation = 0;
    return {at,
            ticket,
            wire::open_proof(test_key(static_cast<std::uint8_t>(session)), nonce, at.handoff, at.attempt),
            target_descriptor().digest(),
            {0, 600},
            kv::Exactness::kLossless,
            0,
            60000};
  }
  ProducerActions in(const wire::Frame& frame, SessionId session = kSession) {
    ProducerActions actions;
    const Status status = core.frame_in(session, frame, now, actions);
    EXPECT_TRUE(status.ok()) << status.error().text();
    checked();
    return actions;
  }
  ProducerActions tick() {
    ProducerActions actions;
    core.tick(now, actions);
    checked();
    return actions;
  }
  void checked() {
    const Status status = core.check();
    EXPECT_TRUE(status.ok()) << status.error().text();
  }
  template <typename Call>
  ProducerActions call(Call event) {
    ProducerActions actions;
    event(actions);
    checked();
    return actions;
  }

  // OPEN → PLAN.
  void open(std::uint64_t sequence = 1) {
    const auto actions = in(open_frame(address(sequence)));
    const auto plans = all<MakePlan>(actions);
    ASSERT_EQ(plans.size(), 1u);
    const auto answer = call([&](auto& o) {
      core.plan_ready(plans[0].handoff, plans[0].attempt, plan_facts(plans[0].tokens), now, o);
    });
    ASSERT_EQ(frames<wire::Plan>(answer).size(), 1u);
  }
  wire::Credit credit(std::uint32_t granted, wire::Address at) { return {at, 8, granted, {1, 2}}; }
  wire::Credit credit(std::uint32_t granted) { return credit(granted, address()); }
  ProducerActions pack(const ChunkRef& chunk) {
    return call([&](auto& o) { core.chunk_packed(chunk, now, o); });
  }
  ProducerActions sent(const ChunkRef& chunk, Status status = {}) {
    return call([&](auto& o) { core.chunk_sent(chunk, status, now, o); });
  }
  ProducerActions prefill_done(wire::FinishState finish = wire::FinishState::kNone) {
    return call(
        [&](auto& o) { core.prefill_done(kReservation, {token_digest_of(600), {42}, finish}, now, o); });
  }
  // From nothing to sealed, every chunk sent.
  wire::Seal seal(std::uint64_t sequence = 1) {
    open(sequence);
    prefill_done();
    ProducerActions last;
    for (const SendChunk& send : all<SendChunk>(in(credit(3, address(sequence))))) {
      pack(send.chunk);
      last = sent(send.chunk);
    }
    const auto sealed = call([&](auto& o) { core.seal_ready({kConsumer, sequence}, 1, 1, {1, 2}, now, o); });
    const auto seals = frames<wire::Seal>(sealed);
    EXPECT_EQ(seals.size(), 1u);
    return seals.empty() ? wire::Seal{} : seals[0];
  }
  ProducerState state() { return core.state_of(kReservation).value_or(ProducerState::kReleased); }

  Instant now{seconds(100)};
  Ledger ledger{Capacity{{10'000, 0}, 0}};
  ProducerCore core{
      ProducerOptions{"p1", {1, 20}, Instant{seconds(90)}, test_key(1), {source_descriptor()}, {}, {}},
      &ledger};
  ProducerActions out;
  std::string ticket;
};

TEST_F(ProducerTest, AWholeHandoffEndsInDoneAndFreesThePins) {
  admit();
  EXPECT_EQ(ledger.held(Category::kPinned).bytes, 600u);
  const wire::Seal sealed = seal();
  EXPECT_EQ(sealed.mac, wire::seal_mac(test_key(1), sealed));
  EXPECT_EQ(sealed.first_tokens, (std::vector<std::int32_t>{42}));
  const auto actions = in(wire::Done{sealed.address});
  EXPECT_EQ(all<ReleasePins>(actions).size(), 1u);
  ASSERT_EQ(all<ProducerHandoffEnded>(actions).size(), 1u);
  EXPECT_EQ(all<ProducerHandoffEnded>(actions)[0].kind, TerminalKind::kDone);
  EXPECT_EQ(all<ReservationEnded>(actions)[0].kind, TerminalKind::kDone);
  EXPECT_EQ(frames<wire::Released>(actions)[0].outcome, wire::ReleaseOutcome::kDone);
  EXPECT_EQ(ledger.live(), 0u);
  EXPECT_EQ(core.live(), 0u);
  EXPECT_EQ(frames<wire::Released>(in(wire::Done{sealed.address}))[0].outcome,
            wire::ReleaseOutcome::kDone);  // Repeated: same answer.
  EXPECT_EQ(frames<wire::Released>(in(wire::Cancel{sealed.address, "", {}}))[0].outcome,
            wire::ReleaseOutcome::kLate);
  EXPECT_EQ(core.next_deadline(), kFarFuture);
}

// --- Tickets and OPEN

TEST_F(ProducerTest, TicketsAreRefusedEachForItsReason) {  // R2
  admit();
  const auto refusal = [&](const wire::Open& open, SessionId session = kSession) {
    const auto actions = in(open, session);
    const auto rejects = frames<wire::Reject>(actions);
    EXPECT_EQ(all<ProducerHandoffEnded>(actions).size(), 1u);
    return rejects.empty() ? wire::TicketFault::kNone : rejects[0].fault;
  };
  const std::string good = ticket;
  const wire::Ticket inside = wire::parse_ticket(good)->ticket;
  const auto with = [&](std::uint64_t sequence, auto change, std::uint8_t key = 1) {
    wire::Ticket changed = inside;
    change(changed);
    ticket = *wire::mint(changed, test_key(key));
    wire::Open open = open_frame(address(sequence));
    ticket = good;
    return open;
  };
  EXPECT_EQ(refusal(with(2, [](wire::Ticket&) {}, 3)), wire::TicketFault::kAltered);
  EXPECT_EQ(refusal(with(3, [](wire::Ticket& t) { t.incarnation = {1, 19}; })),
            wire::TicketFault::kOtherIncarnation);  // A past life's.
  EXPECT_EQ(refusal(with(4, [](wire::Ticket& t) { t.expires_ms = 10'000; })),
            wire::TicketFault::kExpired);  // 10 s after `started` is now.
  EXPECT_EQ(refusal(with(5, [](wire::Ticket& t) { t.reservation = {5, 9}; })),
            wire::TicketFault::kUnknownReservation);
  EXPECT_EQ(refusal(with(6, [](wire::Ticket& t) { t.descriptor = {1, 1}; })),
            wire::TicketFault::kOtherDescriptor);
  EXPECT_EQ(refusal(with(7, [](wire::Ticket& t) { t.producer = "p2"; })), wire::TicketFault::kOtherProducer);
  wire::Open odd = open_frame(address(8));
  odd.wanted = {0, 601};
  EXPECT_EQ(refusal(odd), wire::TicketFault::kOtherRange);
  odd = open_frame(address(9));
  odd.proof[0] ^= std::byte{1};
  EXPECT_EQ(refusal(odd), wire::TicketFault::kNoProof);
  odd = open_frame(address(10));
  odd.ticket = "rubbish!";
  EXPECT_EQ(refusal(odd), wire::TicketFault::kMalformed);
  // A proof made under one session is worth nothing in another.
  wire::Open stolen = open_frame({{kOther, 1}, 1, 0}, kSession);
  EXPECT_EQ(refusal(stolen, kOtherSession), wire::TicketFault::kNoProof);
  EXPECT_EQ(state(), ProducerState::kPinned);
}

TEST_F(ProducerTest, ARepeatedOpenGetsTheSameAnswerAndNoSecondEvent) {
  admit();
  const wire::Open first = open_frame(address());
  open();
  const auto again = in(first);
  EXPECT_TRUE(all<MakePlan>(again).empty());
  EXPECT_EQ(frames<wire::Plan>(again).size(), 1u);
  wire::Open bad = open_frame(address(2));
  bad.proof = {};
  EXPECT_EQ(all<ProducerHandoffEnded>(in(bad)).size(), 1u);
  const auto repeated = in(bad);
  EXPECT_TRUE(all<ProducerHandoffEnded>(repeated).empty());
  EXPECT_EQ(frames<wire::Reject>(repeated).size(), 1u);
}

TEST_F(ProducerTest, ARepeatedOpenIsAnsweredAfterItsTicketHasExpired) {
  admit();
  const wire::Open first = open_frame(address());
  open();
  in(credit(3));
  now = now + seconds(9);
  in(wire::Renew{{{address(), 1, 0}}});
  now = now + seconds(2);
  const auto again = in(first);
  EXPECT_EQ(frames<wire::Plan>(again).size(), 1u);
  EXPECT_TRUE(all<ProducerHandoffEnded>(again).empty());
  EXPECT_EQ(state(), ProducerState::kGrowing);
}

TEST_F(ProducerTest, AnotherHandoffOnATakenSlotGetsBusy) {
  admit();
  open();
  const auto actions = in(open_frame({{kOther, 1}, 1, 0}, kOtherSession), kOtherSession);
  EXPECT_EQ(frames<wire::Busy>(actions).size(), 1u);
  EXPECT_TRUE(all<ProducerHandoffEnded>(actions).empty());
}

TEST_F(ProducerTest, AnIncompatibleTargetIsRejectedWithBothValues) {
  kv::Descriptor other = target_descriptor();
  other.identity.lineage = "another model";
  ASSERT_TRUE(core.session_up(7, Peer{"d7", {1, 17}, test_key(7), {other}}, now, out).ok());
  admit();
  wire::Open open = open_frame({{{1, 17}, 1}, 1, 0}, 7);
  open.target = other.digest();
  const auto rejects = frames<wire::Reject>(in(open, 7));
  ASSERT_EQ(rejects.size(), 1u);
  EXPECT_EQ(rejects[0].code, Code::kIncompatible);
  ASSERT_EQ(rejects[0].reasons.size(), 1u);
  EXPECT_EQ(rejects[0].reasons[0].source, "lineage");
  EXPECT_EQ(rejects[0].reasons[0].target, "another model");
  EXPECT_EQ(state(), ProducerState::kPinned);
}

TEST_F(ProducerTest, AFrameForAnotherConsumersHandoffIsMalformed) {
  admit();
  open();
  ProducerActions actions;
  EXPECT_EQ(core.frame_in(kOtherSession, credit(3), now, actions).code(), Code::kMalformed);
  EXPECT_EQ(core.frame_in(kOtherSession, wire::Done{address()}, now, actions).code(), Code::kMalformed);
  EXPECT_EQ(core.frame_in(kSession, wire::Promised{address(), 1}, now, actions).code(), Code::kMalformed);
  EXPECT_TRUE(actions.empty());
}

TEST_F(ProducerTest, AnOpenBeforeAdmissionIsPromisedAndThenServed) {
  wire::Ticket early{"p1",     {1, 20},   kReservation, source_descriptor().digest(),
                     {0, 600}, 3'600'000, {6, 9},       true};
  ticket = *wire::mint(early, test_key(1));
  const auto promised = in(open_frame(address()));
  ASSERT_EQ(frames<wire::Promised>(promised).size(), 1u);
  EXPECT_EQ(ledger.live(), 0u);  // Nothing is held for it.
  EXPECT_EQ(frames<wire::Busy>(in(open_frame({{kOther, 1}, 1, 0}, kOtherSession), kOtherSession)).size(), 1u);
  const auto actions = call([&](auto& o) { ASSERT_TRUE(core.admitted(reservation(), now, o).ok()); });
  EXPECT_EQ(all<MakePlan>(actions).size(), 1u);
  EXPECT_EQ(state(), ProducerState::kOpened);
}

TEST_F(ProducerTest, APromiseEndsAtItsDeadline) {
  wire::Ticket early{"p1",     {1, 20},   kReservation, source_descriptor().digest(),
                     {0, 600}, 3'600'000, {6, 9},       true};
  ticket = *wire::mint(early, test_key(1));
  in(open_frame(address()));
  now = core.next_deadline();
  const auto actions = tick();
  EXPECT_EQ(frames<wire::Reject>(actions).size(), 1u);
  EXPECT_EQ(all<ProducerHandoffEnded>(actions).at(0).kind, TerminalKind::kTimedOut);
  EXPECT_EQ(core.live(), 0u);
  EXPECT_TRUE(core.admitted(reservation(), now, out).ok());
}

TEST_F(ProducerTest, ACancelBeforeAdmissionLeavesATombstone) {
  call([&](auto& o) { core.cancel(kReservation, Error{Code::kCancelled, "client left"}, now, o); });
  EXPECT_EQ(core.admitted(reservation(), now, out).code(), Code::kCancelled);
  now = now + seconds(61);
  EXPECT_TRUE(core.admitted(reservation(), now, out).ok());
}

TEST_F(ProducerTest, ACancelThatOvertakesItsOpenHolds) {
  admit();
  EXPECT_EQ(frames<wire::Released>(in(wire::Cancel{address(), "", {1}}))[0].outcome,
            wire::ReleaseOutcome::kUnknown);
  const auto rejects = frames<wire::Reject>(in(open_frame(address())));
  ASSERT_EQ(rejects.size(), 1u);
  EXPECT_EQ(rejects[0].code, Code::kCancelled);
}

// --- Flow

TEST_F(ProducerTest, OnlyWholeChunksBelowTheWatermarkMove) {  // R8
  admit();
  open();
  EXPECT_TRUE(all<SendChunk>(in(credit(3))).empty());
  EXPECT_TRUE(all<SendChunk>(call([&](auto& o) { core.grew(kReservation, 255, now, o); })).empty());
  EXPECT_EQ(all<SendChunk>(call([&](auto& o) { core.grew(kReservation, 256, now, o); })).size(), 1u);
  EXPECT_TRUE(all<SendChunk>(call([&](auto& o) {
                core.grew(kReservation, 100, now, o);
              })).empty());  // Never backwards.
  EXPECT_EQ(all<SendChunk>(call([&](auto& o) { core.grew(kReservation, 599, now, o); })).size(), 1u);
  EXPECT_EQ(all<SendChunk>(prefill_done()).size(), 1u);  // The last tile is partial: with the end of prefill.
}

TEST_F(ProducerTest, CreditBoundsWhatIsSentAndRepeatsAreHarmless) {
  admit();
  open();
  prefill_done();
  EXPECT_EQ(all<SendChunk>(in(credit(1))).size(), 1u);
  EXPECT_TRUE(all<SendChunk>(in(credit(1))).empty());
  const auto more = all<SendChunk>(in(credit(99)));
  ASSERT_EQ(more.size(), 2u);
  EXPECT_EQ(more[0].chunk.index, 1u);
  EXPECT_EQ(more[0].slot, 1u);
  EXPECT_NE(more[0].channel, more[1].channel);  // Spread over the channels named.
}

TEST_F(ProducerTest, CreditOnAChannelThatIsntBoundCostsTheAttempt) {
  admit();
  open();
  const auto actions = in(wire::Credit{address(), 8, 3, {1, 9}});
  EXPECT_EQ(frames<wire::Busy>(actions).size(), 1u);
  EXPECT_EQ(state(), ProducerState::kSevered);
}

TEST_F(ProducerTest, SealWaitsForTheLastReadOfThePages) {  // R5
  admit();
  open();
  prefill_done();
  const auto sends = all<SendChunk>(in(credit(3)));
  pack(sends[0].chunk);
  EXPECT_TRUE(all<ComputeSeal>(pack(sends[2].chunk)).empty());
  EXPECT_EQ(all<ComputeSeal>(pack(sends[1].chunk)).size(), 1u);
  const auto actions = call([&](auto& o) { core.seal_ready({kConsumer, 1}, 1, 1, {1, 2}, now, o); });
  // On each channel the fence comes after all chunks, before SEAL is told.
  EXPECT_EQ(all<SendFence>(actions).size(), 2u);
  EXPECT_EQ(all<SendFence>(actions)[0].token, wire::fence_token({kConsumer, 1}, 1));
  EXPECT_EQ(frames<wire::Seal>(actions).size(), 1u);
}

TEST_F(ProducerTest, NoSealForAGenerationThatIsOver) {  // R5, R9
  admit();
  open();
  prefill_done();
  for (const SendChunk& send : all<SendChunk>(in(credit(3)))) pack(send.chunk);
  const auto restarted = call([&](auto& o) { core.preempted(kReservation, now, o); });
  ASSERT_EQ(frames<wire::Restart>(restarted).size(), 1u);
  EXPECT_EQ(frames<wire::Restart>(restarted)[0].address.generation, 2u);
  EXPECT_TRUE(call([&](auto& o) { core.seal_ready({kConsumer, 1}, 1, 1, {1, 2}, now, o); }).empty());
  // The old generation's credit is void too; under the new one everything is sent again.
  prefill_done();
  EXPECT_TRUE(all<SendChunk>(in(credit(3))).empty());
  const auto sends = all<SendChunk>(in(credit(3, address(1, 1, 2))));
  ASSERT_EQ(sends.size(), 3u);
  EXPECT_EQ(sends[0].chunk.generation, 2u);
  ProducerActions last;
  for (const SendChunk& send : sends) last = pack(send.chunk);
  EXPECT_EQ(all<ComputeSeal>(last).size(), 1u);
  EXPECT_TRUE(call([&](auto& o) { core.seal_ready({kConsumer, 1}, 1, 1, {1, 2}, now, o); }).empty());
  EXPECT_EQ(frames<wire::Seal>(call([&](auto& o) {
              core.seal_ready({kConsumer, 1}, 1, 2, {1, 2}, now, o);
            })).size(),
            1u);
}

TEST_F(ProducerTest, NoSealAfterTheLease) {  // R5
  admit();
  open();
  prefill_done();
  for (const SendChunk& send : all<SendChunk>(in(credit(3)))) pack(send.chunk);
  now = now + seconds(10);
  const auto actions = call([&](auto& o) { core.seal_ready({kConsumer, 1}, 1, 1, {1, 2}, now, o); });
  EXPECT_TRUE(frames<wire::Seal>(actions).empty());
  EXPECT_EQ(frames<wire::Abort>(actions).size(), 1u);
}

TEST_F(ProducerTest, NoSealThatSaysFinishedAfterTheLease) {  // R5
  admit();
  open();
  now = now + seconds(11);  // Beyond the lease; the process was stopped and no tick has come yet.
  EXPECT_TRUE(frames<wire::Seal>(prefill_done(wire::FinishState::kStop)).empty());
  EXPECT_EQ(all<ReservationEnded>(tick()).at(0).kind, TerminalKind::kExpired);
}

TEST_F(ProducerTest, AFirstTokenThatEndsTheAnswerSealsWithoutChunks) {
  admit();
  open();
  const auto seals = frames<wire::Seal>(prefill_done(wire::FinishState::kStop));
  ASSERT_EQ(seals.size(), 1u);
  EXPECT_EQ(seals[0].finish, wire::FinishState::kStop);
  const auto actions = in(wire::Done{seals[0].address});
  EXPECT_EQ(all<ProducerHandoffEnded>(actions).at(0).kind, TerminalKind::kFinished);
  EXPECT_EQ(all<ReleasePins>(actions).size(), 1u);
}

TEST_F(ProducerTest, AFailedPrefillReachesTheConsumerAsAbort) {
  admit();
  open();
  const auto actions =
      call([&](auto& o) { core.prefill_failed(kReservation, Error{Code::kInternal, "step 3"}, now, o); });
  EXPECT_EQ(frames<wire::Abort>(actions).at(0).detail, "step 3");
  EXPECT_EQ(all<ReservationEnded>(actions).at(0).kind, TerminalKind::kFailed);
  const auto late = frames<wire::Reject>(in(open_frame({{kOther, 1}, 1, 0}, kOtherSession), kOtherSession));
  ASSERT_EQ(late.size(), 1u);  // Who comes later is told why.
  EXPECT_EQ(late[0].code, Code::kInternal);
}

// --- Stale frames

TEST_F(ProducerTest, OnlyTheCurrentAttemptsFramesCount) {  // R3
  admit();
  const wire::Seal sealed = seal();
  for (const wire::Address stale : {address(1, 2, 1), address(1, 1, 2), address(2, 1, 1)})
    in(wire::Done{stale});
  EXPECT_EQ(state(), ProducerState::kSealed);
  in(wire::Done{sealed.address});
  EXPECT_EQ(state(), ProducerState::kReleased);
}

TEST_F(ProducerTest, AnOldAttemptsCancelAndDoneDontTouchItsSuccessor) {  // R3
  admit();
  open();
  const auto plan = frames<wire::Plan>(in(open_frame(address(1, 2))));
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].address.attempt, 2u);
  in(wire::Cancel{address(1, 1), "", {}});
  in(wire::Abort{address(1, 1), Code::kAborted, "", {}});
  in(wire::Done{address(1, 1)});
  EXPECT_EQ(state(), ProducerState::kOpened);
  in(open_frame(address(1, 1)));  // Neither does a late repeat of the first OPEN.
  EXPECT_EQ(state(), ProducerState::kOpened);
}

TEST_F(ProducerTest, DoneBeforeSealIsNothing) {
  admit();
  open();
  EXPECT_TRUE(in(wire::Done{address()}).empty());
  EXPECT_EQ(state(), ProducerState::kOpened);
}

TEST_F(ProducerTest, ANewLifeEndsTheOldOnesHandoffs) {  // R1, second half
  admit();
  open();
  const auto actions = call([&](auto& o) {
    ASSERT_TRUE(core.session_up(9, Peer{"d1", {1, 12}, test_key(9), {target_descriptor()}}, now, o).ok());
  });
  EXPECT_EQ(all<ProducerHandoffEnded>(actions).at(0).kind, TerminalKind::kPeerLost);
  EXPECT_EQ(state(), ProducerState::kPinned);  // For another consumer, or its next life.
  ProducerActions none;
  EXPECT_EQ(core.frame_in(kSession, credit(3), now, none).code(), Code::kUnavailable);
}

TEST_F(ProducerTest, ASealedSlotIsNotGivenTwice) {
  admit();
  seal();
  call([&](auto& o) { core.session_down(kSession, now, o); });
  EXPECT_EQ(state(), ProducerState::kSealed);  // The consumer may own it: DONE can come by another session.
  EXPECT_EQ(frames<wire::Busy>(in(open_frame({{kOther, 1}, 1, 0}, kOtherSession), kOtherSession)).size(), 1u);
  const auto actions = call(
      [&](auto& o) { ASSERT_TRUE(core.session_up(9, Peer{"d1", {1, 12}, test_key(9), {}}, now, o).ok()); });
  EXPECT_EQ(all<ReservationEnded>(actions).at(0).kind, TerminalKind::kPeerLost);
}

// --- Resuming

TEST_F(ProducerTest, ALostChannelKeepsTheSlotForItsHolder) {
  admit();
  open();
  prefill_done();
  const auto sends = all<SendChunk>(in(credit(2)));
  pack(sends[0].chunk);
  sent(sends[0].chunk);
  const auto lost = call([&](auto& o) { core.channel_down({kSession, 1}, now, o); });
  EXPECT_EQ(frames<wire::Busy>(lost).at(0).address, address());
  EXPECT_TRUE(all<ProducerHandoffEnded>(lost).empty());
  EXPECT_EQ(state(), ProducerState::kSevered);
  EXPECT_EQ(frames<wire::Busy>(in(open_frame({{kOther, 1}, 1, 0}, kOtherSession), kOtherSession)).size(), 1u);

  wire::Open next = open_frame(address(1, 2));
  next.address.generation = 1;
  next.resumes = true;
  next.missing = {{1, 3}};
  const auto resumed = in(next);
  EXPECT_EQ(all<ResumeAttempt>(resumed).at(0).next, 2u);
  EXPECT_EQ(all<ProducerHandoffEnded>(resumed).at(0).attempt, 1u);
  EXPECT_EQ(all<ProducerHandoffEnded>(resumed)[0].kind, TerminalKind::kPeerLost);
  EXPECT_TRUE(frames<wire::Plan>(resumed).at(0).resumed);
  EXPECT_TRUE(all<SendChunk>(resumed).empty());        // Old credit died with the attempt.
  EXPECT_TRUE(all<SendChunk>(in(credit(3))).empty());  // Nor does its frame count.
  EXPECT_TRUE(sent(sends[1].chunk, Error{Code::kUnavailable, "gone"}).empty());  // An old attempt's.
  wire::Credit fresh = credit(1, address(1, 2));
  fresh.channels = {2};
  const auto again = all<SendChunk>(in(fresh));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].chunk.index, 1u);
  EXPECT_EQ(again[0].slot, 0u);
}

TEST_F(ProducerTest, AnotherGenerationResumesNothing) {  // R9
  admit();
  open();
  in(credit(2));
  call([&](auto& o) { core.session_down(kSession, now, o); });
  call([&](auto& o) { core.preempted(kReservation, now, o); });
  up(kSession + 10, "d1", kConsumer);
  wire::Open next = open_frame(address(1, 2), kSession + 10);
  next.address.generation = 1;
  next.resumes = true;
  next.missing = {{1, 3}};
  const auto plan = frames<wire::Plan>(in(next, kSession + 10)).at(0);
  EXPECT_FALSE(plan.resumed);
  EXPECT_EQ(plan.address.generation, 2u);
}

TEST_F(ProducerTest, ASlotThatIsNotResumedInTimeIsFree) {
  admit();
  open();
  in(credit(2));
  call([&](auto& o) { core.session_down(kSession, now, o); });
  EXPECT_EQ(state(), ProducerState::kSevered);
  now = now + seconds(5);
  EXPECT_EQ(all<ProducerHandoffEnded>(tick()).at(0).kind, TerminalKind::kPeerLost);
  EXPECT_EQ(state(), ProducerState::kPinned);
}

TEST_F(ProducerTest, ASealedAttemptIsResumedByItsHolderAlone) {
  admit();
  seal();
  wire::Open next = open_frame(address(1, 2));
  next.address.generation = 1;
  next.resumes = true;  // All chunks are there: SEAL alone was lost.
  EXPECT_EQ(frames<wire::Plan>(in(next)).at(0).resumed, true);
  const auto actions = in(credit(0, address(1, 2)));
  EXPECT_TRUE(all<SendChunk>(actions).empty());
  EXPECT_EQ(all<ComputeSeal>(actions).at(0).attempt, 2u);
}

// --- Superseding

TEST_F(ProducerTest, ASupersededHoldersFramesAreIgnored) {
  admit();
  const wire::Seal sealed = seal();
  const std::string old_ticket = ticket;
  Result<std::string> fresh = Error{Code::kInternal, ""};
  const auto actions = call([&](auto& o) { fresh = core.supersede(kReservation, {6, 2}, now, o); });
  ASSERT_TRUE(fresh.ok()) << fresh.error().text();
  EXPECT_EQ(all<ProducerHandoffEnded>(actions).at(0).kind, TerminalKind::kSuperseded);
  EXPECT_EQ(frames<wire::Abort>(actions).size(), 1u);
  EXPECT_EQ(state(), ProducerState::kPinned);

  ticket = *fresh;
  EXPECT_EQ(all<MakePlan>(in(open_frame({{kOther, 1}, 1, 0}, kOtherSession), kOtherSession)).size(), 1u);
  in(wire::Done{sealed.address});  // It may have owned: its router takes no answer of it.
  in(wire::Cancel{sealed.address, "", {}});
  EXPECT_EQ(state(), ProducerState::kOpened);
  ticket = old_ticket;  // Nor does the old ticket open anything.
  const auto refused = frames<wire::Reject>(in(open_frame(address(2))));
  EXPECT_EQ(refused.at(0).fault, wire::TicketFault::kSuperseded);
}

TEST_F(ProducerTest, WhatIsOverIsNotSuperseded) {
  ProducerActions none;
  EXPECT_EQ(core.supersede(kReservation, {6, 2}, now, none).code(), Code::kNotFound);
  admit();
  const wire::Seal sealed = seal();
  in(wire::Done{sealed.address});
  EXPECT_EQ(core.supersede(kReservation, {6, 2}, now, none).code(), Code::kNotFound);
  EXPECT_TRUE(none.empty());
}

// --- Release

TEST_F(ProducerTest, PinsStayUntilTheSendersAreQuiet) {  // R6
  admit();
  open();
  prefill_done();
  const auto sends = all<SendChunk>(in(credit(2)));
  auto actions = in(wire::Cancel{address(), "client left", {1, 2}});
  EXPECT_TRUE(all<ReleasePins>(actions).empty());
  EXPECT_TRUE(all<ProducerHandoffEnded>(actions).empty());
  EXPECT_TRUE(all<SendFence>(actions).empty());  // Chunks may still be handed to the channels.
  sent(sends[0].chunk);
  EXPECT_EQ(state(), ProducerState::kQuiescing);
  actions = sent(sends[1].chunk, Error{Code::kUnavailable, "gone"});
  EXPECT_EQ(all<SendFence>(actions).size(), 2u);
  EXPECT_EQ(all<ReleasePins>(actions).size(), 1u);
  EXPECT_EQ(all<ProducerHandoffEnded>(actions).at(0).kind, TerminalKind::kCancelled);
}

TEST_F(ProducerTest, DoneAlsoWaitsForTheSenders) {  // R6: on success too.
  admit();
  open();
  prefill_done();
  const auto sends = all<SendChunk>(in(credit(3)));
  for (const SendChunk& send : sends) pack(send.chunk);
  call([&](auto& o) { core.seal_ready({kConsumer, 1}, 1, 1, {1, 2}, now, o); });
  EXPECT_TRUE(all<ReleasePins>(in(wire::Done{address()})).empty());
  EXPECT_EQ(frames<wire::Released>(in(wire::Cancel{address(), "", {}})).at(0).outcome,
            wire::ReleaseOutcome::kLate);
  sent(sends[0].chunk);
  sent(sends[1].chunk);
  EXPECT_EQ(all<ReleasePins>(sent(sends[2].chunk)).size(), 1u);
}

TEST_F(ProducerTest, AStoppedConsumerCantKeepThePages) {  // R12
  admit();
  open();
  prefill_done();
  const auto sends = all<SendChunk>(in(credit(3)));
  for (const SendChunk& send : sends) pack(send.chunk);
  now = now + seconds(10);
  auto actions = tick();  // The lease ends; nothing of it has been sent.
  EXPECT_TRUE(all<ReleasePins>(actions).empty());
  now = core.next_deadline();
  actions = tick();
  EXPECT_EQ(all<RevokeChannel>(actions).size(), 2u);
  EXPECT_EQ(all<ReleasePins>(actions).size(), 1u);
  EXPECT_EQ(all<ReservationEnded>(actions).at(0).kind, TerminalKind::kExpired);
}

TEST_F(ProducerTest, APackThatNeverReportsKeepsItsPagesAlone) {
  admit();
  open();
  prefill_done();
  const auto sends = all<SendChunk>(in(credit(1)));
  in(wire::Cancel{address(), "", {}});
  now = core.next_deadline();
  EXPECT_TRUE(all<ReleasePins>(tick()).empty());
  now = core.next_deadline();
  auto actions = tick();
  EXPECT_EQ(state(), ProducerState::kQuarantined);
  EXPECT_EQ(all<ReservationEnded>(actions).size(), 1u);
  EXPECT_EQ(ledger.held(Category::kQuarantine).bytes, 600u);
  EXPECT_EQ(all<ReleasePins>(sent(sends[0].chunk)).size(), 1u);
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ProducerTest, AnAbortedSlotGoesToAnotherConsumer) {
  admit();
  seal();
  const auto actions = in(wire::Abort{address(), Code::kCorrupt, "tile 3", {1, 2}});
  EXPECT_EQ(all<ProducerHandoffEnded>(actions).at(0).kind, TerminalKind::kCorrupt);
  EXPECT_TRUE(all<ReservationEnded>(actions).empty());
  EXPECT_EQ(state(), ProducerState::kPinned);
  EXPECT_EQ(all<MakePlan>(in(open_frame({{kOther, 1}, 1, 0}, kOtherSession), kOtherSession)).size(), 1u);
}

TEST_F(ProducerTest, PagesThatCantBePackedEndTheReservationALostChannelDoesnt) {
  admit();
  open();
  prefill_done();
  auto sends = all<SendChunk>(in(credit(1)));
  pack(sends.at(0).chunk);
  auto actions = sent(sends.at(0).chunk, Error{Code::kDeadlineExceeded, "the channel stalled"});
  EXPECT_TRUE(all<ReservationEnded>(actions).empty());
  EXPECT_EQ(state(), ProducerState::kPinned);
  open(2);
  sends = all<SendChunk>(in(credit(1, address(2))));
  actions = sent(sends.at(0).chunk, Error{Code::kCorrupt, "not a finite number"});
  EXPECT_EQ(frames<wire::Abort>(actions).at(0).code, Code::kCorrupt);
  EXPECT_EQ(all<ReservationEnded>(actions).at(0).kind, TerminalKind::kCorrupt);
}

TEST_F(ProducerTest, AnUnopenedReservationExpires) {
  admit();
  now = core.next_deadline();
  const auto actions = tick();
  EXPECT_EQ(all<ReservationEnded>(actions).at(0).kind, TerminalKind::kExpired);
  EXPECT_EQ(all<ReleasePins>(actions).size(), 1u);
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ProducerTest, CreditForSomethingOverIsAnsweredByFences) {
  admit();
  open();
  call([&](auto& o) { core.cancel(kReservation, Error{Code::kCancelled, "client left"}, now, o); });
  EXPECT_EQ(all<SendFence>(in(credit(3))).size(),
            2u);  // Crossed with the CANCEL: the consumer gets quiet all the same.
}

// --- Leases

TEST_F(ProducerTest, RenewNeedsProgressAndIsCapped) {
  admit();
  open();
  prefill_done();
  in(credit(2));
  const auto renew = [&](std::uint64_t number, std::uint32_t placed) {
    const auto answers = frames<wire::Renewed>(in(wire::Renew{{{address(), number, placed}}}));
    return answers.at(0).items.at(0).lease_ms;
  };
  now = now + seconds(4);
  EXPECT_EQ(renew(1, 0), 10'000u);  // Two chunks have been sent since.
  now = now + seconds(4);
  EXPECT_EQ(renew(2, 0), 6'000u);  // Nothing has moved, and the consumer is the one to grant credit.
  EXPECT_EQ(renew(3, 1), 10'000u);
  now = now + seconds(9);
  EXPECT_EQ(renew(4, 1), 1'000u);
  now = now + seconds(1);
  tick();
  EXPECT_EQ(renew(5, 2), 0u);
}

TEST_F(ProducerTest, ALeaseNeverReachesBeyondTheRequestsDeadline) {
  admit();
  open();
  in(credit(3));
  for (int i = 1; i < 8; ++i) {
    now = now + seconds(8);
    in(wire::Renew{
        {{address(), static_cast<std::uint64_t>(i), 0}}});  // Waits for our own prefill: granted each time.
    if (i < 7) {
      EXPECT_EQ(state(), ProducerState::kGrowing) << i;
    }
  }
  now = Instant{seconds(160)};
  EXPECT_EQ(all<ReservationEnded>(tick()).size(), 1u);
}

TEST_F(ProducerTest, RenewAfterSealRepeatsSeal) {
  admit();
  const wire::Seal sealed = seal();
  const auto actions = in(wire::Renew{{{address(), 1, 3}}});
  ASSERT_EQ(frames<wire::Seal>(actions).size(), 1u);
  EXPECT_EQ(frames<wire::Seal>(actions)[0].mac, sealed.mac);
}

TEST_F(ProducerTest, BoundsAnswerExhausted) {
  ProducerOptions options{"p1", {1, 20}, now, test_key(1), {source_descriptor()}, {}, {}};
  options.limits.reservations_max = 1;
  options.limits.sessions_max = 1;
  ProducerCore small(options, &ledger);
  ASSERT_TRUE(small.session_up(1, Peer{"d1", kConsumer, test_key(1), {}}, now, out).ok());
  EXPECT_EQ(small.session_up(2, Peer{"d2", kOther, test_key(1), {}}, now, out).code(), Code::kExhausted);
  ASSERT_TRUE(small.admitted(reservation(), now, out).ok());
  Reservation second = reservation();
  second.id = {5, 2};
  EXPECT_EQ(small.admitted(second, now, out).code(), Code::kExhausted);
  Reservation large = reservation();
  large.pinned = {20'000, 0};
  EXPECT_EQ(core.admitted(large, now, out).code(), Code::kExhausted);
}

}  // namespace
}  // namespace isthmus::handoff
