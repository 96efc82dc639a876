// SPDX-License-Identifier: Apache-2.0
// Seeds are independent: each has a world of its own.
#include "sim/runs.h"

#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/digest.h"
#include "sim/faults.h"
#include "sim/world.h"

namespace isthmus::handoff::sim {

namespace {

Outcome run_seed(std::uint64_t seed, bool twice) {
  Outcome outcome = World(seed, faults_of(seed), kRequestsPerSeed).run();
  if (twice && World(seed, faults_of(seed), kRequestsPerSeed).run().trace != outcome.trace)
    outcome.violations.push_back("two runs of this seed differ");
  return outcome;
}

// Outcomes come in any order and are summed in the order of their seeds, so that threads change nothing.
class Sums {
 public:
  Sums(const RunOptions& options, const std::function<void(const Summary&)>& after_seed)
      : options_(options), after_seed_(after_seed), next_(options.first), summed_(options.first) {}

  void work() {
    while (const std::optional<std::uint64_t> seed = take()) put(*seed, run_seed(*seed, options_.twice));
  }
  Summary finish() {
    sum_.trace_hash = traces_.finish().hex();
    return std::move(sum_);
  }

 private:
  std::optional<std::uint64_t> take() {
    const std::lock_guard lock(mutex_);
    const bool stopped = options_.is_stopped && options_.is_stopped();
    if (stopped || next_ - options_.first >= options_.seeds) return std::nullopt;
    return next_++;
  }
  void put(std::uint64_t seed, Outcome outcome) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace(seed, std::move(outcome));
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == summed_;
         first = waiting_.erase(first)) {
      add(summed_++, first->second);
    }
  }
  void add(std::uint64_t seed, Outcome& outcome) {
    traces_.add(bytes_of(std::span<const std::uint64_t>(&outcome.trace, 1)));
    ++sum_.seeds;
    sum_.handoffs += outcome.begun;
    sum_.owned += outcome.owned;
    sum_.events += outcome.events;
    for (const auto& [kind, times] : outcome.consumer_ends) sum_.consumer_ends[kind] += times;
    for (const auto& [kind, times] : outcome.producer_ends) sum_.producer_ends[kind] += times;
    sum_.transitions.merge(outcome.transitions);
    sum_.coverage.add(outcome.coverage);
    if (!outcome.violations.empty()) sum_.broken.push_back({seed, std::move(outcome.violations)});
    after_seed_(sum_);
  }

  const RunOptions& options_;
  const std::function<void(const Summary&)>& after_seed_;
  std::mutex mutex_;  // Over everything below.
  std::uint64_t next_, summed_;
  std::map<std::uint64_t, Outcome> waiting_;  // At most as many as pass while the slowest seed runs.
  Summary sum_;
  DigestStream traces_;
};

}  // namespace

Summary run_handoffs(const RunOptions& options, const std::function<void(const Summary&)>& after_seed) {
  Sums sums(options, after_seed);
  std::vector<std::thread> threads;
  for (std::uint32_t job = 1; job < options.jobs; ++job) threads.emplace_back([&sums] { sums.work(); });
  sums.work();
  for (std::thread& thread : threads) thread.join();
  return sums.finish();
}

}  // namespace isthmus::handoff::sim
