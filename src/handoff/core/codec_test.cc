// SPDX-License-Identifier: Apache-2.0
// Who may compress what: both cores, face to face.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "handoff/core/both_cores_test.h"
#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using namespace sim;
using std::chrono::seconds;
using wire::Codec;

constexpr SessionId kSession = TestCores::kSession, kNext = 2;
constexpr std::uint64_t kSlotBytes = kTestTile * 8;

PlanFacts facts_with(Codec codec) {
  PlanFacts facts = plan_facts({0, 600});
  facts.codec = codec;
  return facts;
}

struct Room {
  std::uint64_t at_producer = 2 * kSlotBytes, at_consumer = 10 * kSlotBytes;
  std::uint64_t early_bytes = 0;
};

// Up to where a test wants it.
class Pair : public TestCores {
 public:
  explicit Pair(Room room = {}, bool is_same_host = false)
      : TestCores({room.at_producer, room.at_consumer, room.early_bytes}, 1, is_same_host) {}

  void connect(SessionId session, bool is_same_host) { TestCores::connect(session, 1, is_same_host); }
  wire::Plan plan(const wire::Open& frame, Codec wanted = Codec::kZstdPlanes) {
    const auto asked = all<MakePlan>(to_p(frame));
    EXPECT_EQ(asked.size(), 1u);
    may_compress = asked.at(0).may_compress;
    return frames<wire::Plan>(at_p([&](auto& o) { p.plan_ready(handoff, 1, facts_with(wanted), now, o); }))
        .at(0);
  }
  // D has memory: its CREDIT.
  ConsumerActions reserve(const wire::Plan& plan) {
    to_d(plan);
    reserved = all<ReserveCapacity>(at_d([&](auto& o) { d.plan_ready(handoff, 1, facts_with({}), now, o); }));
    return at_d([&](auto& o) { d.capacity_ready(handoff, 1, now, o); });
  }
  std::vector<SendChunk> credit(const ConsumerActions& actions, SessionId session = kSession) {
    return all<SendChunk>(to_p(frames<wire::Credit>(actions).at(0), session));
  }
  wire::ChunkHeader header(const SendChunk& send, Codec codec, std::uint64_t stored) const {
    wire::ChunkHeader made =
        chunk_header(plan_facts({0, 600}), {send.chunk.handoff, send.chunk.attempt, send.chunk.generation},
                     send.chunk.index, send.slot);
    made.codec = codec;
    made.stored_bytes = stored;
    return made;
  }
  Result<Judgement> judge(const wire::ChunkHeader& header) {
    return d.judge({kSession, 1}, header, header.stored_bytes, now);
  }

  std::vector<ReserveCapacity> reserved;
  bool may_compress = false;
};

TEST(AgreedCodec, PlanNamesWhatOpenOffersAndThePriceWants) {
  Pair pair;
  const wire::Open open = pair.open();
  EXPECT_EQ(open.codecs, std::vector{Codec::kZstdPlanes});
  const wire::Plan plan = pair.plan(open);
  EXPECT_TRUE(pair.may_compress);
  EXPECT_EQ(plan.codec, Codec::kZstdPlanes);
  EXPECT_EQ(pair.at_producer.held(Category::kStaging).bytes, 2 * kSlotBytes);
  const auto sends = pair.credit(pair.reserve(plan));
  ASSERT_EQ(sends.size(), 3u);
  for (const SendChunk& send : sends) EXPECT_EQ(send.codec, Codec::kZstdPlanes);
  // Slots as ever, and room for a body and its planes.
  ASSERT_EQ(pair.reserved.size(), 1u);
  EXPECT_EQ(pair.reserved[0].codec_bytes, 2 * kSlotBytes);
  EXPECT_EQ(pair.at_consumer.held(Category::kStaging).bytes, (pair.reserved[0].slots + 2) * kSlotBytes);
}

