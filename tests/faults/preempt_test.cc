// SPDX-License-Identifier: Apache-2.0
// A worker that promises more memory than its pool has: who waits goes on where it was, and ends like any
// other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "faults/duo.h"

namespace isthmus::faults {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::size_t kTokens = 150;
constexpr std::uint64_t kBlock = 32;

// A pool of 8 blocks; two answers of kTokens to a short prompt come to need 6 each.
void tighten(Node& node, std::uint64_t parked_blocks = 8) {
  node.engine.kv_tokens = 8 * kBlock;
  node.engine.parked_tokens = parked_blocks * kBlock;
}

std::unique_ptr<Duo> tight_duo(std::uint64_t parked_blocks = 8) {
  return std::make_unique<Duo>("llamacpp:f16", "openvino:f32",
                               [=](Node&, Node& d) { tighten(d, parked_blocks); });
}

worker::EngineLoopStats stats(Duo& duo) {
  return duo.d().worker->engine().stats();
}

std::unique_ptr<Asking> ask(Duo& duo, const std::string& prompt, bool stream = false) {
  return duo.post(duo.d().http, "/v1/completions", completion_body(prompt, kTokens, stream).dump());
}

// Two answers at once, held before a step in which the second is preempted.
struct Two {
  std::string prompts[2] = {prompt_of(20, 1), prompt_of(20, 2)};
  std::unique_ptr<Asking> asking[2];
};

Two held(Duo& duo) {
  Two two;
  duo.d().gate.hold_after(0);
  for (int i = 0; i < 2; ++i) {
    two.asking[i] = ask(duo, two.prompts[i], true);
    EXPECT_TRUE(duo.until([&] { return duo.d().worker->agent().ledger().live() == i + 1u; }));
  }
  EXPECT_TRUE(duo.until([&] { return duo.d().gate.begun() == 1; }));
  duo.d().gate.hold_after(125);
  EXPECT_TRUE(duo.until([&] { return duo.d().gate.begun() == 127; }));
  EXPECT_EQ(stats(duo).jobs_preempted, 1u);
  EXPECT_GT(stats(duo).usage.blocks_parked, 0u);
  return two;
}

TEST(Preempt, OneThatWaitedAnswersAsAlone) {
  const auto duo = tight_duo();
  const Two two = held(*duo);
  const auto shown = duo->d().worker->engine().sequences();
  EXPECT_EQ(std::ranges::count(shown, true, &worker::SequenceView::is_preempted), 1);
  EXPECT_EQ(Duo::count(duo->d(), "isthmus_jobs_preempted"), 0) << "not asked for its metrics yet";
  duo->d().gate.open();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(duo->finish(*two.asking[i]).text(), support::fake_answer(two.prompts[i], kTokens));
  EXPECT_EQ(stats(*duo).preemptions, 1u);
  EXPECT_TRUE(duo->settled()) << Duo::holdings(duo->d());
}

TEST(Preempt, ManyAtOnceAnswerAsAloneInTurn) {
  const auto duo = tight_duo(24);
  duo->d().gate.hold_after(0);
  std::vector<std::string> prompts;
  std::vector<std::unique_ptr<Asking>> asking;
  for (unsigned i = 0; i < 5; ++i) {
    prompts.push_back(prompt_of(10 + 7 * i, i));
    asking.push_back(ask(*duo, prompts.back(), i % 2 == 0));
  }
  ASSERT_TRUE(duo->until([&] { return duo->d().worker->agent().ledger().live() == 5; }));
  duo->d().gate.open();
  for (std::size_t i = 0; i < asking.size(); ++i)
    EXPECT_EQ(duo->finish(*asking[i]).text(), support::fake_answer(prompts[i], kTokens)) << i;
  EXPECT_GT(stats(*duo).preemptions, 2u);
  EXPECT_TRUE(duo->settled()) << Duo::holdings(duo->d());
}

// Two states come while others wait to begin; all five come to need 30 blocks of 18.
TEST(Preempt, StatesHandedOverWaitToo) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node&, Node& d) {
    tighten(d, 12);
    d.engine.kv_tokens = 18 * kBlock;
  });
  std::vector<std::string> prompts;
  for (unsigned i = 0; i < 5; ++i) prompts.push_back(prompt_of(20, i));
  std::vector<std::unique_ptr<Asking>> asking;
  duo.p().gate.hold_after(0);
  for (unsigned i = 0; i < 2; ++i)
    asking.push_back(duo.ask_decode(prompts[i], duo.prefill(prompts[i]), kTokens, {.fail = true}));
  ASSERT_TRUE(duo.until([&] { return stats(duo).usage.sequences == 2; }));
  duo.d().gate.hold_after(0);
  for (unsigned i = 2; i < 5; ++i) asking.push_back(ask(duo, prompts[i]));
  duo.p().gate.open();
  ASSERT_TRUE(duo.until([&] {
    return Duo::count(duo.d(), "isthmus_handoffs_total", {"side=\"consumer\"", "outcome=\"owned\""}) == 2 &&
           duo.d().worker->agent().ledger().live() == 5;
  }));
  duo.d().gate.open();
  for (std::size_t i = 0; i < asking.size(); ++i)
    EXPECT_EQ(duo.finish(*asking[i]).text(), support::fake_answer(prompts[i], kTokens)) << i;
  EXPECT_GT(stats(duo).preemptions, 0u);
  EXPECT_EQ(stats(duo).prompt_tokens_adopted, 40u);
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

