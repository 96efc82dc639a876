// SPDX-License-Identifier: Apache-2.0
// Promises, preemption and return: by example, and any mix of requests against the rules of
// spec/scheduler.md.
#include "scheduler/room.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>

#include "scheduler/scheduler.h"

namespace isthmus::scheduler {
namespace {

using Ids = std::vector<RequestId>;

// A request that decodes, with `held` blocks of `claim`, each of one token.
void run(Room& room, RequestId id, std::uint64_t held, std::uint64_t claim) {
  ASSERT_TRUE(room.admits({held, claim}, 0)) << id;
  room.open(id, {held, claim});
  room.start(id);
}

std::vector<std::pair<RequestId, std::uint64_t>> parked(const Moves& moves) {
  std::vector<std::pair<RequestId, std::uint64_t>> found;
  for (const Moves::Park& park : moves.park) found.emplace_back(park.request, park.blocks);
  return found;
}

TEST(Room, AnEngineThatReservesByItselfIsNeverInTheWay) {
  Room room({});
  EXPECT_TRUE(room.admits({1'000'000, 2'000'000}, 7));
  room.open(1, {10, 20});
  room.start(1);
  EXPECT_TRUE(room.settle({{1, 11}}, 0).park.empty());
  EXPECT_FALSE(room.is_preempted(1));
}

TEST(Room, WithoutParkingClaimsAreReservedInFull) {
  Room room({.block_tokens = 32, .pool = 10, .parking = 0});
  EXPECT_FALSE(room.admits({1, 321}, 0));
  room.open(1, {32, 160});
  room.start(1);
  EXPECT_TRUE(room.admits({32, 160}, 0));
  EXPECT_FALSE(room.admits({32, 161}, 0)) << "11 blocks of 10 in all";
  EXPECT_FALSE(room.admits({32, 160}, 1)) << "and one that somebody still reads";
  room.close(1);
  EXPECT_TRUE(room.admits({320, 320}, 0));
}

TEST(Room, TheYoungestWaitsAndOnlyWhatIsNeededIsParked) {
  Room room({.block_tokens = 1, .pool = 10, .parking = 8});
  run(room, 1, 2, 6);
  run(room, 2, 2, 6);
  run(room, 3, 2, 6);
  EXPECT_FALSE(room.admits({1, 1}, 0)) << "18 are promised";
  EXPECT_TRUE(room.settle({{1, 3}, {2, 3}, {3, 3}}, 0).park.empty());
  const Moves moves = room.settle({{1, 4}, {2, 4}, {3, 4}}, 0);
  EXPECT_EQ(parked(moves), (std::vector<std::pair<RequestId, std::uint64_t>>{{3, 2}}));
  EXPECT_TRUE(room.is_preempted(3));
  EXPECT_EQ(room.usage().held, 10u);
  EXPECT_EQ(room.usage().parked, 1u);
  EXPECT_EQ(parked(room.settle({{1, 5}, {2, 5}}, 0)),
            (std::vector<std::pair<RequestId, std::uint64_t>>{{3, 0}}));
  room.close(2);
  EXPECT_EQ(room.settle({{1, 5}}, 0).unpark, Ids{3});
  EXPECT_FALSE(room.is_preempted(3));
}

TEST(Room, WhoComesBackHasRoomForABlockOfEachThatRuns) {
  Room room({.block_tokens = 1, .pool = 6, .parking = 6});
  run(room, 1, 2, 6);
  run(room, 2, 2, 6);
  EXPECT_EQ(room.settle({{1, 3}, {2, 3}}, 0).park.size(), 0u);
  EXPECT_EQ(room.settle({{1, 4}, {2, 4}}, 0).park.size(), 1u);
  room.close(1);
  EXPECT_EQ(room.settle({}, 0).unpark, Ids{2});
  Room tight({.block_tokens = 1, .pool = 6, .parking = 6});
  run(tight, 1, 1, 2);
  run(tight, 2, 1, 6);
  run(tight, 3, 1, 4);
  EXPECT_TRUE(tight.settle({{1, 2}, {2, 2}, {3, 2}}, 0).park.empty());
  EXPECT_EQ(tight.settle({{2, 3}, {3, 3}}, 0).park.size(), 1u);
  tight.close(1);
  EXPECT_TRUE(tight.settle({{2, 3}}, 0).unpark.empty()) << "2 held, 1 parked, and one each: 7 of 6";
  EXPECT_TRUE(tight.is_preempted(3));
}

TEST(Room, NobodyIsOpenedWhileSomebodyWaits) {
  Room room({.block_tokens = 1, .pool = 4, .parking = 4});
  run(room, 1, 1, 4);
  run(room, 2, 1, 3);
  (void)room.settle({{1, 2}, {2, 2}}, 0);
  (void)room.settle({{1, 3}, {2, 3}}, 0);
  ASSERT_TRUE(room.is_preempted(2));
  EXPECT_FALSE(room.admits({0, 1}, 0));
}

TEST(Room, ThePinnedAndTheLargestClaimFitThePoolTogether) {
  Room room({.block_tokens = 1, .pool = 10, .parking = 100});
  run(room, 1, 1, 6);
  EXPECT_TRUE(room.admits({1, 4, Pinned::kAlways}, 0));
  EXPECT_FALSE(room.admits({1, 5, Pinned::kUntilStarted}, 0));
  EXPECT_FALSE(room.admits({1, 4, Pinned::kAlways}, 1));
  EXPECT_TRUE(room.admits({1, 10}, 0)) << "that could be parked";
  room.open(2, {2, 3, Pinned::kUntilStarted});
  EXPECT_FALSE(room.admits({1, 8}, 0));
  room.start(2);
  EXPECT_TRUE(room.admits({1, 8}, 0));
}

TEST(Room, WhatAClosedOneLeavesHeldIsNoRoom) {
  Room room({.block_tokens = 1, .pool = 10, .parking = 10});
  run(room, 1, 4, 5);
  EXPECT_TRUE(room.admits({3, 4}, 1));
  EXPECT_FALSE(room.admits({3, 4}, 2));
  run(room, 2, 3, 5);
  (void)room.settle({{1, 5}, {2, 4}}, 2);
  EXPECT_TRUE(room.is_preempted(2));
  EXPECT_EQ(room.usage().parked, 0u) << "5, 3 and 2";
  (void)room.settle({}, 2);
  EXPECT_TRUE(room.is_preempted(2));
  (void)room.settle({}, 1);
  EXPECT_FALSE(room.is_preempted(2));
}

// No promise covers that: they wait until it is gone.
TEST(Room, MoreThatLingersThanWasClosedMakesAllWaitAtWorst) {
  Room room({.block_tokens = 1, .pool = 6, .parking = 1});
  run(room, 1, 2, 4);
  run(room, 2, 2, 3);
  EXPECT_EQ(parked(room.settle({{1, 3}, {2, 3}}, 2)),
            (std::vector<std::pair<RequestId, std::uint64_t>>{{2, 1}}));
  EXPECT_TRUE(room.settle({{1, 4}}, 2).park.empty());
  EXPECT_TRUE(room.is_preempted(1));
  (void)room.settle({}, 0);
  EXPECT_FALSE(room.is_preempted(1));
}

TEST(Room, OneThatIsAdoptedBehindOneThatWaitsIsPreemptedToo) {
  Room room({.block_tokens = 1, .pool = 9, .parking = 9});
  run(room, 1, 2, 4);
  run(room, 2, 2, 4);
  room.open(3, {2, 3, Pinned::kUntilStarted});
  (void)room.settle({{1, 3}, {2, 3}}, 0);
  (void)room.settle({{1, 4}, {2, 4}}, 0);
  ASSERT_TRUE(room.is_preempted(2));
  room.start(3);
  EXPECT_TRUE(room.is_preempted(3));
  room.close(1);
  (void)room.settle({}, 0);
  EXPECT_FALSE(room.is_preempted(2));
  EXPECT_FALSE(room.is_preempted(3));
}

// --- Any mix, against a second account of who has what.

struct Request {
  std::uint64_t prompt = 1, most = 1;   // Tokens.
  std::uint64_t arrives = 0, ends = 1;  // Steps; `ends` of it alone.
  bool is_pinned = false, is_handed_over = false;
  std::uint64_t lingers = 0, fills = 0;  // Steps after its end; steps until it is adopted.
};

struct Limit {
  Memory memory;
  std::uint32_t sequences = 1;
};

class Mix {
 public:
  Mix(const Limit& limit, std::vector<Request> requests)
      : limit_(limit),
        requests_(std::move(requests)),
        scheduler_({.step_tokens_max = limit.sequences + 64,
                    .sequences_max = limit.sequences,
                    .prefill_cut_tokens = 64,
                    .prefill_unit_tokens = 2},
                   limit.memory) {}

