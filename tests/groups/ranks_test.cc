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
#include "groups/crew.h"
#include "handoff/agent/group.h"
#include "net/run_until.h"
#include "support/tcp_relay.h"

namespace isthmus::groups {
namespace {

using engine::ReferenceAttention;
using handoff::ConsumerState;
using handoff::TerminalKind;
using std::chrono::milliseconds;
using testing::AnyOf;
using testing::HasSubstr;

// Beyond a tile, so that it crosses in pieces, and with an incomplete one at the end.
constexpr std::size_t kPrompt = 300;
constexpr std::size_t kTile = 256;
constexpr std::string_view kTcp = "tcp://";

struct Ranks {
  std::uint32_t tensor = 1, pipeline = 1;
};

engine::ReferenceOptions options_of(const char* storage, Ranks ranks,
                                    ReferenceAttention attention = ReferenceAttention::kFull,
                                    std::uint32_t kv_heads = 6) {
  engine::ReferenceOptions options{
      .storage = storage, .tensor_ranks = ranks.tensor, .pipeline_ranks = ranks.pipeline, .kv_tokens = 1024};
  options.shape = {.attention = attention, .layers = 3, .query_heads = 6, .kv_heads = kv_heads, .dim = 32};
  if (attention == ReferenceAttention::kMla) {
    options.shape.kv_heads = 1;
    options.shape.dim = 128;
  }
  return options;
}

// Short enough that a test may wait for each of them to fire.
handoff::Timings hasty() {
  return {.lease = milliseconds(2400),
          .lease_margin = milliseconds(200),
          .renew_interval = milliseconds(600),
          .resend_interval = milliseconds(100),
          .open_max = milliseconds(2000),
          .promise_max = milliseconds(2000),
          .capacity_max = milliseconds(1000),
          .confirm_max = milliseconds(1000),
          .quiesce_max = milliseconds(500),
          .resume_max = milliseconds(1000),
          .tombstone = std::chrono::seconds(2)};
}

// One state on its way from a producer's ranks to a consumer's.
class Crossing {
 public:
  Crossing(const std::string& transport, const engine::ReferenceOptions& prefill,
           const engine::ReferenceOptions& decode, const handoff::Timings& timings = {})
      : decode_options(decode),
        prompt(prompt_of(kPrompt)),
        p(loop, transport, "p", prefill, timings),
        d(loop, transport, "d", decode, timings),
        lead(std::make_unique<handoff::GroupLead>(loop, d.agents(), d.engine().descriptor(), kv::Policy{},
                                                  timings)) {
    // Computed at once: engine and agents share a thread, and leases run meanwhile.
    source = *p.engine().open(kPrompt);
    row = run(p.engine(), source, prompt);
  }
  ~Crossing() { lead = nullptr; }

  void offer() {
    auto made = handoff::offer_group(p.agents(), p.engine().descriptor(), d.engine().descriptor(), {},
                                     {.prompt_tokens = kPrompt,
                                      .pinned = std::vector<handoff::Amount>(p.ranks(), {.bytes = 1000}),
                                      .deadline = now() + kPatience},
                                     [this](const handoff::Ending& end) {
                                       released = end.kind;
                                       p.engine().close(source);
                                     });
    ASSERT_TRUE(made.ok()) << made.error().text();
    offered = *std::move(made);
    members = offered->members();
  }

  void fetch() {
    handoff::GroupFetchEvents events;
    events.reserve = [this](kv::TokenRange range, const auto& done) {
      target = *d.engine().open(kPrompt + kAnswerTokens);
      std::vector<handoff::RankBindings> bindings;
      auto ranks = *d.engine().bindings(target, range);
      for (transform::RankMemory& rank : ranks) bindings.push_back(std::move(rank.groups));
      done(std::move(bindings));
    };
    events.release = [this] {
      d.engine().close(target);
      is_given_back = true;
    };
    events.owned = [this](const handoff::SealInfo& seal, const std::vector<handoff::GrantId>& mine,
                          const handoff::Ending& end) {
      sealed = seal;
      grants = mine;
      ending = end;
      is_over = true;
    };
    events.ended = [this](const handoff::SealInfo*, const handoff::Ending& end) {
      ending = end;
      is_over = true;
    };
    const auto begun = lead->fetch({.members = members,
                                    .prompt = prompt,
                                    .destination = std::vector<handoff::Amount>(d.ranks(), {.bytes = 2000}),
                                    .deadline = now() + kPatience},
                                   std::move(events));
    ASSERT_TRUE(begun.ok()) << begun.error().text();
    group = *begun;
  }

