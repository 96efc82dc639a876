// SPDX-License-Identifier: Apache-2.0
// spec/handoff.md and the code have the same tables.
#include "handoff/core/states.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

namespace isthmus::handoff {
namespace {

// Rows "| from | to | cause |" of the table under `heading`.
std::set<std::string> spec_rows(const std::string& heading) {
  std::ifstream in(ISTHMUS_HANDOFF_SPEC);
  std::set<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) inside = line == "### " + heading;
    if (!inside || !line.starts_with("| ") || line == "| from | to | cause |") continue;
    rows.insert(line);
  }
  return rows;
}

template <typename State>
std::set<std::string> code_rows(std::span<const Transition<State>> table) {
  std::set<std::string> rows;
  for (const auto& row : table)
    rows.insert(fmt::format("| {} | {} | {} |", name(row.from), name(row.to), row.cause));
  return rows;
}

TEST(States, TheSpecsTablesAreTheCodes) {
  EXPECT_FALSE(spec_rows("Producer transitions").empty());
  EXPECT_EQ(spec_rows("Producer transitions"), code_rows(producer_transitions()));
  EXPECT_EQ(spec_rows("Consumer transitions"), code_rows(consumer_transitions()));
}

// Rows "| duty | cell | … |" of the table under `heading`, whose head is the states' names.
template <typename State, typename Duty>
std::set<std::string> duty_rows(std::size_t states, std::size_t duties) {
  std::set<std::string> rows;
  std::string head = "| duty |";
  for (std::size_t state = 0; state + 1 < states; ++state)
    head += fmt::format(" {} |", name(static_cast<State>(state)));
  rows.insert(head);
  for (std::size_t i = 0; i < duties; ++i) {
    const auto duty = static_cast<Duty>(i);
    std::string row = fmt::format("| {} |", name(duty));
    for (std::size_t state = 0; state + 1 < states; ++state)
      row += fmt::format(" {} |", name(holds(static_cast<State>(state), duty)));
    rows.insert(row);
    EXPECT_EQ(holds(static_cast<State>(states - 1), duty), Holds::kNo);  // The final state has nothing left.
  }
  return rows;
}

TEST(States, TheSpecsDutiesAreTheCodes) {
  EXPECT_EQ(spec_rows("Producer duties"),
            (duty_rows<ProducerState, ProducerDuty>(kProducerStates, kProducerDuties)));
  EXPECT_EQ(spec_rows("Consumer duties"),
            (duty_rows<ConsumerState, ConsumerDuty>(kConsumerStates, kConsumerDuties)));
}

template <typename State>
void expect_final(std::span<const Transition<State>> table, State final_state) {
  std::set<State> seen;
  for (const auto& row : table) {
    EXPECT_NE(row.from, final_state);
    seen.insert(row.from);
    seen.insert(row.to);
  }
  for (const State state : seen) {  // From everywhere there's a way out, and from owned only one.
    if (state == final_state) continue;
    EXPECT_TRUE(std::ranges::any_of(table, [&](const auto& row) { return row.from == state; }))
        << name(state);
  }
}

TEST(States, EveryStateCanEnd) {
  expect_final(producer_transitions(), ProducerState::kReleased);
  expect_final(consumer_transitions(), ConsumerState::kClosed);
  EXPECT_FALSE(is_transition(ConsumerState::kReceiving, ConsumerState::kOwned, "verified"));
  EXPECT_FALSE(is_transition(ConsumerState::kOwned, ConsumerState::kQuiescing, "ended"));
  EXPECT_FALSE(is_transition(ProducerState::kSealed, ProducerState::kReleased, "done"));
}

}  // namespace
}  // namespace isthmus::handoff