  // The number of preemptions.
  std::uint64_t run() {
    std::uint64_t steps_max = 100;
    for (const Request& request : requests_)
      steps_max += request.arrives + request.prompt + request.most + request.lingers + request.fills + 10;
    for (; ended_ < requests_.size(); ++step_) {
      RC_ASSERT(step_ <= steps_max);
      admit();
      adopt();
      settle();
      advance();
    }
    RC_ASSERT(live_.empty());
    RC_ASSERT(scheduler_.room().preemptions == preemptions_);
    return preemptions_;
  }

 private:
  struct Live {
    RequestId id = 0;
    std::uint64_t computed = 0, held = 0, parked = 0, steps = 0, opened = 0;
    bool runs = false, waits = false;
  };

  std::uint64_t blocks(std::uint64_t tokens) const {
    return (tokens + limit_.memory.block_tokens - 1) / limit_.memory.block_tokens;
  }
  std::uint64_t lingering() const {
    std::uint64_t sum = 0;
    for (const auto& [until, blocks] : lingering_) sum += until > step_ ? blocks : 0;
    return sum;
  }

  void admit() {
    for (; next_ < requests_.size() && requests_[next_].arrives <= step_; ++next_) {
      const Request& request = requests_[next_];
      const Pinned pinned = request.is_pinned        ? Pinned::kAlways
                            : request.is_handed_over ? Pinned::kUntilStarted
                                                     : Pinned::kNever;
      const Claim claim{request.prompt, request.most, pinned};
      if (live_.size() >= limit_.sequences || !scheduler_.admits(claim, lingering())) break;
      scheduler_.open(next_, claim);
      live_.push_back({.id = next_, .held = blocks(request.prompt), .opened = step_});
      quiet_until_ = step_ + limit_.memory.block_tokens;
      if (request.is_handed_over) continue;
      RC_ASSERT(scheduler_.add(next_, request.prompt, 0).ok());
      live_.back().runs = true;
    }
  }