  // Publishes up to `end` on all ranks.
  void publish(std::size_t end) {
    for (; published < end; published = std::min(end, published + kTile)) {
      const kv::TokenRange range{published, std::min(end, published + kTile)};
      std::vector<std::shared_ptr<const engine::ExportedKv>> memory;
      auto exported = *p.engine().export_ranks(source, range);
      for (auto& rank : exported) memory.push_back(std::move(rank));
      offered->publish(range, memory);
    }
  }

  void seal() {
    offered->seal({.tokens = {0, kPrompt},
                   .token_digest = chain_of(prompt),
                   .tile_root = {},
                   .first_tokens = {best(row)}});
  }

  [[nodiscard]] bool until(const std::function<bool()>& holds) {
    return net::run_until(loop, holds, kPatience);
  }
  bool is_moving() { return d.entered(ConsumerState::kReceiving) == static_cast<int>(members.size()); }

  void give_up_memory() {
    for (std::uint32_t rank = 0; rank < d.ranks(); ++rank) d.agent(rank).free_memory(grants[rank]);
    d.engine().close(target);
  }

  // Nobody owns anything; all is given back at both ends, and the decoder can compute the answer itself.
  void expect_nothing_owned() {
    EXPECT_EQ(d.entered(ConsumerState::kOwned), 0);
    EXPECT_TRUE(grants.empty());
    EXPECT_TRUE(until([&] { return p.is_bare() && d.is_bare(); })) << p.holdings() << d.holdings();
    const engine::SequenceId own = *d.engine().open(kPrompt + kAnswerTokens);
    EXPECT_EQ(go_on(d.engine(), own, best(run(d.engine(), own, prompt))), alone(decode_options, prompt));
  }

  engine::ReferenceOptions decode_options;
  Tokens prompt;
  net::Loop loop;
  Crew p, d;
  std::unique_ptr<handoff::GroupLead> lead;
  std::shared_ptr<handoff::OfferedGroup> offered;
  std::vector<handoff::MemberTicket> members;
  handoff::GroupId group = 0;
  engine::SequenceId source = 0, target = 0;
  std::size_t published = 0;
  Logits row;
  std::optional<TerminalKind> released;  // The offer's end.
  bool is_over = false, is_given_back = false;
  handoff::Ending ending;
  handoff::SealInfo sealed;
  std::vector<handoff::GrantId> grants;
};

// Every byte of every rank, and what follows.
void expect_as_one_engine(Crossing& crossing) {
  const auto one = *engine::make_reference(crossing.decode_options);
  const engine::SequenceId sequence = *one->open(kPrompt + kAnswerTokens);
  const engine::TokenId first = best(run(*one, sequence, crossing.prompt));
  ASSERT_THAT(crossing.sealed.first_tokens, testing::ElementsAre(first));
  const kv::TokenRange all{0, kPrompt};
  const auto expected = *one->bindings(sequence, all);
  const auto handed_over = *crossing.d.engine().bindings(crossing.target, all);
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
  ASSERT_TRUE(crossing.d.engine().kv_sink()->adopt(crossing.target, all).ok());
  EXPECT_EQ(go_on(crossing.d.engine(), crossing.target, first), go_on(*one, sequence, first));
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
  crossing.publish(kPrompt);
  crossing.seal();
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over && crossing.released.has_value(); }))
      << crossing.p.holdings() << crossing.d.holdings();
  ASSERT_EQ(crossing.ending.kind, TerminalKind::kOwned) << crossing.ending.error.text();
  EXPECT_EQ(*crossing.released, TerminalKind::kDone);
  expect_as_one_engine(crossing);
  crossing.give_up_memory();
  EXPECT_TRUE(crossing.until([&] { return crossing.p.is_bare() && crossing.d.is_bare(); }))
      << crossing.p.holdings() << crossing.d.holdings();
}

const Pair kPairs[] = {
    // Three heads a rank to two: the middle rank reads from both.
    {"TwoToThree", options_of("vllm:flash_nhd", {2}), options_of("vllm:flash_hnd", {3}), 4},
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
  crossing.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_moving(); }));
  crossing.d.kill(1);
  crossing.lead->rank_lost(1);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over && crossing.released.has_value(); }));
  EXPECT_EQ(crossing.ending.kind, TerminalKind::kPeerLost);
  EXPECT_THAT(crossing.ending.error.text(), HasSubstr("its agent is gone"));
  EXPECT_TRUE(crossing.is_given_back);
  EXPECT_EQ(*crossing.released, TerminalKind::kExpired);
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, ARankOfTheProducerThatDiesEndsTheGroup) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.fetch();
  crossing.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_moving(); }));
  crossing.p.kill(1);
  crossing.offered->rank_lost(1);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over && crossing.released.has_value(); }));
  EXPECT_THAT(crossing.ending.kind, AnyOf(TerminalKind::kPeerLost, TerminalKind::kCancelled));
  EXPECT_EQ(*crossing.released, TerminalKind::kPeerLost);
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, AClientThatLeavesEndsTheGroupAndItsReservations) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.fetch();
  crossing.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_moving(); }));
  crossing.lead->cancel(crossing.group);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over && crossing.released.has_value(); }));
  EXPECT_EQ(crossing.ending.kind, TerminalKind::kCancelled);
  EXPECT_EQ(*crossing.released, TerminalKind::kCancelled);
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, AMemberThatIsMissingIsNoticedBeforeAnythingMoves) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  crossing.members.pop_back();
  crossing.fetch();
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over; }));
  EXPECT_EQ(crossing.ending.kind, TerminalKind::kRejected);
  EXPECT_THAT(crossing.ending.error.text(), HasSubstr("3 members were offered; the state takes 4"));
  crossing.offered->withdraw("it isn't wanted");
  crossing.expect_nothing_owned();
}

