// SPDX-License-Identifier: Apache-2.0
// How often each kind of event has met each state of both cores.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "handoff/core/events.h"

namespace isthmus::handoff::sim {

class Coverage {
 public:
  void count(ProducerState state, ProducerEvent event) {
    ++producer_[static_cast<std::size_t>(event)][static_cast<std::size_t>(state)];
  }
  void count(ConsumerState state, ConsumerEvent event) {
    ++consumer_[static_cast<std::size_t>(event)][static_cast<std::size_t>(state)];
  }
  void add(const Coverage& other);

  // Pairs that are possible and were never met: "producer: CREDIT in sealed".
  std::vector<std::string> missing() const;
  // Both tables with the reasons of what is impossible, in Markdown.
  std::string page() const;

 private:
  template <std::size_t States, std::size_t Events>
  using Counts = std::array<std::array<std::uint64_t, States>, Events>;

  Counts<kProducerStates, kProducerEvents> producer_{};
  Counts<kConsumerStates, kConsumerEvents> consumer_{};
};

}  // namespace isthmus::handoff::sim
