// SPDX-License-Identifier: Apache-2.0
// Handoffs between groups of ranks, each rank an agent; those of one end are in one process. What a rank of
// the consumer reads from a rank of the producer is a member: a handoff of its own, owned with all others or
// not at all.
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
#include "handoff/core/group.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "net/deadline.h"
#include "net/loop.h"
#include "transform/members.h"

namespace isthmus::handoff {

// Agents of one engine's ranks, by rank. One that is gone has died.
using RankAgents = std::vector<std::weak_ptr<Agent>>;

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

// One rank's memory, by layer group of the descriptor.
using RankBindings = std::vector<kv::Binding>;

struct GroupFetch {
  std::vector<MemberTicket> members;  // All of them, or the group is refused.
  std::vector<engine::TokenId> prompt;
  std::vector<Amount> destination;  // By rank, answer included.
  Instant deadline;
};

// As FetchEvents, for all ranks at once; loop's thread.
struct GroupFetchEvents {
  std::function<void(kv::TokenRange range, std::function<void(Result<std::vector<RankBindings>>)> done)>
      reserve;
  // Also after the lead is gone.
  std::function<void()> release;
  // Grants by rank; 0 where nothing was granted.
  std::function<void(const SealInfo&, const std::vector<GrantId>& destination, const Ending&)> owned;
  std::function<void(const SealInfo* seal, const Ending&)> ended;
};

// Leads the groups of one engine. Loop's thread. When it is destroyed, what its groups hold ends by the
// ranks' own deadlines.
class GroupLead {
 public:
  GroupLead(net::Loop& loop, RankAgents ranks, kv::Descriptor descriptor, kv::Policy policy,
            const Timings& timings = {}, const Limits& limits = {});
  ~GroupLead();

  // Errors: invalid_argument (no such rank, or no amount for one), malformed (a ticket), incompatible (not
  // each member of one group once), those of GroupCore::begin().
  Result<GroupId> fetch(GroupFetch fetch, GroupFetchEvents events);
  // ended() still comes, with kCancelled, once all destinations are quiet.
  void cancel(GroupId group);
  // The rank's agent is gone, and all that it held: every group ends that has a member there.
  void rank_lost(std::uint32_t rank);

 private:
  struct Run;
  FetchEvents events_of(const std::shared_ptr<Run>& run, std::uint32_t member);
  Status check_source(Run& run, const kv::Descriptor& source) const;
  void verified(Run& run, std::uint32_t member, const SealInfo& seal);
  void failed(Run& run, std::uint32_t member, TerminalKind kind, const Error& why);
  void act(const GroupActions& actions);

  net::Loop& loop_;
  RankAgents ranks_;
  kv::Descriptor descriptor_;
  kv::Policy policy_;
  Timings timings_;
  GroupCore core_;
  std::map<GroupId, std::shared_ptr<Run>> runs_;
  net::Deadline next_tick_;
};

}  // namespace isthmus::handoff
