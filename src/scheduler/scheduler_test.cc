// SPDX-License-Identifier: Apache-2.0
// Tests of the batch scheduler.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <map>

namespace isthmus::scheduler {
namespace {

TEST(Scheduler, PrefillIsCutAtTilesAndNeverLeavesOneToken) {
  for (std::uint64_t prompt : {1, 2, 3, 255, 256, 257, 258, 511, 512, 513, 600, 1025}) {
    Scheduler scheduler({.step_tokens_max = 512, .sequences_max = 2, .prefill_cut_tokens = 256});
    ASSERT_TRUE(scheduler.add(1, prompt, 0).ok());
    std::uint64_t computed = 0;
    while (computed < prompt) {
      const auto items = scheduler.next();
      ASSERT_EQ(items.size(), 1u);
      ASSERT_EQ(items[0].begin, computed);
      computed = items[0].end;
      EXPECT_TRUE(computed % 256 == 0 || computed == prompt) << computed << " of " << prompt;
      if (prompt > 1) {
        EXPECT_GE(items[0].end - items[0].begin, 2u) << prompt;
      }
      EXPECT_EQ(items[0].completes_prompt, computed == prompt);
      scheduler.ran(items);
    }
  }
}

TEST(Scheduler, DecodesGoFirstAndPrefillUsesTheRest) {
  Scheduler scheduler({.step_tokens_max = 100, .sequences_max = 4, .prefill_cut_tokens = 256});
  ASSERT_TRUE(scheduler.add(1, 10, 10).ok());
  ASSERT_TRUE(scheduler.add(2, 500, 0).ok());
  ASSERT_TRUE(scheduler.add(3, 10, 10).ok());
  const auto items = scheduler.next();
  ASSERT_EQ(items.size(), 3u);
  EXPECT_TRUE(items[0].is_decode && items[0].request == 1);
  EXPECT_TRUE(items[1].is_decode && items[1].request == 3);
  EXPECT_EQ(items[2].end - items[2].begin, 98u);
}

TEST(Scheduler, EachRequestAdvancesInOrderUnderAnyMix) {
  Scheduler scheduler({.step_tokens_max = 64, .sequences_max = 8, .prefill_cut_tokens = 32});
  std::map<RequestId, std::uint64_t> prompts{{1, 7}, {2, 65}, {3, 300}, {4, 33}};
  for (const auto& [id, prompt] : prompts) ASSERT_TRUE(scheduler.add(id, prompt, 0).ok());
  std::map<RequestId, std::uint64_t> computed;
  for (int step = 0; step < 40; ++step) {
    const auto items = scheduler.next();
    ASSERT_FALSE(items.empty());
    std::uint64_t tokens = 0;
    for (const Item& item : items) {
      EXPECT_EQ(item.begin, computed[item.request]);
      computed[item.request] = item.end;
      tokens += item.end - item.begin;
    }
    EXPECT_LE(tokens, 64u);
    scheduler.ran(items);
  }
  for (const auto& [id, prompt] : prompts) EXPECT_GT(computed[id], prompt);
}

TEST(Scheduler, RefusesMoreSequencesThanItsLimitAndForgetsRemovedOnes) {
  Scheduler scheduler({.step_tokens_max = 8, .sequences_max = 1, .prefill_cut_tokens = 4});
  ASSERT_TRUE(scheduler.add(1, 4, 0).ok());
  EXPECT_EQ(scheduler.add(2, 4, 0).code(), Code::kExhausted);
  const auto items = scheduler.next();
  scheduler.remove(1);
  scheduler.ran(items);
  EXPECT_TRUE(scheduler.next().empty());
  EXPECT_TRUE(scheduler.add(2, 4, 0).ok());
}

}  // namespace
}  // namespace isthmus::scheduler
