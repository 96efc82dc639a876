// SPDX-License-Identifier: Apache-2.0
// Plants each mutation in the cores, runs the virtual world seed by seed until it finds it, and prints the
// page docs/mutations.md. Each mutation has a process of its own: a core's own check may end it.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "handoff/core/planted.h"
#include "sim/runs.h"

namespace isthmus::handoff::sim {
namespace {

// How long is searched, and how soon four of five must be found.
constexpr std::uint64_t kSeeds = 10'000, kSoon = 100;

struct Planted {
  Mutation mutation;
  std::string_view what, rule;
};

constexpr Planted kProtocols[] = {
    {Mutation::kSealWithoutR5, "SEAL without R5: generation and lease aren't looked at again", "R5"},
    {Mutation::kDoneSkipsQuiesce, "success skips P's quiesce: DONE frees pages that a pack still reads",
     "R6"},
    {Mutation::kOwnWithOpenChannel, "D owns with a data channel open", "R13"},
    {Mutation::kFenceOnControl, "fence on the control channel", "R13"},
    {Mutation::kLeaseFromReceipt, "lease counted from receipt", "R4"},
    {Mutation::kRenewWithoutProgress, "RENEW without progress extends the lease", "§8"},
    {Mutation::kPreemptionKeepsGeneration, "preemption keeps the generation", "R9"},
    {Mutation::kWatermarkInPartialTile, "watermark includes a partial tile", "R8"},
    {Mutation::kFailureBeforeQuiet, "failure reported, and memory freed, before quiet", "R13"},
    {Mutation::kReserveBeforeAdmission, "D reserves before P admits", "R10"},
    {Mutation::kStaleDoneReleases, "stale DONE releases a superseded slot", "§5"},
    {Mutation::kCreditSurvivesResume, "credits survive RESUME", "§5"},
    {Mutation::kValidIgnoresAttempt, "VALID? ignores the attempt: another holder's seal answers it", "R7"},
    {Mutation::kValidFrees, "P frees on answering VALID?", "R7"},
    {Mutation::kLeaderOwnsEarly, "leader owns on N−1 ranks", "R11"},
};

constexpr Planted kOwn[] = {
    {Mutation::kAbortSkipsQuiesce, "failure, cancel or expiry frees pages that a pack still reads", "R6"},
    {Mutation::kCreditSurvivesRestart, "credits survive RESTART", "R9"},
    {Mutation::kResumeKeepsOldGeneration, "RESUME keeps the chunks of another generation", "R9"},
    {Mutation::kDoneKeepsReservation, "DONE leaves the reservation to another consumer", "§7"},
    {Mutation::kRestartFreesSealedSlot, "a sealed slot whose consumer has restarted is given again", "§7"},
    {Mutation::kRootNotCompared, "D owns although the root over what it read back differs", "R7"},
    {Mutation::kOldGenerationCounts, "D takes chunks of an older generation", "R3"},
    {Mutation::kSlotFreeWhilePlacing, "D grants credit for a slot that is still read", "§6"},
    {Mutation::kTokenDigestNotCompared, "D doesn't compare the token digest", "§5"},
    {Mutation::kQuarantineFrees, "D frees a destination whose placement never reported", "R12"},
    {Mutation::kAttemptIgnored, "D takes frames of another attempt", "R3"},
    {Mutation::kLeaseIgnored, "D goes on after its lease", "§8"},
};

struct Found {
  std::uint64_t seeds = 0;  // That were run, the one that found it included.
  std::string said;         // "" if all passed.
};

// In a process that was forked for it: a line "SEED" before each, "! TEXT" when a rule is broken.
void run_planted(Mutation mutation, std::FILE* out) {
  planted = mutation;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    std::fputs(fmt::format("{}\n", seed).c_str(), out);
    std::fflush(out);
    const Summary sum = run_handoffs({.first = seed, .seeds = 1}, [](const Summary&) {});
    if (sum.broken.empty()) continue;
    std::fputs(fmt::format("! {}\n", sum.broken[0].violations[0]).c_str(), out);
    return;
  }
}

Found find(Mutation mutation) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    std::FILE* out = fdopen(ends[1], "w");
    run_planted(mutation, out);
    std::fclose(out);
    std::_Exit(0);
  }
  close(ends[1]);
  Found found;
  std::FILE* in = fdopen(ends[0], "r");
  char line[1024];
  while (std::fgets(line, sizeof line, in) != nullptr) {
    const std::string_view text(line, std::string_view(line).find_last_not_of('\n') + 1);
    if (text.starts_with("! ")) {
      found.said = text.substr(text.find(": ") + 2);  // Without the virtual time.
    } else {
      found.seeds = std::strtoull(line, nullptr, 10);
    }
  }
  std::fclose(in);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) && found.said.empty()) found.said = "the core's own check ended the process";
  return found;
}

