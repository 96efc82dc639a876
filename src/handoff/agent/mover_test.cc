// SPDX-License-Identifier: Apache-2.0
#include "handoff/agent/mover.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "net/run_until.h"

namespace isthmus::handoff {
namespace {

constexpr std::uint64_t kMany = std::uint64_t{1} << 20;

class EveryMover : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Movers, EveryMover, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "thread" : "loop"); });

TEST_P(EveryMover, RunsJobsInOrderAndReportsEachOnTheLoopsThread) {
  constexpr int kJobs = 100;
  net::Loop loop;
  Mover mover(loop, GetParam());
  std::vector<int> worked, reported;
  std::atomic<int> done = 0;  // The mover works on while what it did before is reported.
  for (int i = 0; i < kJobs; ++i) {
    // Small ones among them: no job overtakes another.
    mover.run(
        i % 3 == 0 ? 1 : kMany,
        [&, i] {
          worked.push_back(i);
          ++done;
        },
        [&, i] {
          EXPECT_TRUE(loop.in_loop_thread());
          EXPECT_GT(done, i);
          reported.push_back(i);
        });
    EXPECT_TRUE(reported.empty()) << "from within run()";
  }
  ASSERT_TRUE(net::run_until(loop, [&] { return reported.size() == kJobs; }));
  for (int i = 0; i < kJobs; ++i) {
    EXPECT_EQ(worked.at(i), i);
    EXPECT_EQ(reported.at(i), i);
  }
}

TEST_P(EveryMover, TheLoopHasTurnsBetweenJobs) {
  net::Loop loop;
  Mover mover(loop, GetParam());
  int reported = 0;
  std::optional<int> seen;
  mover.run(
      kMany, [] {},
      [&] {
        ++reported;
        loop.post([&] { seen = reported; });
      });
  std::function<void()> next = [&] {
    if (++reported < 1000 && !seen) mover.run(kMany, [] {}, next);
  };
  mover.run(kMany, [] {}, next);
  ASSERT_TRUE(net::run_until(loop, [&] { return seen.has_value(); }));
  EXPECT_LT(*seen, 1000);
}

TEST_P(EveryMover, DestroyedItReportsNothingMore) {
  net::Loop loop;
  std::optional<Mover> mover;
  mover.emplace(loop, GetParam());
  bool reported = false, end = false;
  for (int i = 0; i < 10; ++i) mover->run(kMany, [] {}, [&] { reported = true; });
  mover.reset();
  loop.post([&] { end = true; });
  ASSERT_TRUE(net::run_until(loop, [&] { return end; }));
  EXPECT_FALSE(reported);
}

TEST(Mover, AThreadOfItsOwnLeavesTheLoopFree) {
  net::Loop loop;
  Mover mover(loop, true);
  std::optional<std::thread::id> worker;
  bool done = false;
  mover.run(kMany, [&] { worker = std::this_thread::get_id(); }, [&] { done = true; });
  ASSERT_TRUE(net::run_until(loop, [&] { return done; }));
  EXPECT_NE(*worker, std::this_thread::get_id());
}

}  // namespace
}  // namespace isthmus::handoff
