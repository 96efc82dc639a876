// SPDX-License-Identifier: Apache-2.0
// Those ranks of a consumer's group that are in this process: their members' handoffs and the memory that
// these write. What becomes of it the group's lead says, here or in another process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "handoff/agent/agent.h"
#include "handoff/core/group.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "net/loop.h"
#include "wire/frames.h"

namespace isthmus::handoff {

// Agents of ranks, in their order. One that is gone has died.
using RankAgents = std::vector<std::weak_ptr<Agent>>;

// One rank's memory, by layer group of the descriptor.
using RankBindings = std::vector<kv::Binding>;

// As FetchEvents, for all ranks of this process at once; loop's thread.
struct GroupFetchEvents {
  // Answer with the memory of each, in the ranks' order.
  std::function<void(kv::TokenRange range, std::function<void(Result<std::vector<RankBindings>>)> done)>
      reserve;
  // Also after the lead is gone.
  std::function<void()> release;
  // Every member of the group is owned, here and elsewhere. Grants in the ranks' order; what has moved is of
  // the ranks here.
  std::function<void(const SealInfo&, const std::vector<GrantId>& destination, const Ending&)> owned;
  std::function<void(const SealInfo* seal, const Ending&)> ended;
};

// Loop's thread. When it is destroyed, nobody is told any more; what its groups hold ends by the ranks' own
// deadlines.
class GroupSeat {
 public:
  struct Here {
    std::vector<std::uint32_t> ranks;  // Ascending.
    RankAgents agents;                 // Of each.
    kv::Descriptor descriptor;
    kv::Policy policy;
    Timings timings;
  };
  // `tell`: to the lead. `begun`: whose events are those of a group that the lead has begun.
  GroupSeat(net::Loop& loop, Here here, std::function<void(const wire::GroupReport&)> tell,
            std::function<GroupFetchEvents(GroupId)> begun);
  ~GroupSeat();

  // The lead's. malformed: about a group, rank or member that can't be meant; it isn't our lead then.
  Status hear(const wire::GroupBegin& begin);
  Status hear(const wire::GroupWord& word);
  // Its session is gone: every group ends that it hasn't ended, with kPeerLost.
  void lead_lost();
  // The agent of a rank here is gone, and all that it held.
  void rank_lost(std::uint32_t rank);

 private:
  struct Run;
  FetchEvents events_of(const std::shared_ptr<Run>& run, std::uint32_t member);
  void start(const std::shared_ptr<Run>& run);
  Status check_source(const Run& run, const kv::Descriptor& source) const;

  net::Loop& loop_;
  Here here_;
  std::function<void(const wire::GroupReport&)> tell_;
  std::function<GroupFetchEvents(GroupId)> begun_;
  std::map<std::pair<std::uint64_t, GroupId>, std::shared_ptr<Run>> runs_;  // By the lead's life.
  std::uint64_t life_ = 1;
  GroupId newest_ = 0;
};

}  // namespace isthmus::handoff
