// SPDX-License-Identifier: Apache-2.0
// Tests of the batch scheduler.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

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

TEST(Scheduler, AChunkWaitsRatherThanLeaveOrBeOneToken) {
  // Seven decodes leave 5 tokens of 12; a unit of 4.
  const Limits limits{
      .step_tokens_max = 12, .sequences_max = 7, .prefill_cut_tokens = 8, .prefill_unit_tokens = 4};
  ASSERT_TRUE(limits.are_sound());
  const auto ends = [&](std::uint64_t prompt, std::uint64_t computed) {
    Scheduler scheduler(limits);
    for (RequestId id = 1; id <= 6; ++id) EXPECT_TRUE(scheduler.add(id, 3, 3).ok());
    EXPECT_TRUE(scheduler.add(7, prompt, computed).ok());
    std::vector<std::uint64_t> found;
    for (int step = 0; step < 20 && (found.empty() || found.back() < prompt); ++step) {
      const auto items = scheduler.next();
      if (items.back().request == 7) found.push_back(items.back().end);
      scheduler.ran(items);
    }
    return found;
  };
  using Ends = std::vector<std::uint64_t>;
  EXPECT_EQ(ends(1, 0), Ends{1}) << "a prompt of one token runs alone";
  EXPECT_EQ(ends(5, 0), Ends{5});
  EXPECT_EQ(ends(9, 0), (Ends{4, 9})) << "8 would leave one";
  EXPECT_EQ(ends(10, 0), (Ends{4, 8, 10}));
  EXPECT_EQ(ends(17, 0), (Ends{4, 8, 12, 17}));
  EXPECT_EQ(ends(9, 3), Ends{9}) << "3 to 4 would be one token, 8 would leave one";
  EXPECT_EQ(ends(9, 8), Ends{9}) << "all that it lacks";
}

TEST(Scheduler, LimitsUnderWhichSomeMixNeverAdvancesAreUnsound) {
  const Limits sound{
      .step_tokens_max = 11, .sequences_max = 8, .prefill_cut_tokens = 256, .prefill_unit_tokens = 2};
  EXPECT_TRUE(sound.are_sound());
  const auto unsound = [&](auto change) {
    Limits limits = sound;
    change(limits);
    return !limits.are_sound();
  };
  EXPECT_TRUE(unsound([](Limits& l) { l.step_tokens_max = 10; }));
  EXPECT_TRUE(unsound([](Limits& l) { l.prefill_unit_tokens = 1; }));
  EXPECT_TRUE(unsound([](Limits& l) { l.prefill_unit_tokens = 3; }));
  EXPECT_TRUE(unsound([](Limits& l) { l.sequences_max = 9; }));
}

// A request as rapidcheck draws it.
struct Request {
  std::uint64_t prompt = 1, computed = 0, arrives = 0, generates = 0;
};

class MixOfRequests {
 public:
  MixOfRequests(const Limits& limits, std::vector<Request> requests)
      : limits_(limits), scheduler_(limits), requests_(std::move(requests)) {}

  // Steps until all have run; checks each step.
  void run() {
    std::uint64_t tokens = 0;
    for (const Request& request : requests_) tokens += request.prompt + request.generates + request.arrives;
    for (std::uint64_t step = 0; !is_done(step); ++step) {
      RC_ASSERT(step <= 2 * tokens + 2 * requests_.size());
      admit(step);
      const auto items = scheduler_.next();
      RC_ASSERT(scheduler_.size() == 0 || !items.empty());
      check_step(items);
      scheduler_.ran(items);
      for (const Item& item : items) finish(item);
    }
  }

 private:
  bool is_done(std::uint64_t step) const {
    return waiting(step) == requests_.end() && scheduler_.size() == 0 && entered_.size() == requests_.size();
  }
  std::vector<Request>::const_iterator waiting(std::uint64_t step) const {
    return std::find_if(requests_.begin(), requests_.end(), [&](const Request& request) {
      return request.arrives <= step && !entered_.contains(id_of(request));
    });
  }
  RequestId id_of(const Request& request) const {
    return static_cast<RequestId>(&request - requests_.data());
  }

  void admit(std::uint64_t step) {
    for (auto next = waiting(step); next != requests_.end(); next = waiting(step)) {
      if (!scheduler_.add(id_of(*next), next->prompt, next->computed).ok()) return;
      entered_.insert(id_of(*next));
      at_[id_of(*next)] = next->computed;
    }
  }

  void check_step(const std::vector<Item>& items) {
    std::uint64_t budget = limits_.step_tokens_max;
    std::set<RequestId> seen;
    for (const Item& item : items) {
      const Request& request = requests_[item.request];
      RC_ASSERT(seen.insert(item.request).second);
      RC_ASSERT(item.begin == at_[item.request] && item.end > item.begin);
      RC_ASSERT(item.end - item.begin <= budget);
      budget -= item.end - item.begin;
      RC_ASSERT(item.is_decode == (item.begin >= request.prompt));
      if (!item.is_decode) check_chunk(item, request);
    }
  }

  void check_chunk(const Item& item, const Request& request) const {
    RC_ASSERT(item.end <= request.prompt);
    RC_ASSERT(item.completes_prompt == (item.end == request.prompt));
    RC_ASSERT(item.end - item.begin >= 2 || request.prompt - request.computed == 1);
    RC_ASSERT(item.completes_prompt || item.end % limits_.prefill_unit_tokens == 0);
    // No chunk passes a cut, but for one first or last token.
    const std::uint64_t cut = limits_.prefill_cut_tokens;
    RC_ASSERT(item.end <= ((item.begin + 1) / cut + 1) * cut + (item.completes_prompt ? 1 : 0));
  }

  void finish(const Item& item) {
    at_[item.request] = item.end;
    const Request& request = requests_[item.request];
    if (item.end >= request.prompt + request.generates) scheduler_.remove(item.request);
  }

  Limits limits_;
  Scheduler scheduler_;
  std::vector<Request> requests_;
  std::set<RequestId> entered_;
  std::map<RequestId, std::uint64_t> at_;
};

RC_GTEST_PROP(Scheduler, AnyMixAdvancesInChunksOfTwoTokensAndMore, ()) {
  Limits limits;
  limits.sequences_max = *rc::gen::inRange(1u, 10u);
  limits.prefill_unit_tokens = *rc::gen::element(2u, 4u, 16u, 32u);
  limits.prefill_cut_tokens = limits.prefill_unit_tokens * *rc::gen::inRange(1u, 9u);
  limits.step_tokens_max = limits.sequences_max + limits.prefill_unit_tokens + *rc::gen::inRange(1u, 80u);
  std::vector<Request> requests;
  const auto count = *rc::gen::inRange<std::size_t>(1, 20);
  for (std::size_t i = 0; i < count; ++i) {
    const auto near = limits.prefill_cut_tokens * *rc::gen::inRange<std::uint64_t>(0, 4);
    const auto prompt = near + *rc::gen::inRange<std::uint64_t>(1, 6);
    requests.push_back({.prompt = prompt,
                        .computed = *rc::gen::element<std::uint64_t>(
                            0, 0, 0, prompt, prompt / 2, prompt - 1,
                            std::min<std::uint64_t>(prompt, limits.prefill_unit_tokens - 1)),
                        .arrives = *rc::gen::inRange<std::uint64_t>(0, 30),
                        .generates = *rc::gen::inRange<std::uint64_t>(1, 12)});
  }
  MixOfRequests(limits, std::move(requests)).run();
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
