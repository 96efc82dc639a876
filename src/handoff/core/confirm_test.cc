// SPDX-License-Identifier: Apache-2.0
// What a consumer that has read the producer's memory by itself believes of it: both cores, face to face.
#include <gtest/gtest.h>

#include "handoff/core/both_cores_test.h"
#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using namespace sim;

// Up to D's question: all is read, and seems right.
class Confirm : public ::testing::Test, public TestCores {
 protected:
  Confirm() : TestCores({.at_producer = 0, .at_consumer = 4 * kTestTile * 8}, 1) {
    to_p(open(true));
    const auto said = at_p([&](auto& o) { p.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
    to_d(frames<wire::Plan>(said).at(0));
    at_d([&](auto& o) { d.plan_ready(handoff, 1, plan_facts({0, 600}), now, o); });
    at_d([&](auto& o) { d.capacity_ready(handoff, 1, now, o); });
    to_d(frames<wire::Seal>(said).at(0));
    question = frames<wire::Valid>(at_d([&](auto& o) { d.verified(handoff, 1, {}, now, o); })).at(0);
  }
  ConsumerState state() { return d.state_of(handoff).value_or(ConsumerState::kClosed); }
  std::vector<wire::Validity> answers(const wire::Valid& valid) {
    return frames<wire::Validity>(to_p(valid));
  }

  wire::Valid question;
};

TEST_F(Confirm, TheProducersYesToItsQuestionOwnsTheState) {
  ASSERT_EQ(state(), ConsumerState::kConfirming);
  const auto yes = answers(question);
  ASSERT_EQ(yes.size(), 1u);
  EXPECT_TRUE(yes[0].is_valid);
  EXPECT_EQ(all<Own>(to_d(yes[0])).size(), 1u);
}

TEST_F(Confirm, ANoEndsIt) {
  at_p([&](auto& o) { p.preempted(kReservation, now, o); });
  const auto no = answers(question);
  ASSERT_EQ(no.size(), 1u);
  EXPECT_FALSE(no[0].is_valid);
  EXPECT_EQ(all<ConsumerHandoffEnded>(to_d(no[0])).size(), 1u);
}

TEST_F(Confirm, AnAnswerThatIsntTheProducersCountsForNothing) {
  wire::Validity forged{question.address, question.number, true};
  for (const bool is_valid : {true, false}) {
    forged.is_valid = is_valid;
    EXPECT_TRUE(to_d(forged).empty());
  }
  forged.is_valid = true;
  forged.mac = wire::validity_mac(test_key(2), forged);
  EXPECT_TRUE(to_d(forged).empty());
  wire::Validity changed = answers(question).at(0);
  ++changed.number;
  EXPECT_TRUE(to_d(changed).empty());
  EXPECT_EQ(state(), ConsumerState::kConfirming);
}

// Its answer could come before the consumer has read, and would pass for that to the consumer's own.
TEST_F(Confirm, AQuestionThatIsntTheConsumersHasNoAnswer) {
  wire::Valid forged{question.address, question.number};
  EXPECT_TRUE(answers(forged).empty());
  forged.mac = wire::valid_mac(test_key(2), forged);
  EXPECT_TRUE(answers(forged).empty());
  forged = question;
  ++forged.number;
  EXPECT_TRUE(answers(forged).empty());
}

}  // namespace
}  // namespace isthmus::handoff