TEST_P(GroupFaults, ATicketForAnotherRankOpensNothing) {
  Crossing crossing = two_to_three(GetParam());
  crossing.offer();
  std::swap(crossing.members[1].ticket, crossing.members[2].ticket);
  std::swap(crossing.members[1].endpoints, crossing.members[2].endpoints);
  crossing.fetch();
  crossing.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over; }));
  EXPECT_EQ(crossing.ending.kind, TerminalKind::kRejected) << crossing.ending.error.text();
  crossing.offered->withdraw("it isn't wanted");
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
    crossing.publish(kTile);
    EXPECT_TRUE(crossing.until([&] { return crossing.is_moving(); }));
    relay->stall();
    crossing.publish(kPrompt);
    crossing.seal();
    EXPECT_TRUE(crossing.until([&] { return crossing.d.entered(ConsumerState::kConfirming) == 3; }));
  }
  Crossing crossing;
  std::unique_ptr<support::TcpRelay> relay;
};

TEST(GroupFaultsOverTcp, NobodyOwnsThoughAllButOneHaveVerified) {
  AllButOne all_but_one;
  Crossing& crossing = all_but_one.crossing;
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over && crossing.released.has_value(); }));
  EXPECT_THAT(crossing.ending.kind,
              AnyOf(TerminalKind::kTimedOut, TerminalKind::kExpired, TerminalKind::kPeerLost));
  EXPECT_EQ(*crossing.released, TerminalKind::kExpired);
  crossing.expect_nothing_owned();
}

TEST(GroupFaultsOverTcp, WhenTheLeadDiesTheRanksEndByTheirOwnDeadlines) {
  AllButOne all_but_one;
  Crossing& crossing = all_but_one.crossing;
  crossing.lead = nullptr;
  ASSERT_TRUE(crossing.until([&] { return crossing.is_given_back && crossing.released.has_value(); }));
  EXPECT_FALSE(crossing.is_over) << "there is nobody left to tell";
  crossing.expect_nothing_owned();
}

TEST(GroupFaultsOverTcp, WithoutRoomOnOneRankNoneIsTakenAndTheWaitIsBounded) {
  Crossing crossing = two_to_three("tcp");
  const handoff::Amount all = {.bytes = crossing.d.agent(2).ledger().free().bytes - 1};
  const handoff::GrantId other = *crossing.d.agent(2).take_memory(all, kFarFuture);
  crossing.offer();
  crossing.fetch();
  crossing.publish(kTile);
  ASSERT_TRUE(crossing.until([&] { return crossing.is_over; }));
  EXPECT_EQ(crossing.ending.kind, TerminalKind::kExhausted) << crossing.ending.error.text();
  crossing.d.agent(2).free_memory(other);
  crossing.expect_nothing_owned();
}

TEST(GroupFaultsOverTcp, ARankFetchesNothingByItself) {
  Crossing crossing = two_to_three("tcp");
  crossing.offer();
  handoff::FetchEvents events;
  std::optional<handoff::Ending> ended;
  events.ended = [&](const handoff::SealInfo*, const handoff::Ending& end) { ended = end; };
  ASSERT_TRUE(crossing.d.agent(0)
                  .fetch({.ticket = crossing.members[0].ticket,
                          .endpoints = crossing.members[0].endpoints,
                          .prompt = crossing.prompt,
                          .destination = {.bytes = 1},
                          .deadline = now() + kPatience},
                         std::move(events))
                  .ok());
  ASSERT_TRUE(crossing.until([&] { return ended.has_value(); }));
  EXPECT_EQ(ended->kind, TerminalKind::kRejected);
  EXPECT_THAT(ended->error.text(), HasSubstr("for a group"));
  crossing.offered->withdraw("it isn't wanted");
  crossing.expect_nothing_owned();
}

}  // namespace
}  // namespace isthmus::groups
