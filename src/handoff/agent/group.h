// SPDX-License-Identifier: Apache-2.0
// Handoffs between groups of ranks, each rank an agent. What a rank of the consumer reads from a rank of the
// producer is a member: a handoff of its own, owned with all others or not at all. A producer's ranks are in
// one process; a consumer's may be in several (group_seat.h), one of which has the lead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "engine/api/engine.h"
#include "handoff/agent/agent.h"
#include "handoff/agent/group_seat.h"
#include "handoff/core/group.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "net/deadline.h"
#include "net/loop.h"
#include "transform/members.h"

namespace isthmus::handoff {

// A reservation of one rank for one rank of the consumer.
struct MemberTicket {
  transform::Route route;
  std::string ticket;
  std::vector<std::string> endpoints;  // Of the rank's agent.
};

// --- Producer.

struct GroupOffer {
  std::uint64_t prompt_tokens = 0;
  std::vector<Amount> pinned;  // By rank: counted there once, until its last member has ended.
  Instant deadline;
};

// A state on all ranks, offered to a group. Loop's thread. It lives until `ended`, then nothing follows.
class OfferedGroup {
 public:
  virtual ~OfferedGroup() = default;
  virtual const std::vector<MemberTicket>& members() const = 0;
  // As Agent's. `memory` is by rank; null for one that hasn't got there yet.
  virtual void publish(kv::TokenRange range,
                       const std::vector<std::shared_ptr<const engine::ExportedKv>>& memory) = 0;
  virtual void seal(const SealInfo& seal) = 0;
  virtual void withdraw(const std::string& why) = 0;
  // The rank's agent is gone, and all that it held.
  virtual void rank_lost(std::uint32_t rank) = 0;
};

// Who reads what must be known before: `target` is the consumer's descriptor, told by whoever chose the pair.
// A rank that nobody reads has no member; its pages go with the others'. `ended`: once, when nothing reads
// any rank's memory; kDone if every member was done, else the first other end, at which all others are
// withdrawn. Errors: incompatible, invalid_argument, exhausted, unavailable (a rank is gone); then nothing is
// held.
Result<std::shared_ptr<OfferedGroup>> offer_group(const RankAgents& ranks, const kv::Descriptor& source,
                                                  const kv::Descriptor& target, const kv::Policy& policy,
                                                  const GroupOffer& offer,
                                                  std::function<void(const Ending&)> ended);

// --- Consumer.

struct GroupFetch {
  std::vector<MemberTicket> members;  // All of them, or the group is refused.
  kv::TokenChain prompt;
  std::vector<Amount> destination;  // By rank, answer included.
  Instant deadline;
};

// Ranks whose agents are in another process, and the way to it.
struct RemoteSeat {
  std::vector<std::uint32_t> ranks;
  std::function<void(const wire::Frame&)> tell;  // GROUP_BEGIN, GROUP_WORD; lost ones end with the seat.
};

// Leads the groups of one engine: alone decides (R11). Loop's thread. When it is destroyed, what its groups
// hold ends by the ranks' own deadlines.
class GroupLead {
 public:
  // `agents`: those of the ranks that aren't at one of the `others`, in the ranks' order.
  GroupLead(net::Loop& loop, RankAgents agents, kv::Descriptor descriptor, kv::Policy policy,
            const Timings& timings = {}, std::vector<RemoteSeat> others = {});
  ~GroupLead();

  // `events` are of the ranks here; those elsewhere have theirs, under the same GroupId. Errors:
  // invalid_argument (no such rank, or no amount for one), malformed (a ticket), incompatible (not each
  // member of one group once), unavailable (another process isn't there), those of GroupCore::begin().
  Result<GroupId> fetch(GroupFetch fetch, GroupFetchEvents events);
  // ended() still comes, with kCancelled, once all destinations here are quiet.
  void cancel(GroupId group);
  // The agent of a rank here is gone, and all that it held: every group ends that has a member there.
  void rank_lost(std::uint32_t rank);

  // Of the others, by their place. A seat is down until it is up; one that goes ends every group.
  void seat_up(std::size_t other);
  void seat_down(std::size_t other);
  // What it tells. malformed: of what isn't its own; it is to be closed.
  Status heard(std::size_t other, const wire::GroupReport& report);

 private:
  struct Run;
  struct Seat {
    std::vector<std::uint32_t> ranks;
    std::function<void(const wire::Frame&)> tell;
    bool is_up = false;
  };
  Result<std::uint32_t> seat_of(std::uint32_t rank) const;
  wire::GroupBegin begin_of(const Run& run, std::uint32_t seat, const GroupFetch& fetch) const;
  Status report_in(std::uint32_t seat, const wire::GroupReport& report);
  void take(Run& run);
  void answered(Run& run);
  void tell_all(const Run& run, const wire::GroupWord& word);
  void verified(Run& run, std::uint32_t member, const wire::GroupReport& report);
  void failed(GroupId group, std::uint32_t member, TerminalKind kind, const Error& why);
  void act(const GroupActions& actions);

  net::Loop& loop_;
  Timings timings_;
  GroupCore core_;
  std::uint32_t ranks_;      // Of the descriptor.
  std::vector<Seat> seats_;  // The first is this process's.
  std::map<GroupId, std::shared_ptr<Run>> runs_;
  std::map<GroupId, GroupFetchEvents> begun_;  // Until the own seat asks for them.
  std::unique_ptr<GroupSeat> own_;
  net::Deadline next_tick_;
};

}  // namespace isthmus::handoff