  void adopt() {
    for (Live& live : live_) {
      const Request& request = requests_[live.id];
      if (live.runs || !request.is_handed_over || step_ < live.opened + request.fills) continue;
      live.computed = request.prompt;
      live.runs = true;
      RC_ASSERT(scheduler_.add(live.id, request.prompt, request.prompt).ok());
      live.waits = scheduler_.is_preempted(live.id);
      preemptions_ += live.waits ? 1 : 0;
    }
  }

  Live& live(RequestId id) { return *std::ranges::find(live_, id, &Live::id); }

  void settle() {
    const Moves moves = scheduler_.settle(lingering());
    RC_ASSERT(moves.park.empty() || moves.unpark.empty());
    for (const RequestId id : moves.unpark) {
      Live& back = live(id);
      RC_ASSERT(back.waits && back.parked > 0);
      back.held += std::exchange(back.parked, 0);
    }
    for (const Moves::Park& park : moves.park) {
      Live& left = live(park.request);
      RC_ASSERT(park.blocks < left.held && !requests_[left.id].is_pinned && left.runs);
      left.parked += left.held - park.blocks;
      left.held = park.blocks;
    }
    for (Live& one : live_) {
      const bool waits = scheduler_.is_preempted(one.id);
      if (waits && !one.waits) {
        RC_ASSERT(step_ >= quiet_until_);
        ++preemptions_;
      }
      if (!waits && one.waits) quiet_until_ = step_ + limit_.memory.block_tokens;
      one.waits = waits;
      RC_ASSERT(waits || one.parked == 0);
    }
    check_order();
  }