TEST(AgreedCodec, ThePriceMayWantNone) {
  Pair pair;
  const wire::Plan plan = pair.plan(pair.open(), Codec::kNone);
  EXPECT_EQ(plan.codec, Codec::kNone);
  EXPECT_EQ(pair.at_producer.held(Category::kStaging).bytes, 0u);
  for (const SendChunk& send : pair.credit(pair.reserve(plan))) EXPECT_EQ(send.codec, Codec::kNone);
  EXPECT_EQ(pair.at_consumer.held(Category::kStaging).bytes, pair.reserved.at(0).slots * kSlotBytes);
}

TEST(AgreedCodec, AConsumerThatOffersNoneThatIsKnownGetsNone) {
  for (const std::vector<Codec>& offered : {std::vector<Codec>{}, {Codec::kNone}, {static_cast<Codec>(77)}}) {
    Pair pair;
    wire::Open open = pair.open();
    open.codecs = offered;
    EXPECT_EQ(pair.plan(open).codec, Codec::kNone);
    EXPECT_FALSE(pair.may_compress);
    EXPECT_EQ(pair.at_producer.held(Category::kStaging).bytes, 0u);
  }
}

TEST(AgreedCodec, WithinAHostAndForADirectReadThereIsNone) {
  Pair within({}, true);
  wire::Open open = within.open();
  EXPECT_TRUE(open.codecs.empty());
  open.codecs = {Codec::kZstdPlanes};  // P minds by itself.
  EXPECT_EQ(within.plan(open).codec, Codec::kNone);
  Pair direct;
  open = direct.open(true);
  EXPECT_TRUE(open.codecs.empty());
  open.codecs = {Codec::kZstdPlanes};
  EXPECT_EQ(direct.plan(open).codec, Codec::kNone);
}

TEST(AgreedCodec, WithoutStagingForItTheProducerSendsBodiesAsTheyAre) {
  Pair pair({.at_producer = 2 * kSlotBytes - 1});
  EXPECT_EQ(pair.plan(pair.open()).codec, Codec::kNone);
  EXPECT_EQ(pair.at_producer.held(Category::kStaging).bytes, 0u);
}

TEST(AgreedCodec, TheConsumersSlotsLeaveRoomForIt) {
  Pair pair({.at_consumer = 4 * kSlotBytes});
  pair.reserve(pair.plan(pair.open()));
  ASSERT_EQ(pair.reserved.size(), 1u);
  EXPECT_EQ(pair.reserved[0].slots, 2u);
  EXPECT_EQ(pair.at_consumer.free_staging(), 0u);
  Pair small({.at_consumer = 3 * kSlotBytes - 1});
  const auto actions = [&] {
    small.to_d(small.plan(small.open()));
    return small.at_d([&](auto& o) { small.d.plan_ready(small.handoff, 1, facts_with({}), small.now, o); });
  }();
  const auto ends = all<ConsumerHandoffEnded>(actions);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].kind, TerminalKind::kExhausted);
}

TEST(AgreedCodec, APlanWithACodecThatWasntOfferedIsRefused) {
  for (const auto& [same_host, direct] : {std::pair{true, false}, {false, true}}) {
    Pair pair({}, same_host);
    wire::Plan plan = pair.plan(pair.open(direct));
    plan.codec = Codec::kZstdPlanes;
    const auto ends = all<ConsumerHandoffEnded>(pair.to_d(plan));
    ASSERT_EQ(ends.size(), 1u);
    EXPECT_EQ(ends[0].kind, TerminalKind::kRejected);
    EXPECT_NE(ends[0].why.error().detail.find("codec 1 where OPEN doesn't offer it"), std::string::npos);
  }
}

