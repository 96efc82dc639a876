// SPDX-License-Identifier: Apache-2.0
// A state from two ranks to three, each end a process of its own: handed over whole, or, when one of them is
// killed or stopped half-way, ended by the other alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "groups/side.h"

namespace isthmus::groups {
namespace {

using testing::AnyOf;

// What one engine alone answers.
std::string expected_answer() {
  return digest_of(alone(decoder(), prompt_of(kPrompt)));
}

// The second half of a killed end's transfer never comes.
class GroupProcesses : public testing::TestWithParam<const char*> {
 protected:
  static void connect(SideProcess& p, SideProcess& d) {
    p.say("offer");
    int members = 0;
    for (std::string line = p.hear(); line != "offered"; line = p.hear(), ++members) {
      ASSERT_TRUE(line.starts_with("member ")) << line;
      d.say(line);
    }
    EXPECT_EQ(members, 4) << "the middle rank reads from both";
    d.say("fetch");
    ASSERT_EQ(d.hear(), "fetching");
  }
  // Each member has moved a part, and lacks the rest.
  static void go_half_way(SideProcess& p, SideProcess& d) {
    connect(p, d);
    p.say("publish " + std::to_string(kTile));
    d.await("moving");
  }
  static void expect_answer(SideProcess& d, std::size_t computed) {
    d.say("answer");
    EXPECT_EQ(d.hear(), "answer " + expected_answer() + ' ' + std::to_string(computed));
  }
};
INSTANTIATE_TEST_SUITE_P(Over, GroupProcesses, testing::Values("tcp", "shm"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(GroupProcesses, AStateArrivesAsOneEngineWouldHaveIt) {
  SideProcess p("producer", GetParam(), "patient"), d("consumer", GetParam(), "patient");
  connect(p, d);
  p.say("publish " + std::to_string(kPrompt));
  p.say("seal");
  EXPECT_EQ(d.await("over"), "1 owned");
  EXPECT_EQ(p.await("over"), "1 done");
  expect_answer(d, kAnswerTokens);
  p.await("bare");
  d.await("bare");
  EXPECT_EQ(p.end(), 0);
  d.await("baseline");
  EXPECT_EQ(d.end(), 0);
}

TEST_P(GroupProcesses, AProducerThatIsKilledLeavesNothingAtTheConsumer) {
  SideProcess p("producer", GetParam(), "hasty"), d("consumer", GetParam(), "hasty");
  go_half_way(p, d);
  p.kill();
  EXPECT_EQ(d.await("over"), "1 peer_lost");
  d.await("baseline");
  expect_answer(d, kPrompt + kAnswerTokens);
  EXPECT_EQ(d.await("over"), "1 peer_lost") << "its end was told again";
  EXPECT_EQ(d.end(), 0);
}

TEST_P(GroupProcesses, AConsumerThatIsKilledLeavesNothingAtTheProducer) {
  SideProcess p("producer", GetParam(), "hasty"), d("consumer", GetParam(), "hasty");
  go_half_way(p, d);
  d.kill();
  EXPECT_EQ(p.await("over"), "1 expired");
  p.await("baseline");
  EXPECT_EQ(p.await("over"), "1 expired") << "its end was told again";
  EXPECT_EQ(p.end(), 0);
}

// A stopped process closes nothing: the other one has its deadlines alone.
TEST_P(GroupProcesses, AProducerThatIsStoppedHoldsNothingOfTheConsumers) {
  SideProcess p("producer", GetParam(), "hasty"), d("consumer", GetParam(), "hasty");
  go_half_way(p, d);
  p.signal(SIGSTOP);
  EXPECT_THAT(d.await("over"), AnyOf("1 expired", "1 peer_lost"));
  d.await("bare");
  p.kill();
  d.await("baseline");
  EXPECT_EQ(d.end(), 0);
}

TEST_P(GroupProcesses, AConsumerThatIsStoppedHoldsNothingOfTheProducers) {
  SideProcess p("producer", GetParam(), "hasty"), d("consumer", GetParam(), "hasty");
  go_half_way(p, d);
  d.signal(SIGSTOP);
  EXPECT_EQ(p.await("over"), "1 expired");
  p.await("bare");
  d.kill();
  p.await("baseline");
  EXPECT_EQ(p.end(), 0);
}

}  // namespace
}  // namespace isthmus::groups
