// SPDX-License-Identifier: Apache-2.0
// States on several ranks: handed over whole between unlike groups, or by nobody owned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "groups/crossing.h"
#include "groups/side.h"
#include "net/run_until.h"
#include "support/tcp_relay.h"

namespace isthmus::groups {
namespace {

using engine::ReferenceAttention;
using handoff::ConsumerState;
using handoff::TerminalKind;
using testing::AnyOf;
using testing::HasSubstr;

constexpr std::string_view kTcp = "tcp://";

// One state on its way from a producer's ranks to a consumer's, all on one loop.
class Crossing {
 public:
  Crossing(const std::string& transport, const engine::ReferenceOptions& prefill,
           const engine::ReferenceOptions& decode, const handoff::Timings& timings = {})
      : decode_options(decode), p(loop, transport, prefill, timings), d(loop, transport, decode, timings) {
    d.take_lead(timings);
  }

  void offer() {
    const Status made = p.offer(d.engine().descriptor());
    ASSERT_TRUE(made.ok()) << made.error().text();
    members = p.offered->members();
  }
  void fetch() {
    const Status begun = d.fetch(members);
    ASSERT_TRUE(begun.ok()) << begun.error().text();
  }
  [[nodiscard]] bool until(const std::function<bool()>& holds) {
    return net::run_until(loop, holds, kPatience);
  }

  // Nobody owns anything; all is given back at both ends, and the decoder can compute the answer itself.
  void expect_nothing_owned() {
    EXPECT_EQ(d.entered(ConsumerState::kOwned), 0);
    EXPECT_TRUE(d.grants.empty());
    EXPECT_TRUE(until([&] { return p.is_bare() && d.is_bare(); })) << p.holdings() << d.holdings();
    EXPECT_EQ(d.answer_alone(), alone(decode_options, prompt));
  }

  engine::ReferenceOptions decode_options;
  Tokens prompt = prompt_of(kPrompt);
  net::Loop loop;
  Producing p;
  Consuming d;
  std::vector<handoff::MemberTicket> members;
};

// Every byte of every rank, and what follows.
void expect_as_one_engine(Crossing& crossing) {
  const auto one = *engine::make_reference(crossing.decode_options);
  const engine::SequenceId sequence = *one->open(kPrompt + kAnswerTokens);
  const engine::TokenId first = best(run(*one, sequence, crossing.prompt));
  ASSERT_THAT(crossing.d.sealed.first_tokens, testing::ElementsAre(first));
  const kv::TokenRange all{0, kPrompt};
  const auto expected = *one->bindings(sequence, all);
  const auto handed_over = *crossing.d.engine().bindings(crossing.d.target, all);
  ASSERT_EQ(handed_over.size(), expected.size());
  const bool is_whole = crossing.decode_options.shape.attention != ReferenceAttention::kSlidingMix;
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    for (std::size_t g = 0; g < expected[rank].groups.size() && (is_whole || g == 0); ++g) {
      const auto &have = handed_over[rank].groups[g].memory, &want = expected[rank].groups[g].memory;
      ASSERT_EQ(have.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(std::span(have[i].base, have[i].bytes),
                                       std::span(want[i].base, want[i].bytes)))
            << "rank " << rank << ", group " << g << ", region " << want[i].region;
      }
    }
  }
  EXPECT_EQ(crossing.d.answer(), go_on(*one, sequence, first));
  EXPECT_EQ(crossing.d.engine().usage().tokens_computed, kAnswerTokens) << "it computed what P had";
}

struct Pair {
  const char* name;
  engine::ReferenceOptions prefill, decode;
  std::size_t members;
};

class Groups : public testing::TestWithParam<std::tuple<Pair, const char*>> {};

