// SPDX-License-Identifier: Apache-2.0
// Progress and what is broken go to stderr as they come; the sum to stdout.
#include "cli/sim_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "base/clock.h"
#include "cli/commit.h"
#include "cli/print.h"
#include "http/json.h"

namespace isthmus::cli {
namespace {

using handoff::sim::BrokenSeed;
using handoff::sim::Summary;

constexpr Duration kProgressInterval = std::chrono::seconds(2);

double per_second(std::uint64_t count, Duration took) {
  const double seconds = std::chrono::duration<double>(took).count();
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

std::uint64_t violations_of(const Summary& sum) {
  std::uint64_t count = 0;
  for (const BrokenSeed& broken : sum.broken) count += broken.violations.size();
  return count;
}

std::string ends_text(const std::map<std::string, std::uint64_t>& ends) {
  std::string text;
  for (const auto& [kind, times] : ends)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, times);
  return text;
}

json::Value ends_json(const std::map<std::string, std::uint64_t>& ends) {
  json::Object members;
  for (const auto& [kind, times] : ends) members.emplace_back(kind, times);
  return members;
}

void tell(const BrokenSeed& broken) {
  std::string text = fmt::format("isthmus sim: seed {} breaks a rule\n", broken.seed);
  for (const std::string& violation : broken.violations) text += fmt::format("  {}\n", violation);
  note_line(text + "  replay: " + sim_replay(broken.seed));
}

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

std::string sim_replay(std::uint64_t seed) {
  return fmt::format("isthmus sim handoff --first {} --seeds 1  # at commit {}", seed, kCommit);
}

std::string sim_coverage(const Summary& sum) {
  const std::vector<std::string> missing = sum.coverage.missing();
  std::string text = fmt::format(
      "# What the simulation meets\n\n"
      "Made by `make simulation`: `isthmus sim handoff` over {} seeds, {} handoffs. A number says how often "
      "an "
      "event\nof that kind met a state of the core; `none` is a reservation or handoff that isn't known, or "
      "is "
      "over. A letter\nsays why it can't: the core checks that as each event comes "
      "(`src/handoff/core/events.h`).\n\n{}\n",
      sum.seeds, sum.handoffs, sum.coverage.page());
  text += fmt::format("Possible and not met: {}\n", missing.size());
  for (const std::string& pair : missing) text += fmt::format("- {}\n", pair);
  return text;
}

std::string sim_text(const Summary& sum, Duration took) {
  return fmt::format(
      "{} seeds, {} handoffs ({} owned), {} events; {} handoffs/s\n"
      "consumers: {}\n"
      "producers: {}\n"
      "violations: {} in {} seeds\n"
      "trace hash: {}\n",
      sum.seeds, sum.handoffs, sum.owned, sum.events,
      static_cast<std::uint64_t>(per_second(sum.handoffs, took)), ends_text(sum.consumer_ends),
      ends_text(sum.producer_ends), violations_of(sum), sum.broken.size(), sum.trace_hash);
}

std::string sim_json(const Summary& sum, Duration took) {
  json::Array broken;
  for (const BrokenSeed& each : sum.broken) {
    json::Array violations(each.violations.begin(), each.violations.end());
    broken.push_back(json::object(
        {{"seed", each.seed}, {"violations", std::move(violations)}, {"replay", sim_replay(each.seed)}}));
  }
  return json::object({{"seeds", sum.seeds},
                       {"handoffs", sum.handoffs},
                       {"owned", sum.owned},
                       {"events", sum.events},
                       {"violations", violations_of(sum)},
                       {"trace_hash", sum.trace_hash},
                       {"commit", kCommit},
                       {"pairs_not_met", sum.coverage.missing().size()},
                       {"broken", std::move(broken)},
                       {"consumer_ends", ends_json(sum.consumer_ends)},
                       {"producer_ends", ends_json(sum.producer_ends)},
                       {"handoffs_per_second", per_second(sum.handoffs, took)}})
      .dump();
}

int run_sim(const SimCommand& command) {
  const Instant start = now();
  Instant told = start;
  std::size_t broken_told = 0;
  handoff::sim::RunOptions options = command.options;
  options.is_stopped = [] { return interrupted != 0; };
  const auto stop = [](int) { interrupted = 1; };
  (void)std::signal(SIGINT, stop);
  (void)std::signal(SIGTERM, stop);
  const Summary sum = handoff::sim::run_handoffs(options, [&](const Summary& so_far) {
    for (; broken_told < so_far.broken.size(); ++broken_told) tell(so_far.broken[broken_told]);
    if (now() - told < kProgressInterval) return;
    told = now();
    note_line(fmt::format("isthmus sim: {} of {} seeds, {} handoffs, {} seeds broken, {} handoffs/s",
                          so_far.seeds, command.options.seeds, so_far.handoffs, so_far.broken.size(),
                          static_cast<std::uint64_t>(per_second(so_far.handoffs, told - start))));
  });
  const Duration took = now() - start;
  if (interrupted != 0)
    note_line(fmt::format("isthmus sim: stopped after {} of {} seeds", sum.seeds, options.seeds));
  if (command.coverage) {
    print(sim_coverage(sum));
  } else if (command.json) {
    print_line(sim_json(sum, took));
  } else {
    print(sim_text(sum, took));
  }
  return sum.broken.empty() ? kExitOk : kExitViolated;
}

}  // namespace isthmus::cli