TEST(Preempt, AClientThatLeavesWhileItsAnswerWaitsLeavesNothing) {
  const auto duo = tight_duo();
  Two two = held(*duo);
  two.asking[1] = nullptr;
  ASSERT_TRUE(
      duo->until([&] { return Duo::count(duo->d(), "isthmus_requests_total", {"disconnected"}) == 1; }));
  duo->d().gate.hold_after(1);
  ASSERT_TRUE(duo->until([&] { return stats(*duo).jobs_running == 1; }));
  EXPECT_EQ(stats(*duo).usage.blocks_parked, 0u);
  duo->d().gate.open();
  EXPECT_EQ(duo->finish(*two.asking[0]).text(), support::fake_answer(two.prompts[0], kTokens));
  EXPECT_TRUE(duo->settled()) << Duo::holdings(duo->d());
}

TEST(Preempt, WhoWaitsComesBackWhenAnOlderOneLeaves) {
  const auto duo = tight_duo();
  Two two = held(*duo);
  two.asking[0] = nullptr;
  ASSERT_TRUE(
      duo->until([&] { return Duo::count(duo->d(), "isthmus_requests_total", {"disconnected"}) == 1; }));
  duo->d().gate.open();
  EXPECT_EQ(duo->finish(*two.asking[1]).text(), support::fake_answer(two.prompts[1], kTokens));
  EXPECT_TRUE(duo->settled()) << Duo::holdings(duo->d());
}

TEST(Preempt, ADeadlineEndsOneThatWaits) {
  const auto duo = std::make_unique<Duo>("llamacpp:f16", "openvino:f32", [](Node&, Node& d) {
    tighten(d);
    d.request_timeout = std::chrono::milliseconds(1500);
  });
  Two two = held(*duo);
  bool is_late = false;
  const auto timer = duo->loop().after(std::chrono::milliseconds(1600), [&] { is_late = true; });
  ASSERT_TRUE(duo->until([&] { return is_late; }));
  duo->d().gate.open();
  for (const auto& asking : two.asking)
    EXPECT_THAT(duo->finish(*asking).error(), StartsWith("deadline_exceeded: "));
  EXPECT_TRUE(duo->settled()) << Duo::holdings(duo->d());
}

TEST(Preempt, ADrainWaitsForThoseThatWait) {
  const auto duo = tight_duo();
  Two two = held(*duo);
  bool is_drained = false;
  duo->d().worker->drain(10 * kPatience, [&] { is_drained = true; });
  duo->d().gate.open();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(duo->finish(*two.asking[i]).text(), support::fake_answer(two.prompts[i], kTokens));
  for (auto& asking : two.asking) asking.reset();
  EXPECT_TRUE(duo->until([&] { return is_drained; }));
}

TEST(Preempt, WithoutParkingWhatMayNotFitIsRefused) {
  const auto duo = tight_duo(0);
  duo->d().gate.hold_after(1);
  const std::string prompts[] = {prompt_of(20, 1), prompt_of(20, 2)};
  const auto first = ask(*duo, prompts[0]);
  ASSERT_TRUE(duo->until([&] { return duo->d().gate.begun() == 2; }));
  const auto second = ask(*duo, prompts[1]);
  EXPECT_EQ(duo->finish(*second).status, 429);
  duo->d().gate.open();
  EXPECT_EQ(duo->finish(*first).text(), support::fake_answer(prompts[0], kTokens));
  EXPECT_EQ(stats(*duo).preemptions, 0u);
  EXPECT_TRUE(duo->settled());
}

// What is promised over the pool ends at what can be parked.
TEST(Preempt, PromisesEndAtWhatCanBeParked) {
  const auto duo = tight_duo(4);
  duo->d().gate.hold_after(1);
  std::vector<std::unique_ptr<Asking>> asking;
  for (unsigned i = 0; i < 2; ++i) asking.push_back(ask(*duo, prompt_of(20, i)));
  ASSERT_TRUE(duo->until([&] { return duo->d().worker->agent().ledger().live() == 2; }));
  const auto third = ask(*duo, prompt_of(20, 3));
  EXPECT_EQ(duo->finish(*third).status, 429) << "12 of 8 + 4 blocks are promised";
  EXPECT_THAT(third->answer.error(), HasSubstr("exhausted"));
  duo->d().gate.open();
  for (unsigned i = 0; i < 2; ++i)
    EXPECT_EQ(duo->finish(*asking[i]).text(), support::fake_answer(prompt_of(20, i), kTokens));
  EXPECT_TRUE(duo->settled());
}

}  // namespace
}  // namespace isthmus::faults