TEST_P(Groups, AStateOfUnlikeRanksArrivesAsOneEngineWouldHaveIt) {
  const auto& [pair, transport] = GetParam();
  Crossing crossing(transport, pair.prefill, pair.decode);
  crossing.offer();
  EXPECT_EQ(crossing.members.size(), pair.members);
  crossing.fetch();
  crossing.p.publish(kPrompt);
  crossing.p.seal();
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over && crossing.p.released.has_value(); }))
      << crossing.p.holdings() << crossing.d.holdings();
  ASSERT_EQ(crossing.d.ending.kind, TerminalKind::kOwned) << crossing.d.ending.error.text();
  EXPECT_EQ(*crossing.p.released, TerminalKind::kDone);
  expect_as_one_engine(crossing);
  crossing.d.give_up_memory();
  EXPECT_TRUE(crossing.until([&] { return crossing.p.is_bare() && crossing.d.is_bare(); }))
      << crossing.p.holdings() << crossing.d.holdings();
}

const Pair kPairs[] = {
    // Three heads a rank to two: the middle rank reads from both.
    {"TwoToThree", options_of("vllm:flash_nhd", {2}), options_of("vllm:flash_hnd", {3}), 4},
    // And none as many heads as another.
    {"UnevenHeads", prefiller(), decoder(), 4},
    {"ThreeToOne", options_of("vllm:flash_nhd", {3}), options_of("vllm:flash_hnd", {1}), 3},
    {"OneToThree", options_of("vllm:flash_nhd", {1}), options_of("vllm:flash_hnd", {3}), 3},
    {"PipelineToTensor", options_of("vllm:flash_hnd", {1, 3}), options_of("vllm:flash_nhd", {2}), 6},
    // Of copies some are read by nobody, and each is written.
    {"CopiesToFewer", options_of("vllm:flash_nhd", {6}, ReferenceAttention::kFull, 3),
     options_of("vllm:flash_hnd", {3}, ReferenceAttention::kFull, 3), 3},
    {"ToCopies", options_of("vllm:flash_nhd", {2}, ReferenceAttention::kFull, 2),
     options_of("vllm:flash_hnd", {4}, ReferenceAttention::kFull, 2), 4},
    {"SlidingMix", options_of("vllm:flash_nhd", {2, 2}, ReferenceAttention::kSlidingMix),
     options_of("vllm:flash_hnd", {3}, ReferenceAttention::kSlidingMix), 8},
    {"Mla", options_of("vllm:mla_bf16", {2, 3}, ReferenceAttention::kMla),
     options_of("ascend:mla_nz", {2}, ReferenceAttention::kMla), 6},
};

INSTANTIATE_TEST_SUITE_P(Ranks, Groups,
                         testing::Combine(testing::ValuesIn(kPairs), testing::Values("tcp", "shm")),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + std::get<1>(each.param);
                         });

Crossing two_to_three(const std::string& transport) {
  return {transport, options_of("vllm:flash_nhd", {2}), options_of("vllm:flash_hnd", {3}), hasty()};
}

class GroupFaults : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, GroupFaults, testing::Values("tcp", "shm"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(GroupFaults, ARankOfTheConsumerThatDiesEndsTheGroup) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.fetch();
  crossing.p.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_moving(); }));
  crossing.d.kill(1);
  crossing.d.lead->rank_lost(1);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over && crossing.p.released.has_value(); }));
  EXPECT_EQ(crossing.d.ending.kind, TerminalKind::kPeerLost);
  EXPECT_THAT(crossing.d.ending.error.text(), HasSubstr("its agent is gone"));
  EXPECT_TRUE(crossing.d.is_given_back);
  EXPECT_EQ(*crossing.p.released, TerminalKind::kExpired);
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, ARankOfTheProducerThatDiesEndsTheGroup) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.fetch();
  crossing.p.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_moving(); }));
  crossing.p.kill(1);
  crossing.p.offered->rank_lost(1);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over && crossing.p.released.has_value(); }));
  EXPECT_THAT(crossing.d.ending.kind, AnyOf(TerminalKind::kPeerLost, TerminalKind::kCancelled));
  EXPECT_EQ(*crossing.p.released, TerminalKind::kPeerLost);
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, AnAnswerThatIsFinishedMovesNothing) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.fetch();
  crossing.p.seal(wire::FinishState::kStop);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over && crossing.p.released.has_value(); }));
  EXPECT_EQ(crossing.d.ending.kind, TerminalKind::kFinished) << crossing.d.ending.error.text();
  EXPECT_EQ(crossing.d.ending.bytes, 0u);
  EXPECT_EQ(*crossing.p.released, TerminalKind::kDone);
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, AClientThatLeavesEndsTheGroupAndItsReservations) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.fetch();
  crossing.p.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_moving(); }));
  crossing.d.lead->cancel(crossing.d.group);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over && crossing.p.released.has_value(); }));
  EXPECT_EQ(crossing.d.ending.kind, TerminalKind::kCancelled);
  EXPECT_EQ(*crossing.p.released, TerminalKind::kCancelled);
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, MembersBetweenOtherRanksAreNoticedBeforeAnythingMoves) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.members.back().route = crossing.members.front().route;
  crossing.fetch();
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over; }));
  EXPECT_EQ(crossing.d.ending.kind, TerminalKind::kRejected);
  EXPECT_THAT(crossing.d.ending.error.text(),
              HasSubstr("4 members were offered; the state takes 4, between other ranks"));
  crossing.p.offered->withdraw("it isn't wanted");
  crossing.expect_nothing_owned();
}

