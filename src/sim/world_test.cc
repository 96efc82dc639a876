// SPDX-License-Identifier: Apache-2.0
// Thousands of handoffs through both cores in virtual time, under faults of every kind.
#include "sim/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "sim/runs.h"

namespace isthmus::handoff::sim {
namespace {

TEST(HandoffWorld, EveryStateIsOwnedWhenNothingFails) {
  const Outcome outcome = World(1, {}, 100).run();
  EXPECT_TRUE(outcome.violations.empty()) << fmt::format("{}", fmt::join(outcome.violations, "\n"));
  EXPECT_EQ(outcome.begun, 100u);
  EXPECT_EQ(outcome.owned, 100u) << fmt::format("{}", outcome.consumer_ends);
  EXPECT_EQ(outcome.producer_ends.at("done"), 100u);
  EXPECT_GT(outcome.compressed, 100u);
}

TEST(HandoffWorld, RulesHoldUnderEveryFault) {
  const Summary sum = run_handoffs({.first = 1, .seeds = 120}, [](const Summary&) {});
  for (const BrokenSeed& broken : sum.broken) {
    ADD_FAILURE() << fmt::format("{}", fmt::join(broken.violations, "\n"))
                  << "\nreplay: isthmus sim handoff --first " << broken.seed << " --seeds 1";
  }
  RecordProperty("consumer_ends", fmt::format("{}", sum.consumer_ends));
  EXPECT_GE(sum.handoffs, 3000u);
  EXPECT_GE(sum.owned, sum.handoffs / 5) << fmt::format("{}", sum.consumer_ends);
  for (const char* kind : {"owned", "rejected", "exhausted", "expired", "cancelled", "finished", "peer_lost",
                           "corrupt", "timed_out", "failed"}) {
    EXPECT_TRUE(sum.consumer_ends.contains(kind))
        << kind << " never happened: " << fmt::format("{}", sum.consumer_ends);
  }
  // Every transition of both tables has been seen.
  for (const auto& transition : producer_transitions()) {
    const std::string text =
        fmt::format("P {}>{} {}", name(transition.from), name(transition.to), transition.cause);
    EXPECT_TRUE(sum.transitions.contains(text)) << text;
  }
  for (const auto& transition : consumer_transitions()) {
    const std::string text =
        fmt::format("C {}>{} {}", name(transition.from), name(transition.to), transition.cause);
    EXPECT_TRUE(sum.transitions.contains(text)) << text;
  }
}

// All faults, and consumers that have a state's beginning already.
TEST(HandoffWorld, RulesHoldWhereOnlyTheRestMoves) {
  std::uint64_t owned = 0, rests = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Faults faults = faults_of(seed);
    faults.known = 0.6;
    const Outcome outcome = World(seed, faults, 60).run();
    EXPECT_TRUE(outcome.violations.empty())
        << "seed " << seed << ": " << fmt::format("{}", fmt::join(outcome.violations, "\n"));
    owned += outcome.owned;
    rests += outcome.rests;
  }
  EXPECT_GT(rests, owned / 4);
  EXPECT_LT(rests, owned);
}

TEST(HandoffWorld, EveryRestIsOwnedWhenNothingFails) {
  Faults faults;
  faults.known = 1;
  const Outcome outcome = World(1, faults, 100).run();
  EXPECT_TRUE(outcome.violations.empty()) << fmt::format("{}", fmt::join(outcome.violations, "\n"));
  EXPECT_EQ(outcome.owned, 100u) << fmt::format("{}", outcome.consumer_ends);
  EXPECT_GT(outcome.rests, 80u);
}

// What an event does in a state is either seen here, or asserted by the core to be impossible.
TEST(HandoffWorld, EveryEventMeetsEveryState) {
  const Summary sum = run_handoffs({.first = 1, .seeds = 1000, .jobs = 2}, [](const Summary&) {});
  EXPECT_EQ(sum.coverage.missing(), std::vector<std::string>());
}

// Threads finish seeds in any order.
TEST(HandoffWorld, ThreadsChangeNoSum) {
  const auto none = [](const Summary&) {};
  const Summary one = run_handoffs({.first = 1, .seeds = 12}, none);
  const Summary three = run_handoffs({.first = 1, .seeds = 12, .jobs = 3}, none);
  EXPECT_EQ(one.trace_hash, three.trace_hash);
  EXPECT_EQ(one.coverage.page(), three.coverage.page());
  int asked = 0;
  const Summary stopped =
      run_handoffs({.first = 1, .seeds = 12, .is_stopped = [&] { return ++asked > 5; }}, none);
  EXPECT_EQ(stopped.seeds, 5u);
}

TEST(HandoffWorld, OneSeedGivesOneTrace) {
  const Outcome first = World(7, faults_of(7), 40).run();
  const Outcome second = World(7, faults_of(7), 40).run();
  EXPECT_EQ(first.trace, second.trace);
  EXPECT_EQ(first.events, second.events);
  EXPECT_EQ(first.consumer_ends, second.consumer_ends);
  EXPECT_NE(first.trace, World(8, faults_of(8), 40).run().trace);
  EXPECT_TRUE(run_handoffs({.first = 7, .seeds = 3, .twice = true}, [](const Summary&) {}).broken.empty());
}

// A seed's faults are some of all kinds, and all kinds happen under some seed.
TEST(HandoffWorld, SeedsDifferInTheirFaults) {
  bool without_crash = false, with_crash = false, small_pools = false;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const Faults faults = faults_of(seed);
    (faults.crash > 0 ? with_crash : without_crash) = true;
    small_pools |= faults.small_pools;
  }
  EXPECT_TRUE(without_crash && with_crash && small_pools);
}

}  // namespace
}  // namespace isthmus::handoff::sim
