// SPDX-License-Identifier: Apache-2.0
// Seeds are independent: each has a world of its own.
#include "sim/runs.h"

#include "base/bytes.h"
#include "base/digest.h"
#include "sim/faults.h"
#include "sim/world.h"

namespace isthmus::handoff::sim {

Summary run_handoffs(const RunOptions& options, const std::function<void(const Summary&)>& after_seed) {
  Summary sum;
  DigestStream traces;
  for (std::uint64_t seed = options.first; seed - options.first < options.seeds; ++seed) {
    Outcome outcome = World(seed, faults_of(seed), kRequestsPerSeed).run();
    if (options.twice && World(seed, faults_of(seed), kRequestsPerSeed).run().trace != outcome.trace)
      outcome.violations.push_back("two runs of this seed differ");
    traces.add(bytes_of(std::span<const std::uint64_t>(&outcome.trace, 1)));
    ++sum.seeds;
    sum.handoffs += outcome.begun;
    sum.owned += outcome.owned;
    sum.events += outcome.events;
    for (const auto& [kind, times] : outcome.consumer_ends) sum.consumer_ends[kind] += times;
    for (const auto& [kind, times] : outcome.producer_ends) sum.producer_ends[kind] += times;
    sum.transitions.merge(outcome.transitions);
    if (!outcome.violations.empty()) sum.broken.push_back({seed, std::move(outcome.violations)});
    after_seed(sum);
  }
  sum.trace_hash = traces.finish().hex();
  return sum;
}

}  // namespace isthmus::handoff::sim
