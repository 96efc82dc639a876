// SPDX-License-Identifier: Apache-2.0
// Continuous batching.
#include "scheduler/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::scheduler {

bool Limits::are_sound() const {
  return prefill_unit_tokens >= 2 && prefill_cut_tokens % prefill_unit_tokens == 0 &&
         step_tokens_max > std::uint64_t{sequences_max} + prefill_unit_tokens;
}

Scheduler::Scheduler(const Limits& limits, const Memory& memory) : limits_(limits), room_(memory) {
  ISTHMUS_CHECK(limits.are_sound());
}

Status Scheduler::add(RequestId request, std::uint64_t prompt, std::uint64_t computed) {
  ISTHMUS_CHECK(prompt > 0 && computed <= prompt);
  if (running_.size() >= limits_.sequences_max) {
    return Error{Code::kExhausted, fmt::format("{} sequences run already", running_.size())};
  }
  running_.push_back({request, prompt, computed});
  room_.start(request);
  return ok_status();
}

void Scheduler::remove(RequestId request) {
  std::erase_if(running_, [&](const Running& running) { return running.request == request; });
}

void Scheduler::close(RequestId request) {
  remove(request);
  room_.close(request);
}

// A prompt has its blocks since it was opened.
Moves Scheduler::settle(std::uint64_t lingering) {
  std::vector<Room::Need> needs;
  for (const Running& running : running_)
    if (running.computed >= running.prompt) needs.push_back({running.request, running.computed + 1});
  return room_.settle(needs, lingering);
}

bool Scheduler::may_end_at(const Running& running, std::uint64_t end) const {
  if (end == running.prompt) return true;
  return end % limits_.prefill_unit_tokens == 0 && end >= running.computed + 2 && running.prompt - end != 1;
}

// End of the next prefill chunk of `running` within `budget`: at the next cut, or one token after it if that
// ends the prompt; else as far as the rules allow, or nowhere (`computed`) if the budget is too small.
std::uint64_t Scheduler::cut(const Running& running, std::uint64_t budget) const {
  // The first cut that is two tokens or more away.
  const std::uint64_t next_cut =
      ((running.computed + 1) / limits_.prefill_cut_tokens + 1) * limits_.prefill_cut_tokens;
  const std::uint64_t reach = std::min(running.prompt, running.computed + budget);
  if (reach == running.prompt && running.prompt <= next_cut + 1) return reach;
  const std::uint64_t unit = limits_.prefill_unit_tokens;
  for (std::uint64_t end = std::min(reach, next_cut) / unit * unit; end > running.computed; end -= unit) {
    if (may_end_at(running, end)) return end;
  }
  return running.computed;
}

std::vector<Item> Scheduler::next() const {
  std::vector<Item> items;
  std::uint64_t budget = limits_.step_tokens_max;
  for (const Running& running : running_) {
    if (running.computed < running.prompt || budget == 0 || is_preempted(running.request)) continue;
    items.push_back({running.request, running.computed, running.computed + 1, false, true});
    --budget;
  }
  for (const Running& running : running_) {
    if (running.computed >= running.prompt || budget == 0 || is_preempted(running.request)) continue;
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