  // Whoever waits is younger than all that run, and not pinned.
  void check_order() const {
    bool somebody_waits = false;
    for (const Live& one : live_) {
      somebody_waits = somebody_waits || one.waits;
      RC_ASSERT(!one.waits || (one.runs && !requests_[one.id].is_pinned));
      RC_ASSERT(!somebody_waits || one.waits || !one.runs || requests_[one.id].is_pinned);
    }
  }

  void advance() {
    const auto items = scheduler_.next();
    std::set<RequestId> ran;
    for (const Item& item : items) {
      Live& one = live(item.request);
      RC_ASSERT(!one.waits && item.begin == one.computed);
      one.computed = item.end;
      one.held = std::max(one.held, blocks(item.end));
      RC_ASSERT(one.held + one.parked <= blocks(requests_[one.id].most));
      ran.insert(item.request);
    }
    std::uint64_t held = lingering(), parked = 0;
    for (const Live& one : live_) {
      held += one.held;
      parked += one.parked;
    }
    RC_ASSERT(held <= limit_.memory.pool);
    RC_ASSERT(parked <= limit_.memory.parking);
    const auto oldest = std::ranges::find_if(live_, [](const Live& one) { return one.runs; });
    // Not in one assertion with ||: it shows, and so evaluates, both sides.
    if (oldest != live_.end()) RC_ASSERT(ran.contains(oldest->id));
    scheduler_.ran(items);
    end(ran);
  }

  void end(const std::set<RequestId>& ran) {
    for (auto one = live_.begin(); one != live_.end();) {
      const Request& request = requests_[one->id];
      one->steps += ran.contains(one->id) ? 1 : 0;
      const bool is_full = one->computed >= request.most;
      if (!one->runs || !(is_full || one->steps >= request.ends)) {
        ++one;
        continue;
      }
      if (request.is_pinned && request.lingers > 0)
        lingering_.emplace_back(step_ + request.lingers, one->held);
      scheduler_.close(one->id);
      one = live_.erase(one);
      ++ended_;
    }
  }

  Limit limit_;
  std::vector<Request> requests_;
  Scheduler scheduler_;
  std::vector<Live> live_;  // The oldest first.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> lingering_;
  std::uint64_t step_ = 0, quiet_until_ = 0, preemptions_ = 0;
  std::size_t next_ = 0, ended_ = 0;
};

Request any_request(const Memory& memory, std::uint64_t arrives) {
  using rc::gen::inRange;
  const std::uint64_t room = memory.pool * memory.block_tokens;
  Request request;
  request.most = *inRange<std::uint64_t>(1, room + 1);
  request.prompt = *inRange<std::uint64_t>(1, request.most / *inRange<std::uint64_t>(1, 8) + 2);
  request.prompt = std::min(request.prompt, request.most);
  request.arrives = arrives;
  request.ends = *inRange<std::uint64_t>(1, 200);
  const auto kind = *inRange(0, 8);
  request.is_pinned = kind == 0;
  request.is_handed_over = (kind == 1 || kind == 2) && request.prompt < request.most;
  if (request.is_pinned) {
    request.prompt = request.most;
    request.lingers = *inRange<std::uint64_t>(0, 10);
  }
  request.fills = *inRange<std::uint64_t>(0, 20);
  return request;
}

RC_GTEST_PROP(Room, AnyMixAdvancesWithinItsBoundsInOrder, ()) {
  using rc::gen::inRange;
  Limit limit;
  limit.memory = {.block_tokens = *rc::gen::element<std::uint64_t>(1, 2, 4, 8),
                  .pool = *inRange<std::uint64_t>(1, 24),
                  .parking = *rc::gen::element<std::uint64_t>(0, 1, 3, 10, 30, 100)};
  limit.sequences = *inRange(2u, 9u);
  std::vector<Request> requests;
  const auto count = *inRange<std::size_t>(1, 24);
  for (std::size_t i = 0, at = 0; i < count; ++i) {
    at += *inRange<std::size_t>(0, 6);
    requests.push_back(any_request(limit.memory, at));
  }
  const std::uint64_t preemptions = Mix(limit, std::move(requests)).run();
  RC_ASSERT(limit.memory.parking > 0 || preemptions == 0);
  RC_CLASSIFY(preemptions > 0);
}

}  // namespace
}  // namespace isthmus::scheduler
