// SPDX-License-Identifier: Apache-2.0
// The consumer's duties, one at a time. R-numbers are those of spec/handoff.md, "Rules".
#include "handoff/core/consumer.h"

#include <gtest/gtest.h>

#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using namespace sim;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr SessionId kSession = 1;
const Id128 kProducer{1, 20}, kConsumer{1, 10};
const ChannelId kFirst{kSession, 1}, kSecond{kSession, 2};

class ConsumerTest : public ::testing::Test {
 protected:
  ConsumerTest() {
    EXPECT_TRUE(
        core.session_up(kSession, Peer{"p1", kProducer, test_key(1), {source_descriptor()}}, now, out).ok());
    EXPECT_TRUE(core.channel_up(kFirst).ok());
    EXPECT_TRUE(core.channel_up(kSecond).ok());
  }

  Begin wish() {
    Begin made;
    made.session = kSession;
    made.ticket =
        *wire::mint({"p1", kProducer, {5, 1}, source_descriptor().digest(), {0, 600}, 10'000, {6, 1}, false},
                    test_key(1));
    made.target = target_descriptor().digest();
    made.wanted = {0, 600};
    made.token_digest = token_digest_of(600);
    made.deadline = now + seconds(60);
    made.destination = {600, 0};
    made.tag = 77;
    return made;
  }
  ConsumerActions begin() {
    ConsumerActions actions;
    const auto begun = core.begin(wish(), now, actions);
    EXPECT_TRUE(begun.ok()) << begun.error().text();
    handoff = *begun;
    return actions;
  }
  wire::Address address(std::uint32_t attempt = 1, std::uint32_t generation = 1) {
    return {handoff, attempt, generation};
  }
  wire::Plan plan_frame() {
    const PlanFacts facts = plan_facts({0, 600});
    const kv::Verdict verdict = kv::negotiate(source_descriptor(), target_descriptor(), {});
    return {address(),
            source_descriptor().digest(),
            {0, 600},
            verdict.kind,
            verdict.wire.text(),
            facts.digest,
            facts.chunk_count,
            facts.slot_bytes,
            facts.total_bytes,
            10'000};
  }
  ConsumerActions in(const wire::Frame& frame) {
    ConsumerActions actions;
    const Status status = core.frame_in(kSession, frame, now, actions);
    EXPECT_TRUE(status.ok()) << status.error().text();
    checked();
    return actions;
  }
  ConsumerActions tick() {
    return call([&](auto& o) { core.tick(now, o); });
  }
  template <typename Call>
  ConsumerActions call(Call event) {
    ConsumerActions actions;
    event(actions);
    checked();
    return actions;
  }
  void checked() {
    const Status status = core.check();
    EXPECT_TRUE(status.ok()) << status.error().text();
  }
  ConsumerActions plan_ready() {
    return call([&](auto& o) { core.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
  }
  // Up to CREDIT.
  ConsumerActions receive() {
    begin();
    in(plan_frame());
    plan_ready();
    return call([&](auto& o) { core.capacity_ready(handoff, 1, now, o); });
  }
  wire::ChunkHeader header(std::uint32_t index, std::uint32_t generation = 1) {
    return chunk_header(plan_facts({0, 600}), address(1, generation), index, index % 2);
  }
  Result<Judgement> judge(const wire::ChunkHeader& chunk, ChannelId channel = kFirst) {
    return core.judge(channel, chunk, chunk.stored_bytes, now);
  }
  ConsumerActions arrive(ChannelId channel = kFirst) {
    return call([&](auto& o) { core.chunk_arrived(channel, now, o); });
  }
  ConsumerActions placed(const PlaceChunk& place, Status status = {}) {
    return call([&](auto& o) { core.chunk_placed(place, status, now, o); });
  }
  // Chunk comes and is placed.
  ConsumerActions deliver(std::uint32_t index, std::uint32_t generation = 1) {
    const auto judgement = judge(header(index, generation));
    EXPECT_TRUE(judgement.ok()) << judgement.error().text();
    const auto places = all<PlaceChunk>(arrive());
    EXPECT_EQ(places.size(), 1u);
    return placed(places.at(0));
  }
  wire::Seal seal_frame(std::uint32_t generation = 1) {
    wire::Seal seal;
    seal.address = address(1, generation);
    seal.plan = plan_facts({0, 600}).digest;
    seal.tokens = {0, 600};
    seal.token_digest = token_digest_of(600);
    seal.tile_root = {1, 2};
    seal.first_tokens = {42};
    seal.mac = wire::seal_mac(test_key(1), seal);
    return seal;
  }
  ConsumerActions fence(ChannelId channel) {
    return call([&](auto& o) { core.fence_seen(channel, wire::fence_token(handoff, 1), now, o); });
  }
  ConsumerActions verified(Status status = {}) {
    return call([&](auto& o) { core.verified(handoff, 1, status, now, o); });
  }
  // All there is before verification; the last event's actions.
  ConsumerActions complete() {
    receive();
    for (std::uint32_t index = 0; index < 3; ++index) deliver(index);
    in(seal_frame());
    fence(kFirst);
    return fence(kSecond);
  }
  ConsumerState state() { return core.state_of(handoff).value_or(ConsumerState::kClosed); }

  Instant now{seconds(100)};
  Ledger ledger{Capacity{{1000, 0}, 2 * 256 * 8}};
  ConsumerCore core{ConsumerOptions{"d1", kConsumer, test_key(1), {target_descriptor()}, 2, {}, {}}, &ledger};
  ConsumerActions out;
  wire::HandoffId handoff;
};

TEST_F(ConsumerTest, AWholeHandoffIsOwnedAndReleased) {
  const auto opened = begin();
  const auto open = frames<wire::Open>(opened).at(0);
  EXPECT_EQ(open.proof, wire::open_proof(test_key(1), {6, 1}, handoff, 1));
  EXPECT_EQ(open.deadline_ms, 60'000u);
  EXPECT_EQ(all<MakePlan>(in(plan_frame())).size(), 1u);
  const auto reserve = all<ReserveCapacity>(plan_ready());
  ASSERT_EQ(reserve.size(), 1u);
  EXPECT_EQ(reserve[0].slots, 2u);
  EXPECT_EQ(ledger.held(Category::kIncoming).bytes, 600u);
  EXPECT_EQ(ledger.held(Category::kStaging).bytes, 2 * 256 * 8u);
  const auto credit = frames<wire::Credit>(call([&](auto& o) { core.capacity_ready(handoff, 1, now, o); }));
  ASSERT_EQ(credit.size(), 1u);
  EXPECT_EQ(credit[0].chunks_granted, 2u);
  EXPECT_EQ(credit[0].channels, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(frames<wire::Credit>(deliver(0)).at(0).chunks_granted, 3u);
  deliver(1);
  deliver(2);
  in(seal_frame());
  fence(kFirst);
  ASSERT_EQ(all<Verify>(fence(kSecond)).size(), 1u);
  const auto actions = verified();
  ASSERT_EQ(all<Own>(actions).size(), 1u);
  EXPECT_EQ(all<Own>(actions)[0].tag, 77u);
  EXPECT_EQ(all<Own>(actions)[0].seal.first_tokens, (std::vector<std::int32_t>{42}));
  EXPECT_EQ(all<ReleaseStaging>(actions).size(), 1u);
  EXPECT_EQ(all<ConsumerHandoffEnded>(actions).at(0).kind, TerminalKind::kOwned);
  EXPECT_EQ(frames<wire::Done>(actions).size(), 1u);
  EXPECT_EQ(ledger.held(Category::kActive).bytes, 600u);
  EXPECT_EQ(ledger.held(Category::kStaging).bytes, 0u);
  in(wire::Released{address(), wire::ReleaseOutcome::kDone});
  EXPECT_EQ(core.live(), 0u);
  EXPECT_EQ(core.next_deadline(), kFarFuture);
  ledger.release(all<Own>(actions)[0].destination);
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ConsumerTest, DoneIsRepeatedUntilReleasedAndThenGivenUp) {
  complete();
  verified();
  int sent = 0;
  while (core.next_deadline() != kFarFuture) {
    now = core.next_deadline();
    sent += static_cast<int>(frames<wire::Done>(tick()).size());
    ASSERT_LE(sent, 100);
  }
  EXPECT_EQ(sent, 10);
  EXPECT_EQ(core.live(), 0u);
}

// --- Before anything is sent

TEST_F(ConsumerTest, BadBeginningsHaveNoHandoff) {
  const auto code = [&](auto change) {
    Begin begin = wish();
    change(begin);
    return core.begin(std::move(begin), now, out).code();
  };
  const auto ticket = [&](std::string producer, Id128 incarnation, Digest128 descriptor, std::uint8_t key) {
    return *wire::mint(
        {std::move(producer), incarnation, {5, 1}, descriptor, {0, 600}, 10'000, {6, 1}, false},
        test_key(key));
  };
  const Digest128 source = source_descriptor().digest();
  EXPECT_EQ(code([](Begin& b) { b.session = 9; }), Code::kUnavailable);
  EXPECT_EQ(code([](Begin& b) { b.ticket = "no ticket"; }), Code::kMalformed);
  EXPECT_EQ(code([&](Begin& b) { b.ticket = ticket("p1", kProducer, source, 2); }), Code::kAborted);
  EXPECT_EQ(code([&](Begin& b) { b.ticket = ticket("p1", {1, 19}, source, 1); }), Code::kAborted);
  EXPECT_EQ(code([&](Begin& b) { b.ticket = ticket("p2", kProducer, source, 1); }), Code::kAborted);
  EXPECT_EQ(code([&](Begin& b) { b.ticket = ticket("p1", kProducer, {1, 1}, 1); }), Code::kIncompatible);
  EXPECT_EQ(code([](Begin& b) { b.target = {1, 1}; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](Begin& b) { b.wanted = {0, 599}; }), Code::kInvalidArgument);
  EXPECT_EQ(code([&](Begin& b) { b.deadline = now; }), Code::kDeadlineExceeded);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(core.live(), 0u);
}

TEST_F(ConsumerTest, AnIncompatibleSourceIsRefusedBeforeOpen) {
  kv::Descriptor other = source_descriptor();
  other.identity.rope_theta = 5;
  ASSERT_TRUE(core.session_up(3, Peer{"p3", {1, 23}, test_key(3), {other}}, now, out).ok());
  ASSERT_TRUE(core.channel_up({3, 1}).ok());
  Begin begin = wish();
  begin.session = 3;
  begin.ticket =
      *wire::mint({"p3", {1, 23}, {5, 1}, other.digest(), {0, 600}, 10'000, {6, 1}, false}, test_key(1));
  const auto refused = core.begin(begin, now, out);
  EXPECT_EQ(refused.code(), Code::kIncompatible);
  EXPECT_NE(refused.error().detail.find("rope_theta"), std::string::npos) << refused.error().detail;
}

TEST_F(ConsumerTest, CapacityIsReservedOnPlanNotBefore) {  // R10
  begin();
  EXPECT_EQ(ledger.live(), 0u);
  in(wire::Promised{address(), 1000});
  EXPECT_EQ(ledger.live(), 0u);
  in(plan_frame());
  EXPECT_EQ(ledger.live(), 0u);
  plan_ready();
  EXPECT_EQ(ledger.live(), 2u);
}

TEST_F(ConsumerTest, APlanThatIsntTheOwnAborts) {
  const std::vector<std::function<void(wire::Plan&)>> lies = {
      [](wire::Plan& p) { p.verdict = kv::VerdictKind::kDirect; },
      [](wire::Plan& p) { p.wire_text += "!"; },
      [](wire::Plan& p) { p.tokens.begin = 1; },
      [](wire::Plan& p) { p.source = {1, 1}; },
      [](wire::Plan& p) { p.chunk_count = 0; },
      [](wire::Plan& p) { p.chunk_count = ~0u; },
      [](wire::Plan& p) { p.plan = {1, 1}; },
      [](wire::Plan& p) { p.slot_bytes++; },
      [](wire::Plan& p) { p.total_bytes++; }};
  for (std::size_t i = 0; i < lies.size(); ++i) {
    begin();
    wire::Plan plan = plan_frame();
    lies[i](plan);
    ConsumerActions actions = in(plan);
    if (all<MakePlan>(actions).size() == 1) actions = plan_ready();
    EXPECT_EQ(frames<wire::Abort>(actions).size(), 1u) << i;
    ASSERT_EQ(all<ConsumerHandoffEnded>(actions).size(), 1u) << i;
    EXPECT_EQ(all<ConsumerHandoffEnded>(actions)[0].kind, TerminalKind::kRejected) << i;
    EXPECT_EQ(ledger.live(), 0u);
  }
}

TEST_F(ConsumerTest, BusyIsRetriedAsAnotherAttempt) {
  begin();
  in(wire::Busy{address(), 50});
  now = core.next_deadline();
  EXPECT_EQ(now, Instant{seconds(100)} + milliseconds(50));
  const auto open = frames<wire::Open>(tick());
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open[0].address.attempt, 2u);
  EXPECT_EQ(open[0].proof, wire::open_proof(test_key(1), {6, 1}, handoff, 2));
  in(plan_frame());  // An answer to the first attempt.
  EXPECT_EQ(state(), ConsumerState::kOpening);
}

TEST_F(ConsumerTest, WithoutAnAnswerOpenIsRepeatedAndThenTimesOut) {
  begin();
  int opens = 0;
  ConsumerActions last;
  while (state() == ConsumerState::kOpening) {
    now = core.next_deadline();
    last = tick();
    opens += static_cast<int>(frames<wire::Open>(last).size());
    ASSERT_LE(opens, 100);
  }
  EXPECT_EQ(opens, 9);
  EXPECT_EQ(now, Instant{seconds(110)});
  EXPECT_EQ(all<ConsumerHandoffEnded>(last).at(0).kind, TerminalKind::kTimedOut);
  EXPECT_NE(all<ConsumerHandoffEnded>(last)[0].why.error().detail.find("opening"), std::string::npos);
}

TEST_F(ConsumerTest, ARejectEndsItWithItsReason) {
  begin();
  const auto actions =
      in(wire::Reject{address(), Code::kAborted, "ticket refused", wire::TicketFault::kExpired, {}});
  const auto ended = all<ConsumerHandoffEnded>(actions);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].kind, TerminalKind::kRejected);
  EXPECT_EQ(ended[0].destination, Destination::kNone);
  EXPECT_NE(ended[0].why.error().detail.find("expired"), std::string::npos);
}

// --- Memory

TEST_F(ConsumerTest, WithoutMemoryItWaitsABoundedTimeAndSaysWhenToRetry) {
  const GrantId held = *ledger.grant(Category::kActive, {500, 0}, now + seconds(8));
  begin();
  in(plan_frame());
  EXPECT_TRUE(all<ReserveCapacity>(plan_ready()).empty());
  ConsumerActions last;
  while (state() == ConsumerState::kReserving) {
    now = core.next_deadline();
    last = tick();
    ASSERT_LE(now, Instant{seconds(120)});
  }
  const auto ended = all<ConsumerHandoffEnded>(last);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].kind, TerminalKind::kExhausted);
  EXPECT_EQ(ended[0].retry_after, seconds(3));
  EXPECT_EQ(frames<wire::Abort>(last).at(0).code, Code::kExhausted);
  ledger.release(held);
}

TEST_F(ConsumerTest, FreedMemoryGoesToWhoWaitsFirst) {
  const GrantId held = *ledger.grant(Category::kActive, {500, 0});
  begin();
  in(plan_frame());
  plan_ready();
  ledger.release(held);
  EXPECT_EQ(all<ReserveCapacity>(call([&](auto& o) { core.memory_freed(o); })).size(), 1u);
}

TEST_F(ConsumerTest, WhatCanNeverFitIsExhaustedAtOnce) {
  Begin large = wish();
  large.destination = {1001, 0};
  ConsumerActions actions;
  handoff = *core.begin(large, now, actions);
  in(plan_frame());
  EXPECT_EQ(all<ConsumerHandoffEnded>(plan_ready()).at(0).kind, TerminalKind::kExhausted);
}

// --- Chunks

TEST_F(ConsumerTest, AChunkThatIsntThePlansClosesItsChannel) {
  receive();
  const std::vector<std::pair<std::string, std::function<void(wire::ChunkHeader&)>>> lies = {
      {"plan", [](wire::ChunkHeader& h) { h.plan = {1, 1}; }},
      {"credit", [](wire::ChunkHeader& h) { h.index = 2; }},
      {"slot", [](wire::ChunkHeader& h) { h.slot = 1; }},
      {"group", [](wire::ChunkHeader& h) { h.group = 1; }},
      {"head end", [](wire::ChunkHeader& h) { h.box.head_end = 3; }},
      {"token end", [](wire::ChunkHeader& h) { h.box.tokens.end = 255; }},
      {"raw bytes", [](wire::ChunkHeader& h) { h.raw_bytes = h.stored_bytes = 8; }},
      {"tile digests", [](wire::ChunkHeader& h) { h.tiles.clear(); }},
      {"isn't one that this agent began", [](wire::ChunkHeader& h) { h.address.handoff.sequence = 99; }},
      {"isn't one that this agent began", [](wire::ChunkHeader& h) { h.address.handoff.consumer = {9, 9}; }}};
  for (const auto& [what, lie] : lies) {
    wire::ChunkHeader chunk = header(0);
    lie(chunk);
    const auto judgement = judge(chunk);
    ASSERT_FALSE(judgement.ok()) << what;
    EXPECT_EQ(judgement.code(), Code::kMalformed);
    EXPECT_NE(judgement.error().detail.find(what), std::string::npos) << judgement.error().detail;
  }
  EXPECT_EQ(core.judge(kFirst, header(0), 1, now).code(), Code::kMalformed);  // Payload of another length.
  EXPECT_EQ(judge(header(0), {kSession, 9}).code(), Code::kMalformed);        // Not a channel of ours.
  EXPECT_TRUE(judge(header(0)).ok());
  EXPECT_FALSE(judge(header(1)).ok());  // The first has not arrived yet.
}

TEST_F(ConsumerTest, StaleAndRepeatedChunksAreReadAndDropped) {  // R3
  receive();
  wire::ChunkHeader stale = header(0);
  stale.address.attempt = 2;
  EXPECT_FALSE(judge(stale)->place);
  EXPECT_TRUE(all<PlaceChunk>(arrive()).empty());
  EXPECT_FALSE(judge(header(0, 2))->place);
  arrive();
  deliver(0);
  EXPECT_FALSE(judge(header(0))->place);
  EXPECT_TRUE(all<PlaceChunk>(arrive()).empty());
  stale.stored_bytes = std::uint64_t{65} << 20;
  EXPECT_EQ(judge(stale).code(), Code::kMalformed);  // But not of any size.
}

TEST_F(ConsumerTest, ACorruptChunkEndsTheAttempt) {
  receive();
  ASSERT_TRUE(judge(header(0)).ok());
  const auto place = all<PlaceChunk>(arrive()).at(0);
  const auto actions = placed(place, Error{Code::kCorrupt, "tile (0, k, 1)"});
  EXPECT_EQ(frames<wire::Abort>(actions).at(0).code, Code::kCorrupt);
  EXPECT_TRUE(all<ConsumerHandoffEnded>(actions).empty());  // Not before it is quiet.
  fence(kFirst);
  const auto ended = all<ConsumerHandoffEnded>(fence(kSecond));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].kind, TerminalKind::kCorrupt);
  EXPECT_EQ(ended[0].destination, Destination::kFreed);
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ConsumerTest, RestartVoidsWhatHasCome) {  // R9
  receive();
  deliver(0);
  ASSERT_TRUE(judge(header(1)).ok());  // On its way when RESTART comes.
  const auto restarted = in(wire::Restart{address(1, 2)});
  ASSERT_EQ(all<VoidChunks>(restarted).size(), 1u);
  EXPECT_EQ(frames<wire::Credit>(restarted).at(0).address.generation, 2u);
  EXPECT_EQ(frames<wire::Credit>(restarted)[0].chunks_granted,
            1u);  // Slot 1 is still being filled by the void chunk.
  const auto arrived = arrive();
  EXPECT_TRUE(all<PlaceChunk>(arrived).empty());
  EXPECT_EQ(frames<wire::Credit>(arrived).at(0).chunks_granted, 2u);
  EXPECT_FALSE(judge(header(1))->place);  // The old generation's.
  arrive();
  EXPECT_TRUE(in(seal_frame(1)).empty());  // So is its SEAL.
  for (std::uint32_t index = 0; index < 3; ++index) deliver(index, 2);
  fence(kFirst);
  EXPECT_TRUE(all<Verify>(fence(kSecond)).empty());
  EXPECT_EQ(all<Verify>(in(seal_frame(2))).size(), 1u);
}

// --- SEAL and owning

TEST_F(ConsumerTest, NothingIsOwnedWithAChannelOpen) {  // R13
  receive();
  for (std::uint32_t index = 0; index < 3; ++index) deliver(index);
  EXPECT_TRUE(all<Verify>(in(seal_frame())).empty());
  EXPECT_TRUE(all<Verify>(fence(kFirst)).empty());
  EXPECT_TRUE(all<Verify>(fence(kFirst)).empty());  // The same channel again is no second one.
  EXPECT_TRUE(all<Verify>(call([&](auto& o) {
                core.fence_seen(kSecond, wire::fence_token(handoff, 2), now, o);
              })).empty());
  EXPECT_EQ(state(), ConsumerState::kReceiving);
  EXPECT_EQ(all<Verify>(fence(kSecond)).size(), 1u);
}

TEST_F(ConsumerTest, AClosedChannelIsAsGoodAsAFencedOne) {
  receive();
  for (std::uint32_t index = 0; index < 3; ++index) deliver(index);
  in(seal_frame());
  fence(kFirst);
  EXPECT_EQ(all<Verify>(call([&](auto& o) { core.channel_down(kSecond, {}, now, o); })).size(), 1u);
}

TEST_F(ConsumerTest, AChunkAfterTheFenceIsAViolation) {
  receive();
  fence(kFirst);
  EXPECT_EQ(judge(header(0)).code(), Code::kMalformed);
  EXPECT_TRUE(judge(header(0), kSecond).ok());
}

TEST_F(ConsumerTest, SealedAndFencedWithAChunkMissingIsCorrupt) {
  receive();
  deliver(0);
  in(seal_frame());
  fence(kFirst);
  EXPECT_EQ(all<ConsumerHandoffEnded>(fence(kSecond)).at(0).kind, TerminalKind::kCorrupt);
}

TEST_F(ConsumerTest, SealAloneOwnsNothing) {  // R7: proof is the bytes', not a deadline's or a message's.
  const auto actions = complete();
  EXPECT_EQ(all<Verify>(actions).size(), 1u);
  EXPECT_TRUE(all<Own>(actions).empty());
  const auto refused = verified(Error{Code::kCorrupt, "root differs"});
  EXPECT_TRUE(all<Own>(refused).empty());
  EXPECT_EQ(frames<wire::Abort>(refused).at(0).code, Code::kCorrupt);
  EXPECT_EQ(all<ConsumerHandoffEnded>(refused).at(0).kind, TerminalKind::kCorrupt);
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ConsumerTest, AForgedOrForeignSealIsRefused) {
  const std::vector<std::pair<TerminalKind, std::function<void(wire::Seal&)>>> lies = {
      {TerminalKind::kCorrupt, [](wire::Seal& s) { s.mac[3] ^= std::byte{1}; }},
      {TerminalKind::kCorrupt, [](wire::Seal& s) { s.first_tokens[0]++; }},
      {TerminalKind::kCorrupt,
       [](wire::Seal& s) {
         s.plan = {1, 1};
         s.mac = wire::seal_mac(test_key(1), s);
       }},
      {TerminalKind::kCorrupt,
       [](wire::Seal& s) {
         s.tokens = {0, 599};
         s.mac = wire::seal_mac(test_key(1), s);
       }},
      {TerminalKind::kRejected, [](wire::Seal& s) {
         s.token_digest = {1, 1};
         s.mac = wire::seal_mac(test_key(1), s);
       }}};
  for (const auto& [kind, lie] : lies) {
    receive();
    wire::Seal seal = seal_frame();
    lie(seal);
    EXPECT_EQ(frames<wire::Abort>(in(seal)).size(), 1u);
    fence(kFirst);
    EXPECT_EQ(all<ConsumerHandoffEnded>(fence(kSecond)).at(0).kind, kind);
  }
}

TEST_F(ConsumerTest, AnAbortAfterSealTakesNothingBack) {
  receive();
  for (std::uint32_t index = 0; index < 3; ++index) deliver(index);
  in(seal_frame());
  in(wire::Abort{address(), Code::kAborted, "the lease ran out", {}});
  EXPECT_EQ(state(), ConsumerState::kReceiving);
  call([&](auto& o) { core.session_down(kSession, now, o); });  // Nor does a lost session.
  EXPECT_EQ(state(), ConsumerState::kVerifying);
  EXPECT_EQ(all<Own>(verified()).size(), 1u);
}

TEST_F(ConsumerTest, AFinishedSealNeedsNoChunks) {
  begin();
  in(plan_frame());
  wire::Seal seal = seal_frame();
  seal.finish = wire::FinishState::kStop;
  seal.mac = wire::seal_mac(test_key(1), seal);
  const auto actions = in(seal);
  EXPECT_EQ(frames<wire::Done>(actions).size(), 1u);
  const auto ended = all<ConsumerHandoffEnded>(actions);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].kind, TerminalKind::kFinished);
  EXPECT_EQ(ended[0].seal->first_tokens, (std::vector<std::int32_t>{42}));
}