// Ids are the run's own and say nothing to a reader.
std::string without_ids(const std::string& said) {
  std::string text;
  for (std::size_t i = 0; i < said.size();) {
    const std::size_t end = said.find_first_not_of("0123456789abcdef", i);
    const std::size_t length = (end == std::string::npos ? said.size() : end) - i;
    if (length >= 32) {
      text += "…";
      i += length;
    } else {
      text += said[i++];
    }
  }
  return text;
}

struct Counts {
  int all = 0, soon = 0;  // Found.
};

// Prints the table's rows.
Counts rows(std::span<const Planted> mutations) {
  std::fputs("| mutation | rule | seeds to find | what the world says |\n|---|---|---|---|\n", stdout);
  Counts counts;
  for (const Planted& each : mutations) {
    const Found found = find(each.mutation);
    const bool is_found = !found.said.empty();
    counts.all += is_found ? 1 : 0;
    counts.soon += is_found && found.seeds <= kSoon ? 1 : 0;
    std::fputs(fmt::format("{}: {} {}\n", each.what, is_found ? "found by seed" : "not found in", found.seeds)
                   .c_str(),
               stderr);
    std::fputs(fmt::format("| {} | {} | {} | {} |\n", each.what, each.rule,
                           is_found ? fmt::format("{}", found.seeds) : fmt::format("**not in {}**", kSeeds),
                           without_ids(found.said))
                   .c_str(),
               stdout);
  }
  return counts;
}

int page() {
  std::fputs(
      "# Mutations\n\n"
      "Made by `make mutations`. Each row is a bug planted in the production cores "
      "(`src/handoff/core/mutation.h`; the\n"
      "fence on the control channel in the world's shell, as a core only names the channel). The virtual "
      "world of\n"
      "`isthmus sim handoff` then runs seeds 1, 2, 3, … until a checker speaks.\n\n",
      stdout);
  const Found control = find(Mutation::kNone);
  if (!control.said.empty()) {
    std::fputs(fmt::format("seed {} breaks without any mutation: {}\n", control.seeds, control.said).c_str(),
               stderr);
    return 1;
  }
  std::fputs(fmt::format("Without a mutation {} seeds pass.\n\n## The protocol's list\n\n", kSeeds).c_str(),
             stdout);
  const Counts protocols = rows(kProtocols);
  std::fputs("\n## More\n\n", stdout);
  const Counts own = rows(kOwn);
  const int all = static_cast<int>(std::size(kProtocols) + std::size(kOwn)), soon = protocols.soon + own.soon;
  std::fputs(fmt::format("\nOf {}, {} are found within {} seeds and {} within {}.\n", all, soon, kSoon,
                         protocols.all + own.all, kSeeds)
                 .c_str(),
             stdout);
  return soon * 5 >= all * 4 ? 0 : 1;
}

}  // namespace
}  // namespace isthmus::handoff::sim

int main() {
  return isthmus::handoff::sim::page();
}
