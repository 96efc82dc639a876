// SPDX-License-Identifier: Apache-2.0
// A consumer whose ranks are processes of their own, one of which leads: what one engine would have, or
// nothing anywhere, whoever is killed or stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "groups/side.h"

namespace isthmus::groups {
namespace {

using testing::AnyOf;

constexpr std::array<int, 3> kMembers{1, 2, 1};  // Of each rank: the middle one reads from both.

class RankProcesses : public testing::TestWithParam<const char*> {
 protected:
  void begin(const std::string& pace) {
    p = std::make_unique<SideProcess>("producer", GetParam(), pace);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      ranks[i] = std::make_unique<SideProcess>("rank" + std::to_string(i), GetParam(), pace);
    ranks[0]->say("where");
    const std::string lead = ranks[0]->hear();
    for (std::size_t i = 1; i < ranks.size(); ++i) ranks[i]->say("join " + lead);
    ranks[0]->await("complete");
    p->say("offer");
    for (std::string line = p->hear(); line != "offered"; line = p->hear()) {
      ASSERT_TRUE(line.starts_with("member ")) << line;
      ranks[0]->say(line);
    }
    ranks[0]->say("fetch");
    ASSERT_EQ(ranks[0]->hear(), "fetching");
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i]->say("members " + std::to_string(kMembers[i]));
  }
  // Each member has moved a part, and lacks the rest.
  void begin_and_go_half_way() {
    begin("hasty");
    p->say("publish " + std::to_string(kTile));
    for (const auto& rank : ranks) rank->await("moving");
  }
  void go_on() const {
    p->say("publish " + std::to_string(kPrompt));
    p->say("seal");
  }
  // All that it had sessions with has ended.
  static void expect_baseline_and_end(SideProcess& process) {
    process.await("baseline");
    EXPECT_EQ(process.end(), 0);
  }

  std::unique_ptr<SideProcess> p;
  std::array<std::unique_ptr<SideProcess>, 3> ranks;
};
INSTANTIATE_TEST_SUITE_P(Over, RankProcesses, testing::Values("tcp", "shm"),
                         [](const auto& each) { return std::string(each.param); });

// Their memories, put together, are an engine's that goes on from them.
class Assembled {
 public:
  Assembled() : engine_(*engine::make_reference(decoder())) {
    sequence_ = *engine_->open(kPrompt + kAnswerTokens);
    ranks_ = *engine_->bindings(sequence_, {0, kPrompt});
  }
  void take(std::size_t rank, SideProcess& process) {
    const std::filesystem::path path =
        std::filesystem::path(testing::TempDir()) / ("ranks-" + std::to_string(getpid()) + ".memory");
    process.say("memory " + path.string());
    EXPECT_EQ(process.hear(), "written");
    std::ifstream in(path, std::ios::binary);
    for (const kv::Binding& binding : ranks_[rank].groups) {
      for (const kv::RegionMemory& region : binding.memory) {
        in.read(reinterpret_cast<char*>(region.base), static_cast<std::streamsize>(region.bytes));
        EXPECT_EQ(in.gcount(), static_cast<std::streamsize>(region.bytes));
      }
    }
    EXPECT_EQ(in.peek(), std::ifstream::traits_type::eof());
    std::filesystem::remove(path);
  }
  Logits answer(engine::TokenId first) {
    EXPECT_TRUE(engine_->kv_sink()->adopt(sequence_, {0, kPrompt}).ok());
    return groups::go_on(*engine_, sequence_, first);
  }

 private:
  std::unique_ptr<engine::ReferenceEngine> engine_;
  engine::SequenceId sequence_ = 0;
  std::vector<transform::RankMemory> ranks_;
};

TEST_P(RankProcesses, TogetherHaveWhatOneEngineWouldHave) {
  begin("patient");
  go_on();
  for (const auto& rank : ranks) EXPECT_EQ(rank->await("over"), "1 owned");
  EXPECT_EQ(p->await("over"), "1 done");
  Assembled engine;
  for (std::size_t i = 0; i < ranks.size(); ++i) engine.take(i, *ranks[i]);
  const auto one = *engine::make_reference(decoder());
  const engine::SequenceId sequence = *one->open(kPrompt + kAnswerTokens);
  const engine::TokenId first = best(run(*one, sequence, prompt_of(kPrompt)));
  EXPECT_EQ(engine.answer(first), groups::go_on(*one, sequence, first));
  p->await("bare");
  for (const auto& rank : ranks) rank->await("bare");
  EXPECT_EQ(p->end(), 0);
  EXPECT_EQ(ranks[0]->end(), 0);
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    ranks[i]->await("lost");
    expect_baseline_and_end(*ranks[i]);
  }
}

TEST_P(RankProcesses, OneThatIsKilledEndsTheGroupEverywhere) {
  begin_and_go_half_way();
  ranks[1]->kill();
  EXPECT_EQ(ranks[0]->await("over"), "1 peer_lost");
  EXPECT_EQ(ranks[2]->await("over"), "1 peer_lost");
  EXPECT_EQ(p->await("over"), "1 expired");
  p->await("bare");
  ranks[2]->await("bare");
  EXPECT_EQ(ranks[2]->end(), 0);
  EXPECT_EQ(p->end(), 0);
  EXPECT_EQ(ranks[0]->await("over"), "1 peer_lost") << "its end was told again";
  expect_baseline_and_end(*ranks[0]);
}

TEST_P(RankProcesses, AKilledLeadLeavesNothingAtTheOthers) {
  begin_and_go_half_way();
  ranks[0]->kill();
  for (std::size_t i = 1; i < ranks.size(); ++i) EXPECT_EQ(ranks[i]->await("over"), "1 peer_lost");
  EXPECT_EQ(p->await("over"), "1 expired");
  p->await("bare");
  EXPECT_EQ(p->end(), 0);
  for (std::size_t i = 1; i < ranks.size(); ++i) expect_baseline_and_end(*ranks[i]);
}

TEST_P(RankProcesses, AKilledProducerEndsTheGroupOnceEverywhere) {
  begin_and_go_half_way();
  p->kill();
  for (const auto& rank : ranks) EXPECT_EQ(rank->await("over"), "1 peer_lost");
  for (const auto& rank : ranks) rank->await("bare");
  EXPECT_EQ(ranks[0]->end(), 0);
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    EXPECT_EQ(ranks[i]->await("over"), "1 peer_lost") << "its end was told again";
    expect_baseline_and_end(*ranks[i]);
  }
}

// A stopped lead closes nothing, and the others have verified all: they have their deadlines alone.
TEST_P(RankProcesses, AStoppedLeadHoldsNothingOfTheOthers) {
  begin_and_go_half_way();
  ranks[0]->signal(SIGSTOP);
  go_on();
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    EXPECT_EQ(ranks[i]->await("over"), "1 timed_out");
    ranks[i]->await("bare");
  }
  EXPECT_EQ(p->await("over"), "1 expired");
  p->await("bare");
  ranks[0]->kill();
  EXPECT_EQ(p->end(), 0);
  for (std::size_t i = 1; i < ranks.size(); ++i) expect_baseline_and_end(*ranks[i]);
}

}  // namespace
}  // namespace isthmus::groups
