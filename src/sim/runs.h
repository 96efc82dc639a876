// SPDX-License-Identifier: Apache-2.0
// Many seeds through the virtual world, and what came of them together.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/coverage.h"

namespace isthmus::handoff::sim {

inline constexpr std::uint32_t kRequestsPerSeed = 60;

struct RunOptions {
  std::uint64_t first = 1, seeds = 100;
  bool twice = false;      // Each seed again: another trace is a violation.
  std::uint32_t jobs = 1;  // Threads; the sums don't depend on it.
  // Asked before each seed: no more are begun, and the sums are those of the seeds up to there.
  std::function<bool()> is_stopped = {};
};

struct BrokenSeed {
  std::uint64_t seed = 0;
  std::vector<std::string> violations;
};

struct Summary {
  std::uint64_t seeds = 0, handoffs = 0, owned = 0, events = 0;
  std::map<std::string, std::uint64_t> consumer_ends, producer_ends;
  std::set<std::string> transitions;
  Coverage coverage;
  std::vector<BrokenSeed> broken;
  std::string trace_hash;  // Of the traces of all seeds in their order.
};

// `after_seed` is called with what there is so far, all but the hash; by one thread at a time.
Summary run_handoffs(const RunOptions& options, const std::function<void(const Summary&)>& after_seed);

}  // namespace isthmus::handoff::sim
