// SPDX-License-Identifier: Apache-2.0
// Sums and tables.
#include "sim/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

namespace isthmus::handoff::sim {
namespace {

template <typename Counts>
void add_counts(Counts& sum, const Counts& more) {
  for (std::size_t event = 0; event < sum.size(); ++event) {
    for (std::size_t state = 0; state < sum[event].size(); ++state) sum[event][state] += more[event][state];
  }
}

// Calls `use` with state, event and count of every pair.
template <typename State, typename Event, typename Counts, typename Use>
void each_pair(const Counts& counts, const Use& use) {
  for (std::size_t event = 0; event < counts.size(); ++event) {
    for (std::size_t state = 0; state < counts[event].size(); ++state)
      use(static_cast<State>(state), static_cast<Event>(event), counts[event][state]);
  }
}

// The final state stands for what is unknown or over.
template <typename State>
std::string_view column(State state, std::size_t states) {
  return static_cast<std::size_t>(state) + 1 == states ? "none" : name(state);
}

template <typename State, typename Event, typename Counts>
std::string table(const Counts& counts, std::span<const Impossible<State, Event>> impossible) {
  const std::size_t states = counts[0].size();
  std::vector<std::string_view> reasons;
  for (const auto& pair : impossible) {
    if (std::ranges::find(reasons, pair.why) == reasons.end()) reasons.push_back(pair.why);
  }
  std::string head = "| event |", rule = "|---|", rows;
  for (std::size_t state = 0; state < states; ++state) {
    head += fmt::format(" {} |", column(static_cast<State>(state), states));
    rule += "--:|";
  }
  each_pair<State, Event>(counts, [&](State state, Event event, std::uint64_t count) {
    if (static_cast<std::size_t>(state) == 0) rows += fmt::format("| {} |", name(event));
    const auto pair = std::ranges::find_if(
        impossible, [&](const auto& each) { return each.state == state && each.event == event; });
    const auto reason = [&] { return std::ranges::find(reasons, pair->why) - reasons.begin(); };
    rows += pair == impossible.end() ? fmt::format(" {} |", count)
                                     : fmt::format(" {} |", static_cast<char>('a' + reason()));
    if (static_cast<std::size_t>(state) + 1 == states) rows += '\n';
  });
  std::string notes;
  for (std::size_t i = 0; i < reasons.size(); ++i)
    notes += fmt::format("- {}: {}\n", static_cast<char>('a' + i), reasons[i]);
  return fmt::format("{}\n{}\n{}\n{}", head, rule, rows, notes);
}

}  // namespace

void Coverage::add(const Coverage& other) {
  add_counts(producer_, other.producer_);
  add_counts(consumer_, other.consumer_);
}

std::vector<std::string> Coverage::missing() const {
  std::vector<std::string> pairs;
  const auto look = [&pairs](std::string_view core) {
    return [&pairs, core](auto state, auto event, std::uint64_t count) {
      if (count == 0 && is_possible(state, event))
        pairs.push_back(fmt::format("{}: {} in {}", core, name(event), name(state)));
    };
  };
  each_pair<ProducerState, ProducerEvent>(producer_, look("producer"));
  each_pair<ConsumerState, ConsumerEvent>(consumer_, look("consumer"));
  return pairs;
}

std::string Coverage::page() const {
  return fmt::format("## Producer\n\n{}\n## Consumer\n\n{}", table(producer_, producer_impossible()),
                     table(consumer_, consumer_impossible()));
}

}  // namespace isthmus::handoff::sim
