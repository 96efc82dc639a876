// SPDX-License-Identifier: Apache-2.0
// Continuous batching.
#include "scheduler/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::scheduler {

Status Scheduler::add(RequestId request, std::uint64_t prompt, std::uint64_t computed) {
  ISTHMUS_CHECK(prompt > 0 && computed <= prompt);
  if (running_.size() >= limits_.sequences_max) {
    return Error{Code::kExhausted, fmt::format("{} sequences run already", running_.size())};
  }
  running_.push_back({request, prompt, computed});
  return ok_status();
}

void Scheduler::remove(RequestId request) {
  std::erase_if(running_, [&](const Running& running) { return running.request == request; });
}

// End of the next prefill chunk of `running` within `budget`: a multiple of the cut where possible, and never
// one that leaves a chunk of a single token (engines promise equal bits only for chunks of two and more).
std::uint64_t Scheduler::cut(const Running& running, std::uint64_t budget) const {
  const std::uint64_t reach = std::min(running.prompt, running.computed + budget);
  std::uint64_t end = reach;
  if (reach < running.prompt) {
    const std::uint64_t aligned = reach - reach % limits_.prefill_cut_tokens;
    if (aligned > running.computed) end = aligned;
  }
  end = std::min(
      end, running.computed - running.computed % limits_.prefill_cut_tokens + limits_.prefill_cut_tokens);
  if (running.prompt - end == 1) end = budget > end - running.computed ? running.prompt : end - 1;
  return std::max(end, running.computed);
}

std::vector<Item> Scheduler::next() const {
  std::vector<Item> items;
  std::uint64_t budget = limits_.step_tokens_max;
  for (const Running& running : running_) {
    if (running.computed < running.prompt || budget == 0) continue;
    items.push_back({running.request, running.computed, running.computed + 1, false, true});
    --budget;
  }
  for (const Running& running : running_) {
    if (running.computed >= running.prompt || budget == 0) continue;
    const std::uint64_t end = cut(running, budget);
    if (end == running.computed) continue;
    items.push_back({running.request, running.computed, end, end == running.prompt, false});
    budget -= end - running.computed;
  }
  return items;
}

void Scheduler::ran(const std::vector<Item>& items) {
  for (const Item& item : items) {
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [&](const Running& running) { return running.request == item.request; });
    if (at == running_.end()) continue;
    ISTHMUS_CHECK(at->computed == item.begin);
    at->computed = item.end;
  }
}

}  // namespace isthmus::scheduler
