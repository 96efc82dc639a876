// SPDX-License-Identifier: Apache-2.0
// Thousands of handoffs through both cores in virtual time, under faults of every kind.
#include "handoff/core/harness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/bytes.h"
#include "base/digest.h"

namespace isthmus::handoff::testing {
namespace {

Faults no_faults() {
  return {};
}
Faults every_fault() {
  return {.control_lost = 0.02,
          .control_repeated = 0.05,
          .channel_dies = 0.005,
          .crash = 0.03,
          .pause = 0.03,
          .cancel = 0.05,
          .preempt = 0.04,
          .prefill_fails = 0.01,
          .corrupt = 0.003,
          .refuses_memory = 0.02,
          .sticks = 0.01,
          .second_opener = 0.15,
          .promised = 0.15,
          .finished = 0.08};
}

// Seeds "first:count" of the long test; 40 from 1 unless ISTHMUS_SEEDS says otherwise.
std::pair<std::uint64_t, std::uint64_t> seeds() {
  const char* text = std::getenv("ISTHMUS_SEEDS");
  std::pair<std::uint64_t, std::uint64_t> range{1, 40};
  if (text != nullptr) std::sscanf(text, "%" SCNu64 ":%" SCNu64, &range.first, &range.second);
  return range;
}

void expect_clean(const Outcome& outcome, std::uint64_t seed) {
  EXPECT_TRUE(outcome.violations.empty())
      << fmt::format("{}", fmt::join(outcome.violations, "\n")) << "\nreplay: ISTHMUS_SEEDS=" << seed
      << ":1 handoff_core_test --gtest_filter=HandoffWorld.RulesHoldUnderEveryFault";
}

TEST(HandoffWorld, EveryStateIsOwnedWhenNothingFails) {
  const Outcome outcome = World(1, no_faults(), 100).run();
  expect_clean(outcome, 1);
  EXPECT_EQ(outcome.begun, 100u);
  EXPECT_EQ(outcome.owned, 100u) << fmt::format("{}", outcome.consumer_ends);
  EXPECT_EQ(outcome.producer_ends.at("done"), 100u);
}

TEST(HandoffWorld, RulesHoldUnderEveryFault) {
  Outcome sum;
  DigestStream traces;
  int broken = 0;
  const auto [first, count] = seeds();
  for (std::uint64_t seed = first; seed < first + count && broken < 3; ++seed) {
    const Outcome outcome = World(seed, every_fault(), 60).run();
    expect_clean(outcome, seed);
    broken += outcome.violations.empty() ? 0 : 1;
    traces.add(bytes_of(std::span(&outcome.trace, 1)));
    sum.events += outcome.events;
    sum.begun += outcome.begun;
    sum.owned += outcome.owned;
    for (const auto& [kind, times] : outcome.consumer_ends) sum.consumer_ends[kind] += times;
    for (const auto& [kind, times] : outcome.producer_ends) sum.producer_ends[kind] += times;
    sum.transitions.insert(outcome.transitions.begin(), outcome.transitions.end());
  }
  std::printf("%" PRIu64 " handoffs (%" PRIu64 " owned) in %" PRIu64 " events, seeds %" PRIu64 " to %" PRIu64
              ", %d of them broken, trace %s\n",
              sum.begun, sum.owned, sum.events, first, first + count - 1, broken,
              traces.finish().hex().c_str());
  RecordProperty("consumer_ends", fmt::format("{}", sum.consumer_ends));
  if (count < 40) return;  // A replay: the rest is about all of them together.
  EXPECT_GE(sum.begun, 2000u);
  EXPECT_GE(sum.owned, sum.begun / 4) << fmt::format("{}", sum.consumer_ends);
  for (const char* kind : {"owned", "rejected", "exhausted", "cancelled", "finished", "peer_lost", "corrupt",
                           "timed_out", "failed"}) {
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

TEST(HandoffWorld, OneSeedGivesOneTrace) {
  const Outcome first = World(7, every_fault(), 40).run();
  const Outcome second = World(7, every_fault(), 40).run();
  EXPECT_EQ(first.trace, second.trace);
  EXPECT_EQ(first.events, second.events);
  EXPECT_EQ(first.consumer_ends, second.consumer_ends);
  EXPECT_NE(first.trace, World(8, every_fault(), 40).run().trace);
}

}  // namespace
}  // namespace isthmus::handoff::testing
