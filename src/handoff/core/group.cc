// SPDX-License-Identifier: Apache-2.0
// Collecting, deciding, telling.
#include "handoff/core/group.h"

#include <fmt/format.h>

#include <algorithm>

#include "handoff/core/planted.h"

namespace isthmus::handoff {

Result<GroupId> GroupCore::begin(std::uint32_t ranks, Instant deadline, Instant now) {
  if (ranks == 0 || ranks > kGroupRanksMax)
    return Error{Code::kInvalidArgument, fmt::format("a group of {} ranks, 1 to {}", ranks, kGroupRanksMax)};
  if (groups_.size() >= limits_.handoffs_max)
    return Error{Code::kExhausted, fmt::format("{} groups are live, the most allowed", groups_.size())};
  if (deadline <= now) return Error{Code::kDeadlineExceeded, "the request's deadline has passed"};
  const GroupId id = next_++;
  groups_.emplace(id, Group{std::vector<Rank>(ranks, Rank::kMoving), deadline, false});
  deadlines_.arm(id, deadline);
  return id;
}

GroupCore::Group* GroupCore::find(GroupId group, std::uint32_t rank) {
  const auto found = groups_.find(group);
  return found == groups_.end() || rank >= found->second.ranks.size() ? nullptr : &found->second;
}

void GroupCore::verified(GroupId id, std::uint32_t rank, Instant now, GroupActions& out) {
  Group* group = find(id, rank);
  if (group == nullptr || group->ranks[rank] == Rank::kOwned) return;
  group->ranks[rank] = Rank::kVerified;
  if (group->is_decided) return;  // It is told again by and by.
  const auto missing = static_cast<std::size_t>(std::ranges::count(group->ranks, Rank::kMoving));
  const std::size_t enough = mutation(Mutation::kLeaderOwnsEarly) ? 1 : 0;
  if (missing > enough) return;
  group->is_decided = true;
  group->deadline = std::min(group->deadline, now + timings_.confirm_max);
  tell_own(id, *group, now, out);
}

void GroupCore::tell_own(GroupId id, const Group& group, Instant now, GroupActions& out) {
  for (std::uint32_t rank = 0; rank < group.ranks.size(); ++rank) {
    if (group.ranks[rank] != Rank::kOwned) out.push_back(TellOwn{id, rank});
  }
  deadlines_.arm(id, std::min(group.deadline, now + timings_.resend_interval));
}

void GroupCore::owned(GroupId id, std::uint32_t rank, Instant now, GroupActions& out) {
  Group* group = find(id, rank);
  if (group == nullptr || !group->is_decided) return;
  group->ranks[rank] = Rank::kOwned;
  if (std::ranges::any_of(group->ranks, [](Rank each) { return each != Rank::kOwned; })) return;
  out.push_back(GroupEnded{id, TerminalKind::kOwned, ok_status()});
  deadlines_.disarm(id);
  groups_.erase(id);
  (void)now;
}

void GroupCore::failed(GroupId id, std::uint32_t rank, TerminalKind kind, Error why, GroupActions& out) {
  const Group* group = find(id, rank);
  if (group == nullptr) return;
  why.detail = clip(fmt::format("member {}: {}", rank, why.detail));
  fail(id, kind, why, out);
}

// After the decision too: a rank that owns has told its engine, which drops the part of a whole that isn't.
void GroupCore::fail(GroupId id, TerminalKind kind, const Error& why, GroupActions& out) {
  const std::size_t ranks = groups_.at(id).ranks.size();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) out.push_back(TellAbandon{id, rank, why});
  out.push_back(GroupEnded{id, kind, why});
  deadlines_.disarm(id);
  groups_.erase(id);
}

void GroupCore::tick(Instant now, GroupActions& out) {
  while (const std::optional<GroupId> due = deadlines_.pop_due(now)) {
    const Group& group = groups_.at(*due);
    if (now >= group.deadline) {
      const std::string_view what =
          group.is_decided ? "not every rank has owned" : "not every rank has verified";
      fail(*due, TerminalKind::kTimedOut, Error{Code::kDeadlineExceeded, fmt::format("{} in time", what)},
           out);
    } else {
      tell_own(*due, group, now, out);
    }
  }
}

}  // namespace isthmus::handoff
