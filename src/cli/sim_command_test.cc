// SPDX-License-Identifier: Apache-2.0
// What `sim handoff` prints.
#include "cli/sim_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/json.h"

namespace isthmus::cli {
namespace {

using ::testing::HasSubstr;

TEST(SimCommand, TheOptionsAreSeedsFirstTwiceAndJson) {
  const Parsed parsed = parse({"sim", "handoff", "--seeds", "7", "--first", "3", "--twice", "--json"});
  ASSERT_TRUE(parsed.command.has_value()) << parsed.text;
  const auto& sim = std::get<SimCommand>(*parsed.command);
  EXPECT_EQ(sim.options.seeds, 7u);
  EXPECT_EQ(sim.options.first, 3u);
  EXPECT_TRUE(sim.options.twice && sim.json);
  EXPECT_EQ(parse({"sim"}).exit_code, kExitUsage);
  EXPECT_EQ(parse({"sim", "handoff", "--seeds", "0"}).exit_code, kExitUsage);
}

TEST(SimCommand, JsonHasTheSumsAndTheReplayOfWhatBroke) {
  handoff::sim::Summary sum;
  sum.seeds = 2;
  sum.handoffs = 120;
  sum.broken = {{9, {"1 ms: a", "2 ms: b"}}};
  sum.trace_hash = "abc";
  const auto parsed = json::parse(sim_json(sum, std::chrono::seconds(2)));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->find("handoffs")->as_uint(), 120u);
  EXPECT_EQ(parsed->find("violations")->as_uint(), 2u);
  EXPECT_EQ(*parsed->find("trace_hash")->as_string(), "abc");
  EXPECT_EQ(parsed->find("handoffs_per_second")->as_double(), 60.0);
  EXPECT_THAT(sim_json(sum, std::chrono::seconds(2)), HasSubstr("isthmus sim handoff --first 9 --seeds 1"));
  EXPECT_THAT(sim_text(sum, std::chrono::seconds(2)), HasSubstr("violations: 2 in 1 seeds"));
}

// The printed seed, typed again, does the same.
TEST(SimCommand, AReplayIsTheSeedsOwnRun) {
  const auto none = [](const handoff::sim::Summary&) {};
  EXPECT_EQ(handoff::sim::run_handoffs({.first = 4, .seeds = 1}, none).trace_hash,
            handoff::sim::run_handoffs({.first = 4, .seeds = 1}, none).trace_hash);
}

}  // namespace
}  // namespace isthmus::cli
