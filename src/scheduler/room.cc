// SPDX-License-Identifier: Apache-2.0
// Promises, and who waits.
#include "scheduler/room.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"

namespace isthmus::scheduler {

std::uint64_t Room::blocks(std::uint64_t tokens) const {
  return (tokens + memory_.block_tokens - 1) / memory_.block_tokens;
}

Room::Holder* Room::find(RequestId request) {
  const auto found = std::ranges::find(holders_, request, &Holder::request);
  return found == holders_.end() ? nullptr : &*found;
}

bool Room::is_preempted(RequestId request) const {
  const auto found = std::ranges::find(holders_, request, &Holder::request);
  return found != holders_.end() && found->is_preempted;
}

Room::Usage Room::usage() const {
  Usage usage{.preemptions = preemptions_};
  for (const Holder& holder : holders_) {
    usage.held += holder.held;
    usage.parked += holder.parked;
    usage.preempted += holder.is_preempted ? 1 : 0;
  }
  return usage;
}

std::uint64_t Room::spare(std::uint64_t lingering) const {
  std::uint64_t taken = lingering;
  for (const Holder& holder : holders_)
    taken += holder.held + (!holder.is_preempted && holder.may_grow() ? 1 : 0);
  return memory_.pool - std::min(memory_.pool, taken);
}

bool Room::admits(const Claim& claim, std::uint64_t lingering) const {
  if (memory_.block_tokens == 0) return true;
  const std::uint64_t now = blocks(claim.tokens_now), most = blocks(claim.tokens_max);
  std::uint64_t all = lingering + most, pinned = lingering;
  std::uint64_t largest = 0;
  (claim.pinned == Pinned::kNever ? largest : pinned) += most;
  for (const Holder& holder : holders_) {
    if (holder.is_preempted) return false;
    all += holder.claim;
    if (holder.is_pinned()) {
      pinned += holder.claim;
    } else {
      largest = std::max(largest, holder.claim);
    }
  }
  return all <= memory_.pool + memory_.parking && pinned + largest <= memory_.pool &&
         now + (now < most ? 1 : 0) <= spare(lingering);
}

void Room::open(RequestId request, const Claim& claim) {
  if (memory_.block_tokens == 0) return;
  ISTHMUS_CHECK(claim.tokens_now <= claim.tokens_max && find(request) == nullptr);
  holders_.push_back({.request = request,
                      .claim = blocks(claim.tokens_max),
                      .held = blocks(claim.tokens_now),
                      .pinned = claim.pinned});
}

// Behind one that waits it waits too: those preempted are younger than those that run.
void Room::start(RequestId request) {
  Holder* const started = find(request);
  if (started == nullptr) return;
  if (started->pinned == Pinned::kUntilStarted) started->pinned = Pinned::kNever;
  if (started->is_pinned()) return;
  for (const Holder& older : holders_) {
    if (&older == started) break;
    started->is_preempted = started->is_preempted || older.is_preempted;
  }
  preemptions_ += started->is_preempted ? 1 : 0;
}

void Room::close(RequestId request) {
  std::erase_if(holders_, [&](const Holder& holder) { return holder.request == request; });
}

Moves Room::settle(const std::vector<Need>& needs, std::uint64_t lingering) {
  Moves moves;
  if (memory_.block_tokens == 0) return moves;
  resume_oldest(moves, lingering);
  for (Holder& holder : holders_) {
    const auto need = std::ranges::find(needs, holder.request, &Need::request);
    if (need == needs.end() || holder.is_preempted || blocks(need->tokens) <= holder.held) continue;
    ISTHMUS_CHECK(blocks(need->tokens) == holder.held + 1 && holder.may_grow());
    grow(holder, moves, lingering);
  }
  return moves;
}

void Room::resume_oldest(Moves& moves, std::uint64_t lingering) {
  for (Holder& holder : holders_) {
    if (!holder.is_preempted) continue;
    if (spare(lingering) < holder.parked + (holder.may_grow() ? 1 : 0)) return;
    holder.is_preempted = false;
    holder.held += holder.parked;
    if (std::exchange(holder.parked, 0) > 0) moves.unpark.push_back(holder.request);
  }
}

// One block more for `holder`, or it waits.
void Room::grow(Holder& holder, Moves& moves, std::uint64_t lingering) {
  while (usage().held + lingering >= memory_.pool) {
    if (free_one(moves)) continue;
    const auto waits = std::ranges::find_if(holders_ | std::views::reverse, [](const Holder& other) {
      return !other.is_preempted && !other.is_pinned();
    });
    waits->is_preempted = true;  // At the latest `holder` itself.
    ++preemptions_;
    if (holder.is_preempted) return;
  }
  ++holder.held;
}

// Of the youngest that waits and has a block; whoever waits has all behind it before its own is parked. There
// is always a place, unless more lingers than was closed.
bool Room::free_one(Moves& moves) {
  if (usage().parked >= memory_.parking) return false;
  for (Holder& holder : holders_ | std::views::reverse) {
    if (!holder.is_preempted || holder.held == 0) continue;
    --holder.held;
    ++holder.parked;
    if (!moves.park.empty() && moves.park.back().request == holder.request) {
      moves.park.back().blocks = holder.held;
    } else {
      moves.park.push_back({holder.request, holder.held});
    }
    return true;
  }
  return false;
}

}  // namespace isthmus::scheduler
