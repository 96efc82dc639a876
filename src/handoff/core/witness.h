// SPDX-License-Identifier: Apache-2.0
// Test only: keeps its own books of one agent from the actions that its core gives, and compares. Shares no
// code with cores or ledger.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "handoff/core/consumer.h"
#include "handoff/core/ledger.h"
#include "handoff/core/producer.h"

namespace isthmus::handoff::testing {

class Witness {
 public:
  using Report = std::function<void(std::string)>;
  explicit Witness(Report report) : report_(std::move(report)) {}

  void admitted(const Id128& reservation, std::uint64_t pinned_bytes);
  void begun(const wire::HandoffId& handoff, std::uint64_t destination_bytes);
  void engine_released(GrantId grant);
  void sees(const ProducerAction& action);
  void sees(const ConsumerAction& action);

  // After each event: sums by category, number of grants, free + held = capacity.
  void check(const Ledger& ledger) const;
  // When nothing moves any more: every duty is over, exactly once.
  void check_end() const;

 private:
  using AttemptKey = std::pair<wire::HandoffId, std::uint32_t>;
  // What one handoff of a consumer holds, as its actions say.
  struct Held {
    std::uint64_t destination_bytes = 0, staging_bytes = 0;
    bool reserved = false, owned = false, quarantined = false;
    bool staging_released = false, destination_released = false;
    std::uint32_t ends = 0;
  };

  void count_frame(const wire::Frame& frame);

  Report report_;
  std::map<Id128, std::uint64_t> pinned_;
  std::set<Id128> ended_reservations_;
  std::map<AttemptKey, std::uint32_t> plans_, producer_ends_;
  std::map<wire::HandoffId, Held> held_;
  std::map<GrantId, std::uint64_t> active_;
  std::map<std::pair<AttemptKey, std::string>, std::uint32_t> frames_;  // By name.
};

}  // namespace isthmus::handoff::testing