// --- Leases

TEST_F(ConsumerTest, TheLeaseCountsFromTheSendingOfOpen) {  // R4
  begin();
  now = now + seconds(8);
  in(plan_frame());  // Ten seconds of lease, eight of which are over.
  plan_ready();
  call([&](auto& o) { core.capacity_ready(handoff, 1, now, o); });
  now = Instant{seconds(109)} + milliseconds(499);
  tick();
  EXPECT_EQ(state(), ConsumerState::kReceiving);
  now = Instant{seconds(109)} + milliseconds(500);  // Less the margin.
  const auto actions = tick();
  EXPECT_EQ(state(), ConsumerState::kQuiescing);
  EXPECT_EQ(frames<wire::Abort>(actions).size(), 1u);
}

TEST_F(ConsumerTest, ARenewedLeaseCountsFromTheSendingOfThatRenew) {  // R4
  receive();
  now = Instant{seconds(103)};
  const auto renew = frames<wire::Renew>(tick()).at(0).items.at(0);
  now = now + seconds(6);
  in(wire::Renewed{{{address(), renew.number + 7, 60'000}}});  // Not an answer to it.
  in(wire::Renewed{{{address(), renew.number, 10'000}}});      // Three to thirteen.
  now = Instant{seconds(112)} + milliseconds(499);
  tick();
  EXPECT_EQ(state(), ConsumerState::kReceiving);
  now = Instant{seconds(112)} + milliseconds(500);
  tick();
  EXPECT_EQ(state(), ConsumerState::kQuiescing);
}

TEST_F(ConsumerTest, RenewTellsProgressAndAnUnknownLeaseEndsIt) {
  receive();
  deliver(0);
  now = Instant{seconds(103)};
  const auto renew = frames<wire::Renew>(tick()).at(0).items.at(0);
  EXPECT_EQ(renew.chunks_placed, 1u);
  in(wire::Renewed{{{address(), renew.number, 0}}});
  fence(kFirst);
  EXPECT_EQ(all<ConsumerHandoffEnded>(fence(kSecond)).at(0).kind, TerminalKind::kExpired);
}

TEST_F(ConsumerTest, ManyLeasesAreRenewedInOneFrame) {
  for (int i = 0; i < 5; ++i) {
    Begin small = wish();
    small.destination = {10, 0};
    ConsumerActions actions;
    handoff = *core.begin(small, now, actions);
    in(plan_frame());
  }
  now = now + seconds(3);
  const auto renews = frames<wire::Renew>(tick());
  ASSERT_EQ(renews.size(), 1u);
  EXPECT_EQ(renews[0].items.size(), 5u);
}

TEST_F(ConsumerTest, AfterAPromiseTheFirstRenewedGivesTheLease) {
  begin();
  in(wire::Promised{address(), 30'000});
  now = now + seconds(20);
  in(plan_frame());
  EXPECT_EQ(state(), ConsumerState::kPlanning);
  const auto renew = frames<wire::Renew>(tick()).at(0).items.at(0);
  in(wire::Renewed{{{address(), renew.number, 10'000}}});
  plan_ready();
  call([&](auto& o) { core.capacity_ready(handoff, 1, now, o); });
  now = now + milliseconds(9500);
  tick();
  EXPECT_EQ(state(), ConsumerState::kQuiescing);
}

// --- Ends

TEST_F(ConsumerTest, MemoryIsFreedOnlyWhenNothingCanWriteIt) {  // R12
  receive();
  ASSERT_TRUE(judge(header(0)).ok());
  ASSERT_TRUE(judge(header(1), kSecond).ok());
  const auto place = all<PlaceChunk>(arrive()).at(0);
  auto actions = call([&](auto& o) { core.cancel(handoff, Error{Code::kCancelled, "client left"}, now, o); });
  EXPECT_EQ(frames<wire::Cancel>(actions).at(0).channels, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_TRUE(all<ReleaseDestination>(actions).empty());
  now = core.next_deadline();  // The producer is stopped: no fence ever comes.
  actions = tick();
  EXPECT_EQ(all<RevokeChannel>(actions).size(), 2u);
  EXPECT_TRUE(all<ReleaseDestination>(actions).empty());  // A placement still runs.
  actions = placed(place);
  EXPECT_EQ(all<ReleaseStaging>(actions).size(), 1u);
  EXPECT_EQ(all<ReleaseDestination>(actions).size(), 1u);
  EXPECT_EQ(all<ConsumerHandoffEnded>(actions).at(0).kind, TerminalKind::kCancelled);
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ConsumerTest, APlacementThatNeverReportsQuarantinesTheDestination) {
  receive();
  ASSERT_TRUE(judge(header(0)).ok());
  const auto place = all<PlaceChunk>(arrive()).at(0);
  call([&](auto& o) { core.cancel(handoff, Error{Code::kCancelled, "client left"}, now, o); });
  now = core.next_deadline();
  tick();
  now = core.next_deadline();
  auto actions = tick();
  EXPECT_EQ(all<ConsumerHandoffEnded>(actions).at(0).destination, Destination::kQuarantined);
  EXPECT_TRUE(all<ReleaseDestination>(actions).empty());
  EXPECT_EQ(ledger.held(Category::kQuarantine).bytes, 600u);
  EXPECT_EQ(core.quarantined(), 1u);
  actions = placed(place);
  EXPECT_EQ(all<ReleaseDestination>(actions).size(), 1u);
  EXPECT_TRUE(all<ConsumerHandoffEnded>(actions).empty());
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ConsumerTest, ALostSessionRevokesItsChannelsFirst) {
  receive();
  const auto actions = call([&](auto& o) { core.session_down(kSession, now, o); });
  ASSERT_EQ(all<RevokeChannel>(actions).size(), 2u);
  EXPECT_TRUE(std::holds_alternative<RevokeChannel>(actions.front()));
}

// --- Resuming

TEST_F(ConsumerTest, ALostSessionKeepsWhatHasCome) {
  receive();
  deliver(0);
  const auto lost = call([&](auto& o) { core.session_down(kSession, now, o); });
  ASSERT_EQ(all<NeedSession>(lost).size(), 1u);
  EXPECT_EQ(all<NeedSession>(lost)[0].tag, 77u);
  EXPECT_TRUE(all<ReleaseDestination>(lost).empty());
  EXPECT_EQ(state(), ConsumerState::kResuming);

  ASSERT_TRUE(core.session_up(2, Peer{"p1", kProducer, test_key(2), {source_descriptor()}}, now, out).ok());
  ASSERT_TRUE(core.channel_up({2, 1}).ok());
  const auto opened = call([&](auto& o) { core.session_found(handoff, 2, now, o); });
  const auto open = frames<wire::Open>(opened).at(0);
  EXPECT_EQ(open.address, address(2));
  EXPECT_TRUE(open.resumes);
  EXPECT_EQ(open.missing, (std::vector<wire::ChunkRange>{{1, 3}}));
  EXPECT_EQ(open.proof, wire::open_proof(test_key(2), {6, 1}, handoff, 2));

  wire::Plan plan = plan_frame();
  plan.address.attempt = 2;
  plan.resumed = true;
  ConsumerActions actions;
  ASSERT_TRUE(core.frame_in(2, plan, now, actions).ok());
  const auto credit = frames<wire::Credit>(actions).at(0);  // Memory is there: no other is asked for.
  EXPECT_EQ(credit.chunks_granted, 2u);                     // Of those that are missing.
  EXPECT_EQ(credit.channels, (std::vector<std::uint32_t>{1}));
  EXPECT_TRUE(all<ReserveCapacity>(actions).empty());
  wire::ChunkHeader second = header(1);  // The first one that is missing: slot 0.
  second.address.attempt = 2;
  EXPECT_EQ(judge(second, {2, 1}).code(), Code::kMalformed);
  second.slot = 0;
  ASSERT_TRUE(judge(second, {2, 1}).ok());
  ASSERT_EQ(all<PlaceChunk>(arrive({2, 1})).at(0).index, 1u);
  wire::ChunkHeader have = header(0);
  have.address.attempt = 2;
  EXPECT_EQ(judge(have, {2, 1}).code(), Code::kMalformed);  // It isn't wanted.
}

TEST_F(ConsumerTest, APlanThatDoesNotResumeVoidsWhatHasCome) {
  receive();
  deliver(0);
  in(wire::Busy{address(), 0});  // The producer has lost a channel.
  EXPECT_EQ(state(), ConsumerState::kOpening);
  wire::Plan plan = plan_frame();
  plan.address = address(2, 2);
  const auto actions = in(plan);
  EXPECT_EQ(all<VoidChunks>(actions).at(0).generation, 2u);
  EXPECT_EQ(frames<wire::Credit>(actions).at(0).chunks_granted, 2u);
  wire::ChunkHeader first = header(0, 2);
  first.address.attempt = 2;
  EXPECT_TRUE(judge(first)->place);
}

TEST_F(ConsumerTest, APlanCannotResumeAnotherGeneration) {  // R9
  receive();
  deliver(0);
  in(wire::Busy{address(), 0});
  wire::Plan plan = plan_frame();
  plan.address = address(2, 2);
  plan.resumed = true;
  EXPECT_EQ(frames<wire::Abort>(in(plan)).at(0).code, Code::kIncompatible);
}

TEST_F(ConsumerTest, TheNextAttemptWaitsForWhatIsBeingPlaced) {
  receive();
  ASSERT_TRUE(judge(header(0)).ok());
  const auto place = all<PlaceChunk>(arrive()).at(0);
  EXPECT_TRUE(frames<wire::Open>(in(wire::Busy{address(), 0})).empty());
  const auto open = frames<wire::Open>(placed(place)).at(0);
  EXPECT_EQ(open.missing, (std::vector<wire::ChunkRange>{{1, 3}}));
}

TEST_F(ConsumerTest, ALostChannelOpensTheNextAttemptOnAnotherOne) {
  receive();
  ASSERT_TRUE(judge(header(0)).ok());
  const auto actions = call([&](auto& o) { core.channel_down(kFirst, {}, now, o); });
  EXPECT_EQ(frames<wire::Open>(actions).at(0).address.attempt, 2u);
  EXPECT_FALSE(frames<wire::Open>(actions)[0].resumes);
  EXPECT_TRUE(all<NeedSession>(actions).empty());
}

TEST_F(ConsumerTest, WithoutAWayToTheProducerResumingEnds) {
  receive();
  call([&](auto& o) { core.session_down(kSession, now, o); });
  const Error why{Code::kUnavailable, "nobody answers"};
  const auto actions = call([&](auto& o) { core.session_refused(handoff, why, now, o); });
  EXPECT_EQ(all<ConsumerHandoffEnded>(actions).at(0).kind, TerminalKind::kPeerLost);
  EXPECT_EQ(all<ReleaseDestination>(actions).size(), 1u);
  EXPECT_EQ(ledger.live(), 0u);
}

TEST_F(ConsumerTest, AnotherLifeOfTheProducerResumesNothing) {
  receive();
  call([&](auto& o) { core.session_down(kSession, now, o); });
  ASSERT_TRUE(core.session_up(2, Peer{"p1", {1, 21}, test_key(2), {source_descriptor()}}, now, out).ok());
  ASSERT_TRUE(core.channel_up({2, 1}).ok());
  const auto actions = call([&](auto& o) { core.session_found(handoff, 2, now, o); });
  EXPECT_EQ(all<ConsumerHandoffEnded>(actions).at(0).kind, TerminalKind::kPeerLost);
}

TEST_F(ConsumerTest, ResumingHasADeadlineAndABound) {
  receive();
  call([&](auto& o) { core.session_down(kSession, now, o); });
  now = now + seconds(5);
  EXPECT_EQ(all<ConsumerHandoffEnded>(tick()).at(0).kind, TerminalKind::kPeerLost);
}

TEST_F(ConsumerTest, TheRequestsDeadlineEndsAnyState) {
  receive();
  now = now + seconds(60);
  const auto actions = tick();
  EXPECT_EQ(frames<wire::Cancel>(actions).size(), 1u);
  fence(kFirst);
  EXPECT_EQ(all<ConsumerHandoffEnded>(fence(kSecond)).at(0).why.code(), Code::kDeadlineExceeded);
}

TEST_F(ConsumerTest, CancelAfterOwningIsNothing) {
  complete();
  verified();
  EXPECT_TRUE(
      call([&](auto& o) { core.cancel(handoff, Error{Code::kCancelled, "client left"}, now, o); }).empty());
}

TEST_F(ConsumerTest, FramesOfNoHandoffOfOursAreMalformed) {
  begin();
  ConsumerActions actions;
  EXPECT_EQ(core.frame_in(kSession, wire::Restart{{{kConsumer, 99}, 1, 1}}, now, actions).code(),
            Code::kMalformed);
  EXPECT_EQ(core.frame_in(kSession, wire::Restart{{{{9, 9}, 1}, 1, 1}}, now, actions).code(),
            Code::kMalformed);
  ASSERT_TRUE(core.session_up(2, Peer{"p2", {1, 22}, test_key(2), {}}, now, actions).ok());
  EXPECT_EQ(core.frame_in(2, wire::Restart{address()}, now, actions).code(),
            Code::kMalformed);  // Not its producer.
  EXPECT_TRUE(actions.empty());
}

TEST_F(ConsumerTest, BoundsAnswerExhausted) {
  ConsumerOptions options{"d1", kConsumer, test_key(1), {target_descriptor()}, 2, {}, {}};
  options.limits.handoffs_max = 1;
  options.limits.sessions_max = 1;
  ConsumerCore small(options, &ledger);
  ASSERT_TRUE(
      small.session_up(kSession, Peer{"p1", kProducer, test_key(1), {source_descriptor()}}, now, out).ok());
  EXPECT_EQ(small.session_up(2, Peer{"p2", {1, 22}, test_key(1), {}}, now, out).code(), Code::kExhausted);
  EXPECT_EQ(small.begin(wish(), now, out).code(), Code::kUnavailable);  // No data channel yet.
  for (std::uint32_t number = 1; number <= wire::kChannelsMax; ++number)
    ASSERT_TRUE(small.channel_up({kSession, number}).ok());
  EXPECT_EQ(small.channel_up({kSession, 99}).code(), Code::kExhausted);
  ASSERT_TRUE(small.begin(wish(), now, out).ok());
  EXPECT_EQ(small.begin(wish(), now, out).code(), Code::kExhausted);
}

}  // namespace
}  // namespace isthmus::handoff