// Two offers of one state: what differs is the group alone.
TEST(GroupTickets, EachMemberOfOneGroupOnceOrNothingIsFetched) {
  Crossing crossing = two_to_three("tcp");
  crossing.offer();
  const std::vector<handoff::MemberTicket> members = crossing.members;
  const auto first = crossing.p.offered;
  crossing.offer();
  const auto refused = [&](const std::vector<handoff::MemberTicket>& given) {
    const Status begun = crossing.d.fetch(given);
    EXPECT_EQ(begun.code(), Code::kIncompatible);
    return begun.ok() ? "" : begun.error().text();
  };
  auto given = members;
  given[1] = crossing.members[1];
  EXPECT_THAT(refused(given), HasSubstr("member 1: it is that of another group"));
  given = members;
  given[3] = members[2];
  EXPECT_THAT(refused(given), HasSubstr("member 3: member 2 is given twice"));
  given.pop_back();
  EXPECT_THAT(refused(given), HasSubstr("3 members were given, the group has 4"));
  // One rank's whole state has a ticket too.
  const auto whole = crossing.p.agent(0).offer({kPrompt, {}, now() + kPatience}, [](const auto&) {});
  ASSERT_TRUE(whole.ok());
  given[0].ticket = whole->ticket;
  EXPECT_THAT(refused(given), HasSubstr("member 0: it is that of a whole state"));
  EXPECT_EQ(crossing.d.fetch_one(given[0], true).code(), Code::kIncompatible);
  EXPECT_EQ(crossing.d.fetch_one(members[0], false).code(), Code::kIncompatible);
  // What each rank pins is counted once an offer.
  for (std::uint32_t rank = 0; rank < crossing.p.ranks(); ++rank) {
    const handoff::Ledger& ledger = crossing.p.agent(rank).ledger();
    EXPECT_EQ(ledger.held(handoff::Category::kPinned).bytes, 2 * kPinned);
    EXPECT_EQ(ledger.held(handoff::Category::kActive).bytes, 0u);
  }
  first->withdraw("it isn't wanted");
  crossing.p.offered->withdraw("it isn't wanted");
  crossing.p.agent(0).withdraw(whole->reservation, "it isn't wanted");
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, ATicketForAnotherRankOpensNothing) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  std::swap(crossing.members[1].ticket, crossing.members[2].ticket);
  std::swap(crossing.members[1].endpoints, crossing.members[2].endpoints);
  crossing.fetch();
  crossing.p.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over; }));
  EXPECT_EQ(crossing.d.ending.kind, TerminalKind::kRejected) << crossing.d.ending.error.text();
  crossing.p.offered->withdraw("it isn't wanted");
  crossing.expect_nothing_owned();
}

