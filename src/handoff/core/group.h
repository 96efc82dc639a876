// SPDX-License-Identifier: Apache-2.0
// The lead's side of one handoff between groups of ranks: each rank is a handoff of its own, and one decision
// makes all of them owned or none. Pure: events and `now` in, actions out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "handoff/core/deadlines.h"
#include "handoff/core/protocol.h"

namespace isthmus::handoff {

using GroupId = std::uint64_t;
inline constexpr std::uint32_t kGroupRanksMax = wire::kGroupMembersMax;

// ConsumerCore::decide() at that rank. Repeated until owned().
struct TellOwn {
  GroupId group = 0;
  std::uint32_t rank = 0;
};
// ConsumerCore::abandon() at that rank; one that isn't heard there is made good by the rank's own deadlines.
struct TellAbandon {
  GroupId group = 0;
  std::uint32_t rank = 0;
  Error why{Code::kAborted, ""};
};
// The one terminal event of the group. kOwned: every rank owns its part. Else what single ranks own is of no
// use: their engines drop it.
struct GroupEnded {
  GroupId group = 0;
  TerminalKind kind = TerminalKind::kOwned;
  Status why;
};
using GroupAction = std::variant<TellOwn, TellAbandon, GroupEnded>;
using GroupActions = std::vector<GroupAction>;

// Only the lead decides, and only when all ranks have verified: no rank is asked to prepare, and none waits
// for another beyond its own deadlines. The rank sets of both sides needn't be alike: a rank here is one
// handoff, between any two of them; a producer's rank that nobody reads is a rank whose handoff the lead
// opens and verifies at once. Events about what is unknown or over are ignored.
class GroupCore {
 public:
  explicit GroupCore(Timings timings, Limits limits = {}) : timings_(timings), limits_(limits) {}

  // `ranks` handoffs are begun, as members. Errors: invalid_argument (none), exhausted, deadline_exceeded.
  Result<GroupId> begin(std::uint32_t ranks, Instant deadline, Instant now);
  // The rank's Verified has come; repeats are harmless.
  void verified(GroupId group, std::uint32_t rank, Instant now, GroupActions& out);
  void owned(GroupId group, std::uint32_t rank, Instant now, GroupActions& out);
  // The rank's handoff has ended without owning, or its agent has died or restarted (kPeerLost). The group
  // ends as its first rank did.
  void failed(GroupId group, std::uint32_t rank, TerminalKind kind, Error why, GroupActions& out);

  Instant next_deadline() const { return deadlines_.next(); }
  void tick(Instant now, GroupActions& out);
  std::uint64_t live() const { return groups_.size(); }

 private:
  enum class Rank : std::uint8_t { kMoving, kVerified, kOwned };
  struct Group {
    std::vector<Rank> ranks;
    Instant deadline;
    bool is_decided = false;
  };
  void tell_own(GroupId id, const Group& group, Instant now, GroupActions& out);
  void fail(GroupId id, TerminalKind kind, const Error& why, GroupActions& out);
  Group* find(GroupId group, std::uint32_t rank);

  Timings timings_;
  Limits limits_;
  std::map<GroupId, Group> groups_;
  Deadlines<GroupId> deadlines_;
  GroupId next_ = 1;
};

}  // namespace isthmus::handoff
