// SPDX-License-Identifier: Apache-2.0
#include "net/loop.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "net/deadline.h"
#include "net/run_until.h"
#include "net/stream.h"

namespace isthmus::net {
namespace {

TEST(Loop, PostedWorkRunsInOrderOnTheLoopsThread) {
  Loop loop;
  std::vector<int> order;
  std::thread::id ran_on;
  std::thread poster([&] {
    for (int i = 0; i < 100; ++i) loop.post([&, i] { order.push_back(i); });
    loop.post([&] {
      ran_on = std::this_thread::get_id();
      EXPECT_TRUE(loop.in_loop_thread());
      loop.stop();
    });
  });
  poster.join();
  loop.run();
  EXPECT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(Loop, AStopBeforeRunIsNotLost) {
  Loop loop;
  bool ran = false;
  loop.stop();
  loop.post([&] { ran = true; });
  loop.run();
  EXPECT_FALSE(ran);
}

TEST(Loop, TimersFireInOrderOfTheirInstantsAndOnce) {
  Loop loop;
  std::vector<int> fired;
  const auto late = loop.after(std::chrono::milliseconds(3), [&] { fired.push_back(3); });
  const auto soon = loop.after(std::chrono::milliseconds(1), [&] { fired.push_back(1); });
  const auto past = loop.after(std::chrono::milliseconds(-5), [&] { fired.push_back(0); });
  EXPECT_TRUE(run_until(loop, [&] { return fired.size() == 3; }));
  EXPECT_EQ(fired, (std::vector<int>{0, 1, 3}));
}

TEST(Deadline, CallsOnceAfterTheMomentThatWasSetLast) {
  Loop loop;
  std::vector<Instant> called;
  Deadline deadline(loop, [&] { called.push_back(now()); });
  const Instant begin = now();
  deadline.set(begin + std::chrono::milliseconds(1));
  deadline.set(begin + std::chrono::milliseconds(20));  // Later: the loop's timer fires too early.
  EXPECT_TRUE(deadline.is_set());
  ASSERT_TRUE(run_until(loop, [&] { return !called.empty(); }));
  EXPECT_GE(called.at(0), begin + std::chrono::milliseconds(20));
  EXPECT_FALSE(deadline.is_set());
  deadline.set(now() + std::chrono::hours(1));
  deadline.set(now() + std::chrono::milliseconds(1));  // Earlier.
  ASSERT_TRUE(run_until(loop, [&] { return called.size() == 2; }));
}

TEST(Deadline, OneThatIsTakenAwayIsNotCalled) {
  Loop loop;
  bool called = false, end = false;
  Deadline deadline(loop, [&] { called = true; });
  deadline.set(now() + std::chrono::milliseconds(1));
  deadline.set(kFarFuture);
  const auto timer = loop.after(std::chrono::milliseconds(5), [&] { end = true; });
  ASSERT_TRUE(run_until(loop, [&] { return end; }));
  EXPECT_FALSE(called);
}

TEST(Deadline, MayBeDestroyedByWhatItCalls) {
  Loop loop;
  std::optional<Deadline> deadline;
  deadline.emplace(loop, [&] { deadline.reset(); });
  deadline->set(now());
  EXPECT_TRUE(run_until(loop, [&] { return !deadline.has_value(); }));
}

TEST(Loop, ADestroyedTimerNeverFiresEvenIfItWasDue) {
  Loop loop;
  bool fired = false;
  bool end = false;
  std::unique_ptr<Loop::Timer> second;
  const auto first = loop.after(Duration::zero(), [&] { second.reset(); });
  second = loop.after(Duration::zero(), [&] { fired = true; });
  const auto last = loop.after(std::chrono::milliseconds(2), [&] { end = true; });
  EXPECT_TRUE(run_until(loop, [&] { return end; }));
  EXPECT_FALSE(fired);
}

TEST(Loop, ATimerMayDestroyItselfAndStartAnother) {
  Loop loop;
  int fired = 0;
  std::unique_ptr<Loop::Timer> timer;
  timer = loop.after(Duration::zero(), [&] {
    ++fired;
    timer = loop.after(Duration::zero(), [&] { ++fired; });
  });
  EXPECT_TRUE(run_until(loop, [&] { return fired == 2; }));
}

// The loop doesn't run for longer than the timer's delay, as that of a process that was stopped. The answer
// that its work waits for is in the socket by then.
TEST(Loop, ATimerOfALoopThatWasAwayFiresAfterWhatCameMeanwhile) {
  Loop loop;
  std::unique_ptr<Stream> accepted, dialed;
  auto listener = *listen(loop, {"127.0.0.1", 0}, [&](auto stream) { accepted = std::move(stream); });
  const auto connecting = connect(loop, listener->endpoint(), std::chrono::seconds(20),
                                  [&](auto stream) { dialed = *std::move(stream); });
  ASSERT_TRUE(run_until(loop, [&] { return accepted && dialed; }));
  std::vector<std::string> order;
  std::array<std::byte, 3> answer{};
  accepted->read(std::span(answer).first(1), [&](const Status&) {
    accepted->read(std::span(answer).subspan(1, 1), [&](const Status&) {
      accepted->read(std::span(answer).subspan(2), [&](const Status&) { order.emplace_back("answer"); });
    });
  });
  dialed->write({answer}, [](const Status&) {});
  const Instant due = now() + std::chrono::milliseconds(1);
  const auto silence = loop.after(std::chrono::milliseconds(1), [&] { order.emplace_back("silence"); });
  while (now() < due + std::chrono::milliseconds(150)) {
  }
  EXPECT_TRUE(run_until(loop, [&] { return order.size() == 2; }));
  EXPECT_EQ(order, (std::vector<std::string>{"answer", "silence"}));
}

TEST(Loop, ATimerWaitsAgainIfTheLoopWasAwayAgain) {
  Loop loop;
  std::vector<std::string> order;
  const auto away = [](std::chrono::milliseconds time) {
    const Instant end = now() + time;
    while (now() < end) continue;
  };
  const auto silence = loop.after(std::chrono::milliseconds(1), [&] { order.emplace_back("silence"); });
  // An answer that takes several turns, as a frame does that lies in a socket.
  std::function<void(int)> answer = [&](int turns) {
    if (turns == 0) return order.emplace_back("answer"), void();
    loop.post([&, turns] { answer(turns - 1); });
  };
  away(std::chrono::milliseconds(200));
  const auto again = loop.after(std::chrono::milliseconds(2), [&] {
    away(std::chrono::milliseconds(200));  // All of the grace, and more.
    answer(8);
  });
  ASSERT_TRUE(run_until(loop, [&] { return order.size() == 2; }));
  EXPECT_EQ(order, (std::vector<std::string>{"answer", "silence"}));
}

TEST(Loop, TheFarthestDelayIsNoOverflow) {
  Loop loop;
  bool fired = false;
  const auto never = loop.after(Duration::max(), [&] { fired = true; });
  EXPECT_FALSE(run_until(loop, [&] { return fired; }, std::chrono::milliseconds(2)));
}

TEST(Loop, ItGoesOnAfterItRanOutOfWork) {
  Loop loop;
  for (int i = 0; i < 2; ++i) {
    bool fired = false;
    const auto timer = loop.after(Duration::zero(), [&] { fired = true; });
    EXPECT_TRUE(run_until(loop, [&] { return fired; }));
  }
}

TEST(Loop, SignalsRunOnTheLoopEachTime) {
  Loop loop;
  int seen = 0;
  loop.on_signal([&](int number) {
    EXPECT_EQ(number, SIGTERM);
    if (++seen == 1) (void)std::raise(SIGTERM);
  });
  (void)std::raise(SIGTERM);
  EXPECT_TRUE(run_until(loop, [&] { return seen == 2; }));
}

}  // namespace
}  // namespace isthmus::net