// All members but the last are verified and wait for the lead's word; what the last one still lacks goes
// into a black hole.
class AllButOne {
 public:
  AllButOne() : crossing(two_to_three("tcp")) {
    crossing.offer();
    handoff::MemberTicket& last = crossing.members.back();
    EXPECT_EQ(last.route, (transform::Route{1, 2}));
    const auto target = net::Endpoint::parse(std::string_view(last.endpoints.at(0)).substr(kTcp.size()));
    relay = std::make_unique<support::TcpRelay>(crossing.loop, *target);
    last.endpoints = {std::string(kTcp) + relay->endpoint().text()};
    crossing.fetch();
    crossing.p.publish(kTile);
    EXPECT_TRUE(crossing.until([&] { return crossing.d.is_moving(); }));
    relay->stall();
    crossing.p.publish(kPrompt);
    crossing.p.seal();
    EXPECT_TRUE(crossing.until([&] { return crossing.d.entered(ConsumerState::kConfirming) == 3; }));
  }
  Crossing crossing;
  std::unique_ptr<support::TcpRelay> relay;
};

TEST(GroupFaultsOverTcp, NobodyOwnsThoughAllButOneHaveVerified) {
  AllButOne all_but_one;
  Crossing& crossing = all_but_one.crossing;
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over && crossing.p.released.has_value(); }));
  EXPECT_THAT(crossing.d.ending.kind,
              AnyOf(TerminalKind::kTimedOut, TerminalKind::kExpired, TerminalKind::kPeerLost));
  EXPECT_EQ(*crossing.p.released, TerminalKind::kExpired);
  crossing.expect_nothing_owned();
}

TEST(GroupFaultsOverTcp, WhenTheLeadDiesTheRanksEndByTheirOwnDeadlines) {
  AllButOne all_but_one;
  Crossing& crossing = all_but_one.crossing;
  crossing.d.lead = nullptr;
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_given_back && crossing.p.released.has_value(); }));
  EXPECT_FALSE(crossing.d.is_over) << "there is nobody left to tell";
  crossing.expect_nothing_owned();
}

TEST(GroupFaultsOverTcp, WithoutRoomOnOneRankNoneIsTakenAndTheWaitIsBounded) {
  Crossing crossing = two_to_three("tcp");
  const handoff::Amount all = {.bytes = crossing.d.agent(2).ledger().free().bytes - 1};
  const handoff::GrantId other = *crossing.d.agent(2).take_memory(all, kFarFuture);
  crossing.offer();
  crossing.fetch();
  crossing.p.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.d.is_over; }));
  EXPECT_EQ(crossing.d.ending.kind, TerminalKind::kExhausted) << crossing.d.ending.error.text();
  crossing.d.agent(2).free_memory(other);
  crossing.expect_nothing_owned();
}

// A producer that offers a rank's part as if it were whole, and a consumer that takes it for whole.
TEST(GroupFaultsOverTcp, ARankFetchesNothingByItself) {
  Crossing crossing = two_to_three("tcp");
  crossing.offer();
  const auto whole = crossing.p.agent(0).offer({kPrompt, {}, now() + kPatience}, [](const auto&) {});
  ASSERT_TRUE(whole.ok()) << whole.error().text();
  handoff::FetchEvents events;
  std::optional<handoff::Ending> ended;
  events.ended = [&](const handoff::SealInfo*, const handoff::Ending& end) { ended = end; };
  ASSERT_TRUE(crossing.d.agent(0)
                  .fetch({.ticket = whole->ticket,
                          .endpoints = crossing.p.agent(0).endpoints(),
                          .prompt = kv::TokenChain(crossing.prompt),
                          .destination = {.bytes = 1},
                          .deadline = now() + kPatience},
                         std::move(events))
                  .ok());
  ASSERT_TRUE(crossing.until([&] { return ended.has_value(); }));
  EXPECT_EQ(ended->kind, TerminalKind::kRejected);
  EXPECT_THAT(ended->error.text(), HasSubstr("for a group"));
  crossing.p.agent(0).withdraw(whole->reservation, "it isn't wanted");
  crossing.p.offered->withdraw("it isn't wanted");
  crossing.expect_nothing_owned();
}

}  // namespace
}  // namespace isthmus::groups
