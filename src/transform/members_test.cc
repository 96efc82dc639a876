// SPDX-License-Identifier: Apache-2.0
// Members of a handoff between ranks: together each target rank's whole box, each place once.
#include "transform/members.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "transform/plan.h"
#include "transform/test_ranks.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::ElementsAre;

constexpr kv::TokenRange kTokens{0, 700};
constexpr TestShape kShape{.layers = 4, .heads = 6, .dim = 64};

std::vector<Route> members_of(const kv::Descriptor& source, const kv::Descriptor& target) {
  return Plan::members(source, target, test_verdict(source, target), kTokens).value();
}

Plan member(const kv::Descriptor& source, const kv::Descriptor& target, const Route& route) {
  return Plan::make_member(source, target, test_verdict(source, target), kTokens, route).value();
}

// (layer, head, token) that a rank of the end has.
using Places = std::map<std::array<std::uint64_t, 3>, int>;

void add_tokens(const Chunk& chunk, std::uint64_t layer, std::uint64_t head, Places& places) {
  for (const kv::TokenRange& run : chunk.runs) {
    for (std::uint64_t token = run.begin; token < run.end; ++token)
      ++places[{layer, head, chunk.box.tokens.begin + token}];
  }
}

void add(const Plan& plan, Places& places) {
  for (const Chunk& chunk : plan.chunks()) {
    for (std::uint64_t layer = chunk.box.layer_begin; layer < chunk.box.layer_end; ++layer) {
      for (std::uint64_t head = chunk.box.head_begin; head < chunk.box.head_end; ++head)
        add_tokens(chunk, layer, head, places);
    }
  }
}

bool has(const kv::Descriptor& end, std::uint32_t rank, const std::array<std::uint64_t, 3>& place) {
  return std::ranges::any_of(end.partition, [&](const kv::RankBox& box) {
    return box.rank == rank && box.layer_begin <= place[0] && place[0] < box.layer_end &&
           box.head_begin <= place[1] && place[1] < box.head_end && box.has_token(place[2]);
  });
}

std::set<std::uint32_t> ranks_of(const kv::Descriptor& end) {
  std::set<std::uint32_t> ranks;
  for (const kv::RankBox& box : end.partition) ranks.insert(box.rank);
  return ranks;
}

void expect_whole(const kv::Descriptor& source, const kv::Descriptor& target) {
  std::map<std::uint32_t, Places> by_rank;
  const std::vector<Route> routes = members_of(source, target);
  for (const std::uint32_t s : ranks_of(source)) {
    for (const std::uint32_t t : ranks_of(target)) {
      const Plan plan = member(source, target, {s, t});
      const bool is_member = std::ranges::find(routes, Route{s, t}) != routes.end();
      EXPECT_EQ(plan.chunk_count() > 0, is_member) << s << " -> " << t;
      Places moved;
      add(plan, moved);
      for (const auto& [place, times] : moved) {
        EXPECT_TRUE(has(source, s, place) && has(target, t, place)) << s << " -> " << t;
        by_rank[t][place] += times;
      }
    }
  }
  for (const std::uint32_t t : ranks_of(target)) {
    for (std::uint64_t layer = 0; layer < kShape.layers; ++layer) {
      for (std::uint64_t head = 0; head < kShape.heads; ++head) {
        for (std::uint64_t token = 0; token < kTokens.end; ++token) {
          const std::array place{layer, head, token};
          const auto found = by_rank[t].find(place);
          const int times = found == by_rank[t].end() ? 0 : found->second;
          ASSERT_EQ(times, has(target, t, place) ? 1 : 0) << "rank " << t << " at " << layer << " " << head;
        }
      }
    }
  }
}

TEST(Members, EachTargetRankIsFilledOnceWhateverTheRanks) {
  const Degrees all[] = {{1, 1},
                         {2, 1},
                         {3, 1},
                         {4, 1},
                         {12, 1},
                         {1, 3},
                         {2, 2},
                         {1, 1, 2, 64, true},
                         {2, 1, 2, 512, false},
                         {1, 2, 3, 16, true}};
  for (const Degrees& from : all) {
    for (const Degrees& to : all) {
      SCOPED_TRACE(fmt::format("{}x{}x{} -> {}x{}x{}", from.tensor, from.pipeline, from.context, to.tensor,
                               to.pipeline, to.context));
      expect_whole(describe("vllm:flash_nhd", kShape, from), describe("flashinfer:hnd", kShape, to));
    }
  }
}

TEST(Members, UnlikeSharesOfHeadsMakeARankReadFromTwo) {
  const kv::Descriptor source = describe("vllm:flash_nhd", kShape, {2, 1});
  const kv::Descriptor target = describe("vllm:flash_hnd", kShape, {3, 1});
  EXPECT_THAT(members_of(source, target), ElementsAre(Route{0, 0}, Route{0, 1}, Route{1, 1}, Route{1, 2}));
}

TEST(Members, CopiesAreReadInTurnAndWrittenEach) {
  const TestShape shape{.layers = 2, .heads = 2, .dim = 64};
  const kv::Descriptor source = describe("vllm:flash_nhd", shape, {8, 1});
  const kv::Descriptor target = describe("vllm:flash_hnd", shape, {4, 1});
  EXPECT_THAT(members_of(source, target), ElementsAre(Route{0, 0}, Route{1, 1}, Route{4, 2}, Route{5, 3}));
}

TEST(Members, PlansOfUnlikeRoutesNeverAgree) {
  const kv::Descriptor source = describe("vllm:flash_nhd", kShape, {2, 1});
  const kv::Descriptor target = describe("vllm:flash_hnd", kShape, {3, 1});
  std::set<std::string> digests;
  for (const Route& route : members_of(source, target))
    digests.insert(member(source, target, route).digest().hex());
  digests.insert(Plan::make(source, target, test_verdict(source, target), kTokens).value().digest().hex());
  EXPECT_EQ(digests.size(), 5u);
}

TEST(Members, BetweenSingleRanksAMemberIsTheWholePlan) {
  const kv::Descriptor source = describe("vllm:flash_nhd", kShape, {1, 1});
  const kv::Descriptor target = describe("vllm:flash_hnd", kShape, {1, 1});
  EXPECT_EQ(member(source, target, {0, 0}).digest(),
            Plan::make(source, target, test_verdict(source, target), kTokens).value().digest());
  EXPECT_EQ(Plan::make_member(source, target, test_verdict(source, target), kTokens, {0, 1}).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus::transform
