// SPDX-License-Identifier: Apache-2.0
// One decision for all ranks: spec/handoff.md, R11.
#include "handoff/core/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using sim::all;
using std::chrono::seconds;

class GroupTest : public ::testing::Test {
 protected:
  GroupTest() : group(*core.begin(3, now + seconds(60), now)) {}
  template <typename Call>
  GroupActions call(Call event) {
    GroupActions actions;
    event(actions);
    return actions;
  }
  GroupActions verified(std::uint32_t rank) {
    return call([&](auto& o) { core.verified(group, rank, now, o); });
  }
  GroupActions owned(std::uint32_t rank) {
    return call([&](auto& o) { core.owned(group, rank, now, o); });
  }

  Instant now{seconds(100)};
  GroupCore core{Timings{}};
  GroupId group;
};

TEST_F(GroupTest, TheLeadDecidesWhenAllRanksHaveVerified) {  // R11
  EXPECT_TRUE(verified(0).empty());
  EXPECT_TRUE(verified(0).empty());  // A repeat isn't another rank.
  EXPECT_TRUE(verified(2).empty());
  EXPECT_TRUE(owned(2).empty());  // Nobody may own before.
  EXPECT_EQ(all<TellOwn>(verified(1)).size(), 3u);
  EXPECT_TRUE(owned(0).empty());
  now = now + seconds(1);
  const auto again = call([&](auto& o) { core.tick(now, o); });
  EXPECT_EQ(all<TellOwn>(again).size(), 2u);  // To those that haven't answered.
  owned(1);
  const auto ended = all<GroupEnded>(owned(2));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].kind, TerminalKind::kOwned);
  EXPECT_EQ(core.live(), 0u);
}

TEST_F(GroupTest, ARankThatFailsEndsAll) {
  verified(0);
  const Error why{Code::kAborted, "its lease ran out"};
  const auto actions = call([&](auto& o) { core.failed(group, 1, TerminalKind::kExpired, why, o); });
  EXPECT_EQ(all<TellAbandon>(actions).size(), 3u);
  EXPECT_EQ(all<GroupEnded>(actions).at(0).kind, TerminalKind::kExpired) << "as its first rank did";
  EXPECT_TRUE(verified(2).empty());
  EXPECT_EQ(core.next_deadline(), kFarFuture);
}

TEST_F(GroupTest, ARankThatFailsAfterTheDecisionEndsTheGroupToo) {
  for (std::uint32_t rank = 0; rank < 3; ++rank) verified(rank);
  owned(0);
  const auto actions =
      call([&](auto& o) { core.failed(group, 1, TerminalKind::kFailed, Error{Code::kAborted, "late"}, o); });
  EXPECT_EQ(all<GroupEnded>(actions).at(0).kind, TerminalKind::kFailed);
}

TEST_F(GroupTest, EveryWaitHasADeadline) {
  now = now + seconds(60);
  EXPECT_EQ(all<GroupEnded>(call([&](auto& o) { core.tick(now, o); })).at(0).kind, TerminalKind::kTimedOut);
  group = *core.begin(2, now + seconds(60), now);
  verified(0);
  verified(1);
  owned(0);
  now = now + seconds(10);  // confirm_max
  EXPECT_EQ(all<GroupEnded>(call([&](auto& o) { core.tick(now, o); })).at(0).kind, TerminalKind::kTimedOut);
}

// In any order of ranks, with repeats: one terminal event, and nobody is told to own before all have
// verified.
TEST_F(GroupTest, AnyOrderGivesOneEnd) {
  std::mt19937_64 rng(7);
  call([&](auto& o) {
    core.failed(group, 0, TerminalKind::kFailed, Error{Code::kAborted, "not this one"}, o);
  });
  for (int run = 0; run < 300; ++run) {
    const auto ranks = static_cast<std::uint32_t>(1 + rng() % 5);
    group = *core.begin(ranks, now + seconds(60), now);
    std::vector<bool> seen(ranks);
    std::size_t ends = 0;
    for (int step = 0; step < 40; ++step) {
      const auto rank = static_cast<std::uint32_t>(rng() % ranks);
      const bool fails = rng() % 60 == 0, owns = rng() % 2 == 0;
      if (!fails && !owns) seen[rank] = true;
      const auto actions = call([&](auto& o) {
        if (fails) return core.failed(group, rank, TerminalKind::kFailed, Error{Code::kAborted, "x"}, o);
        owns ? core.owned(group, rank, now, o) : core.verified(group, rank, now, o);
      });
      if (!all<TellOwn>(actions).empty())
        EXPECT_TRUE(std::ranges::all_of(seen, [](bool each) { return each; }));
      ends += all<GroupEnded>(actions).size();
    }
    EXPECT_LE(ends, 1u);
    if (ends == 0)
      call([&](auto& o) { core.failed(group, 0, TerminalKind::kFailed, Error{Code::kAborted, "over"}, o); });
  }
  EXPECT_EQ(core.live(), 0u);
}

TEST_F(GroupTest, AGroupHasRanksAndADeadline) {
  EXPECT_EQ(core.begin(0, now + seconds(1), now).code(), Code::kInvalidArgument);
  EXPECT_EQ(core.begin(kGroupRanksMax + 1, now + seconds(1), now).code(), Code::kInvalidArgument);
  EXPECT_EQ(core.begin(2, now, now).code(), Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace isthmus::handoff