TEST(AgreedCodec, AChunkMayHaveItOnlyWhereItWasAgreedOn) {
  for (const Codec agreed : {Codec::kNone, Codec::kZstdPlanes}) {
    Pair pair;
    const auto sends = pair.credit(pair.reserve(pair.plan(pair.open(), agreed)));
    const auto judged = pair.judge(pair.header(sends.at(0), Codec::kZstdPlanes, 100));
    EXPECT_EQ(judged.ok(), agreed == Codec::kZstdPlanes);
    if (judged.ok()) {
      EXPECT_TRUE(judged->place);
      EXPECT_EQ(judged->bytes, 100u);  // What lands; the slot is the body's.
    } else {
      EXPECT_EQ(judged.code(), Code::kMalformed);
      EXPECT_NE(judged.error().detail.find("codec 1 wasn't agreed on"), std::string::npos);
    }
  }
  Pair pair;  // What doesn't get smaller crosses as it is.
  const auto sends = pair.credit(pair.reserve(pair.plan(pair.open())));
  EXPECT_TRUE(pair.judge(pair.header(sends.at(0), Codec::kNone, kSlotBytes)).value().place);
}

TEST(AgreedCodec, ChunksThatComeEarlyHaveNone) {
  Pair pair({.at_consumer = 4 * 4800, .early_bytes = 4800});
  wire::Plan plan = pair.plan(pair.open());
  ASSERT_TRUE(plan.early);
  EXPECT_EQ(plan.codec, Codec::kNone);
  plan.codec = Codec::kZstdPlanes;
  EXPECT_EQ(all<ConsumerHandoffEnded>(pair.to_d(plan)).at(0).kind, TerminalKind::kRejected);
}

TEST(AgreedCodec, TheProducersStagingIsFreeOnceTheAttemptIsOver) {
  Pair pair;
  pair.plan(pair.open());
  EXPECT_EQ(pair.at_producer.held(Category::kStaging).bytes, 2 * kSlotBytes);
  pair.to_p(wire::Abort{{pair.handoff, 1, 1}, Code::kAborted, "not wanted", {}});
  EXPECT_EQ(pair.p.state_of(Pair::kReservation), ProducerState::kPinned);
  EXPECT_EQ(pair.at_producer.held(Category::kStaging).bytes, 0u);
}

// The next session may be another transport's.
TEST(AgreedCodec, AnAttemptThatResumesHasWhatItsOwnOpenOffers) {
  for (const bool is_same_host : {false, true}) {
    Pair pair;
    pair.credit(pair.reserve(pair.plan(pair.open())));
    pair.connect(kNext, is_same_host);
    pair.at_p([&](auto& o) { pair.p.session_down(kSession, pair.now, o); });
    const auto opens =
        frames<wire::Open>(pair.at_d([&](auto& o) { pair.d.session_down(kSession, pair.now, o); }));
    ASSERT_EQ(opens.size(), 1u);
    EXPECT_EQ(opens[0].codecs.empty(), is_same_host);
    const auto plans = frames<wire::Plan>(pair.to_p(opens[0], kNext));
    ASSERT_EQ(plans.size(), 1u);
    const Codec codec = is_same_host ? Codec::kNone : Codec::kZstdPlanes;
    EXPECT_EQ(plans[0].codec, codec);
    for (const SendChunk& send : pair.credit(pair.to_d(plans[0], kNext), kNext)) EXPECT_EQ(send.codec, codec);
    EXPECT_EQ(pair.at_producer.held(Category::kStaging).bytes, 2 * kSlotBytes);  // It may still be packing.
  }
}

TEST(AgreedCodec, MemoryThatWasReservedWithoutItIsntOfferedForIt) {
  Pair pair;
  pair.credit(pair.reserve(pair.plan(pair.open(), Codec::kNone)));
  pair.connect(kNext, false);
  const auto opens =
      frames<wire::Open>(pair.at_d([&](auto& o) { pair.d.session_down(kSession, pair.now, o); }));
  ASSERT_EQ(opens.size(), 1u);
  EXPECT_TRUE(opens[0].codecs.empty());
}

}  // namespace
}  // namespace isthmus::handoff
