// SPDX-License-Identifier: Apache-2.0
#include "handoff/core/ledger.h"

#include <gtest/gtest.h>

#include <random>

namespace isthmus::handoff {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Ledger, TransientPeakIsGrantedWholeOrNotAtAll) {
  Ledger ledger({{1000, 10}, 100});
  EXPECT_EQ(ledger.grant_peak({1000, 10}, 101, kFarFuture).code(), Code::kExhausted);
  EXPECT_EQ(ledger.grant_peak({1001, 10}, 100, kFarFuture).code(), Code::kExhausted);
  EXPECT_EQ(ledger.grant_peak({1000, 11}, 100, kFarFuture).code(), Code::kExhausted);
  EXPECT_EQ(ledger.live(), 0u);
  const auto peak = ledger.grant_peak({1000, 10}, 100, kFarFuture);
  ASSERT_TRUE(peak.ok());
  EXPECT_EQ(ledger.free(), (Amount{0, 0}));
  EXPECT_EQ(ledger.free_staging(), 0u);
  ledger.move(peak->destination, Category::kActive);
  ledger.release(peak->staging);
  EXPECT_EQ(ledger.held(Category::kActive), (Amount{1000, 10}));
  EXPECT_EQ(ledger.held(Category::kIncoming), (Amount{0, 0}));
  EXPECT_TRUE(ledger.check().ok());
}

TEST(Ledger, ExhaustedSaysWhatIsFreeAndWhenMoreWillBe) {
  Ledger ledger({{1000, 0}, 0});
  ASSERT_TRUE(ledger.grant(Category::kPinned, {900, 0}, Instant{seconds(3)}).ok());
  ASSERT_TRUE(ledger.grant(Category::kRetained, {50, 0}, Instant{seconds(2)}).ok());
  const auto refused = ledger.grant(Category::kActive, {100, 0});
  EXPECT_EQ(refused.error().detail, "100 KV bytes wanted, 50 of 1000 are free");
  EXPECT_EQ(ledger.retry_hint(Instant{seconds(1)}, seconds(10)), seconds(1));
  EXPECT_EQ(ledger.retry_hint(Instant{seconds(2)}, seconds(10)), seconds(1));
  EXPECT_EQ(ledger.retry_hint(Instant{seconds(3)}, seconds(10)), seconds(10));
  EXPECT_EQ(ledger.retry_hint(Instant{seconds(0)}, milliseconds(5)), milliseconds(5));
}

TEST(Ledger, EquationsHoldThroughRandomUse) {
  std::mt19937_64 random(5);
  Ledger ledger({{10'000, 100}, 500});
  std::vector<std::pair<GrantId, bool>> live;
  for (int step = 0; step < 5000; ++step) {
    const auto pick = random() % 4;
    if (pick < 2) {
      const auto category = static_cast<Category>(random() % kCategoryCount);
      const auto grant = ledger.grant(category, {random() % 900, random() % 9},
                                      Instant{Duration(static_cast<std::int64_t>(random() % 1000))});
      if (grant.ok()) live.emplace_back(*grant, category == Category::kStaging);
    } else if (!live.empty()) {
      const std::size_t at = random() % live.size();
      if (pick == 2 && !live[at].second) {
        ledger.move(live[at].first, Category::kQuarantine);
      } else if (pick == 3) {
        ledger.release(live[at].first);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    const Status status = ledger.check();
    ASSERT_TRUE(status.ok()) << status.error().text();
    ASSERT_EQ(ledger.live(), live.size());
  }
  for (const auto& [grant, staging] : live) ledger.release(grant);
  EXPECT_EQ(ledger.free(), (Amount{10'000, 100}));
  EXPECT_EQ(ledger.granted(), ledger.released());
}

TEST(Ledger, TwoGrantsBecomeOne) {
  Ledger ledger({{100, 10}, 0});
  const GrantId retained = *ledger.grant(Category::kRetained, {30, 3}, Instant{std::chrono::seconds(5)});
  const GrantId active = *ledger.grant(Category::kActive, {20, 2});
  ledger.join(active, retained);
  EXPECT_TRUE(ledger.check().ok()) << ledger.check().error().text();
  EXPECT_EQ(ledger.held(Category::kActive), (Amount{50, 5}));
  EXPECT_EQ(ledger.held(Category::kRetained), Amount{});
  EXPECT_EQ(ledger.live(), 1u);
  EXPECT_EQ(ledger.released(), 1u);
  ledger.release(active);
  EXPECT_EQ(ledger.free(), (Amount{100, 10}));
  EXPECT_TRUE(ledger.check().ok());
}

}  // namespace
}  // namespace isthmus::handoff
