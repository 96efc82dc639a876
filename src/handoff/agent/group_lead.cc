// SPDX-License-Identifier: Apache-2.0
// The lead of groups: members' events into the core, its words to the ranks, and the memory that members of
// one rank share.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "handoff/agent/group.h"
#include "transform/plan.h"
#include "wire/ticket.h"

namespace isthmus::handoff {

namespace {

// Each member of one group, once. That the tickets are the producer's is for each rank to check.
Status check_tickets(const std::vector<MemberTicket>& members) {
  std::optional<Id128> group;
  std::vector<bool> given(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto refuse = [&](const std::string& why) {
      return Error{Code::kIncompatible, fmt::format("the ticket of member {}: {}", i, why)};
    };
    ISTHMUS_TRY(const wire::SignedTicket ticket, wire::parse_ticket(members[i].ticket));
    const auto& membership = ticket.ticket.membership;
    if (!membership) return refuse("it is that of a whole state");
    if (!group) group = membership->group;
    if (membership->group != *group) return refuse("it is that of another group");
    if (membership->members != members.size())
      return refuse(
          fmt::format("{} members were given, the group has {}", members.size(), membership->members));
    if (given[membership->member]) return refuse(fmt::format("member {} is given twice", membership->member));
    given[membership->member] = true;
  }
  return ok_status();
}

}  // namespace

// One group, from the fetch to its end. Members' events keep it, so that memory is given back also when
// nobody leads any more.
struct GroupLead::Run {
  using Ready = std::function<void(Result<std::vector<kv::Binding>>)>;
  enum class Memory : std::uint8_t { kNone, kWanted, kAsked, kReady, kRefused };
  struct Member {
    FetchId fetch = 0;
    bool is_over = false;     // Its end has been told.
    bool has_memory = false;  // It may write its rank's memory.
    bool is_finished = false;
  };

  GroupLead* lead = nullptr;  // Null: it is gone.
  GroupId id = 0;
  GroupFetch fetch;
  GroupFetchEvents events;
  RankAgents ranks;
  std::vector<Member> members;  // Parallel to fetch.members.
  std::optional<Digest128> source;
  std::optional<SealInfo> seal;
  Memory memory = Memory::kNone;
  Error refused;  // Of kRefused.
  std::vector<RankBindings> bindings;
  std::vector<GrantId> grants;                           // By rank.
  std::vector<std::pair<std::uint32_t, Ready>> waiting;  // Members, for the memory.
  std::unique_ptr<net::Deadline> retry;                  // While other holders' memory is waited for.
  std::optional<TerminalKind> outcome;                   // The core's.
  Error why;
  Ending ending;
  bool is_told = false;

  std::shared_ptr<Agent> agent_of(std::uint32_t member) const {
    return ranks.at(fetch.members[member].route.target_rank).lock();
  }

  // All ranks' memory is taken together or not at all, when the first member asks (R10).
  void reserve(std::uint32_t member, Ready done) {
    waiting.emplace_back(member, std::move(done));
    if (memory == Memory::kNone) return take();
    answer();
  }

  void take() {
    memory = Memory::kWanted;
    const Status taken = take_grants();
    if (taken.code() == Code::kExhausted && !outcome) return retry->set(now() + lead_retry);
    if (!taken.ok()) return refuse(taken.error());
    memory = Memory::kAsked;
    const auto self = keep.lock();
    events.reserve({0, fetch.prompt.size()}, [self](Result<std::vector<RankBindings>> made) {
      if (!made.ok()) return self->refuse(made.error());
      self->bindings = *std::move(made);
      self->memory = Memory::kReady;
      self->answer();
      self->settle();  // All may be over by now.
    });
  }

  Status take_grants() {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const auto agent = ranks[rank].lock();
      Result<GrantId> grant = Error{Code::kUnavailable, fmt::format("rank {} is gone", rank)};
      if (agent) grant = agent->take_memory(fetch.destination[rank], fetch.deadline);
      if (!grant.ok()) {
        free_grants();
        return grant.error();
      }
      grants[rank] = *grant;
    }
    return ok_status();
  }

  void free_grants() {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const GrantId grant = std::exchange(grants[rank], 0);
      if (const auto agent = ranks[rank].lock()) agent->free_memory(grant);
    }
  }

  void refuse(const Error& error) {
    free_grants();
    refused = error;
    memory = Memory::kRefused;
    answer();
  }

  void answer() {
    if (memory != Memory::kReady && memory != Memory::kRefused) return;
    for (auto& [member, done] : std::exchange(waiting, {})) {
      if (memory == Memory::kRefused) {
        done(refused);
        continue;
      }
      members[member].has_memory = true;
      done(bindings.at(fetch.members[member].route.target_rank));
    }
  }

  void add(const Ending& one) {
    ending.bytes += one.bytes;
    ending.stored_bytes += one.stored_bytes;
    ending.chunks += one.chunks;
    if (ending.wire.empty()) ending.wire = one.wire;
    if (ending.transport.empty()) ending.transport = one.transport;
  }

  // Gives back what nobody writes any more, and tells the end once every member's is known.
  void settle() {
    const auto self = keep.lock();
    if (lead != nullptr && !outcome) return;
    if (memory == Memory::kWanted) refuse({Code::kAborted, "the group is over"});
    if (!std::ranges::all_of(members, &Member::is_over)) return;
    const bool is_owned = outcome == TerminalKind::kOwned && seal->finish == wire::FinishState::kNone;
    const bool is_written = std::ranges::any_of(members, &Member::has_memory);
    if (memory == Memory::kReady && !is_written && !is_owned) {
      memory = Memory::kNone;
      free_grants();
      events.release();
    }
    if (lead == nullptr || std::exchange(is_told, true)) return;
    lead->runs_.erase(id);
    ending.kind = *outcome;
    ending.error = why;
    if (is_owned) return events.owned(*seal, grants, ending);
    if (outcome == TerminalKind::kOwned) ending.kind = TerminalKind::kFinished;
    events.ended(ending.kind == TerminalKind::kFinished ? &*seal : nullptr, ending);
  }

  Duration lead_retry{};
  std::weak_ptr<Run> keep;  // Itself.
};

GroupLead::GroupLead(net::Loop& loop, RankAgents ranks, kv::Descriptor descriptor, kv::Policy policy,
                     const Timings& timings, const Limits& limits)
    : loop_(loop),
      ranks_(std::move(ranks)),
      descriptor_(std::move(descriptor)),
      policy_(std::move(policy)),
      timings_(timings),
      core_(timings, limits),
      next_tick_(loop, [this] {
        GroupActions actions;
        core_.tick(now(), actions);
        act(actions);
      }) {}

GroupLead::~GroupLead() {
  for (const auto& [id, run] : std::exchange(runs_, {})) run->lead = nullptr;
}

Result<GroupId> GroupLead::fetch(GroupFetch fetch, GroupFetchEvents events) {
  if (fetch.destination.size() != ranks_.size()) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{} amounts for {} ranks", fetch.destination.size(), ranks_.size())};
  }
  for (const MemberTicket& member : fetch.members) {
    if (member.route.target_rank >= ranks_.size())
      return Error{Code::kInvalidArgument, fmt::format("there is no rank {}", member.route.target_rank)};
  }
  ISTHMUS_TRY(check_tickets(fetch.members));
  const auto count = static_cast<std::uint32_t>(fetch.members.size());
  ISTHMUS_TRY(const GroupId id, core_.begin(count, fetch.deadline, now()));
  const auto run = std::make_shared<Run>();
  run->lead = this;
  run->id = id;
  run->fetch = std::move(fetch);
  run->events = std::move(events);
  run->ranks = ranks_;
  run->members.resize(count);
  run->grants.resize(ranks_.size());
  run->lead_retry = timings_.busy_retry;
  run->keep = run;
  run->retry = std::make_unique<net::Deadline>(loop_, [self = run.get()] {
    if (self->memory == Run::Memory::kWanted) self->take();
  });
  runs_[id] = run;
  next_tick_.set(core_.next_deadline());
  for (std::uint32_t i = 0; i < count; ++i) {
    const MemberTicket& member = run->fetch.members[i];
    Result<FetchId> begun = Error{Code::kUnavailable, "its agent is gone"};
    if (const auto agent = run->agent_of(i)) {
      begun = agent->fetch({.ticket = member.ticket,
                            .endpoints = member.endpoints,
                            .prompt = run->fetch.prompt,
                            .destination = {},  // All ranks' are the group's.
                            .deadline = run->fetch.deadline,
                            .is_member = true,
                            .source_rank = member.route.source_rank},
                           events_of(run, i));
    }
    if (begun.ok()) {
      run->members[i].fetch = *begun;
      continue;
    }
    for (std::uint32_t j = i; j < count; ++j) run->members[j].is_over = true;
    loop_.post([weak = std::weak_ptr(run), i, why = begun.error()] {
      const auto self = weak.lock();
      if (self && self->lead != nullptr) self->lead->failed(*self, i, terminal_kind(why.code), why);
    });
    break;
  }
  return id;
}

void GroupLead::cancel(GroupId group) {
  const auto found = runs_.find(group);
  if (found == runs_.end()) return;
  const std::shared_ptr<Run> run = found->second;
  // CANCEL, so that each reservation ends with it.
  for (std::uint32_t i = 0; i < run->members.size(); ++i) {
    if (const auto agent = run->agent_of(i); agent && !run->members[i].is_over)
      agent->cancel(run->members[i].fetch);
  }
  failed(*run, 0, TerminalKind::kCancelled, {Code::kCancelled, "the request is no longer wanted"});
}

void GroupLead::rank_lost(std::uint32_t rank) {
  const auto runs = runs_;
  for (const auto& [id, run] : runs) {
    for (std::uint32_t i = 0; i < run->members.size(); ++i) {
      if (run->fetch.members[i].route.target_rank != rank) continue;
      run->members[i].is_over = true;
      run->members[i].has_memory = false;
      failed(*run, i, TerminalKind::kPeerLost, {Code::kUnavailable, "its agent is gone"});
    }
    run->settle();
  }
}

FetchEvents GroupLead::events_of(const std::shared_ptr<Run>& run, std::uint32_t member) {
  FetchEvents events;
  events.reserve = [run, member](kv::TokenRange, Run::Ready done) { run->reserve(member, std::move(done)); };
  events.release = [run, member] {
    run->members[member].has_memory = false;
    run->settle();
  };
  events.owned = [run, member](const SealInfo&, GrantId grant, const Ending& ending) {
    Run::Member& one = run->members[member];
    if (const auto agent = run->agent_of(member)) agent->free_memory(grant);  // Of nothing.
    one.is_over = true;
    one.has_memory = false;
    run->add(ending);
    if (GroupLead* lead = run->lead) {
      GroupActions actions;
      lead->core_.owned(run->id, member, now(), actions);
      lead->act(actions);
    }
    run->settle();
  };
  events.ended = [run, member](const SealInfo* seal, const Ending& ending) {
    Run::Member& one = run->members[member];
    one.is_over = true;
    run->add(ending);
    if (GroupLead* lead = run->lead) {
      one.is_finished = ending.kind == TerminalKind::kFinished && seal != nullptr;
      one.is_finished ? lead->verified(*run, member, *seal)
                      : lead->failed(*run, member, ending.kind, ending.error);
    }
    run->settle();
  };
  events.planned = [run](const kv::Descriptor& source) {
    if (run->lead == nullptr) return Status(Error{Code::kAborted, "nobody leads the group any more"});
    return run->lead->check_source(*run, source);
  };
  events.verified = [run, member](const SealInfo& seal) {
    if (run->lead != nullptr) run->lead->verified(*run, member, seal);
  };
  return events;
}

// The members are those that the whole state takes: one that is missing would leave a hole in what is owned.
Status GroupLead::check_source(Run& run, const kv::Descriptor& source) const {
  const Digest128 digest = source.digest();
  if (run.source == digest) return ok_status();
  if (run.source) return Error{Code::kIncompatible, "the ranks of the producer have unlike descriptors"};
  ISTHMUS_TRY(const auto due,
              transform::Plan::members(source, descriptor_, kv::negotiate(source, descriptor_, policy_),
                                       {0, run.fetch.prompt.size()}));
  std::vector<transform::Route> given;
  for (const MemberTicket& member : run.fetch.members) given.push_back(member.route);
  std::ranges::sort(given);
  if (given != due) {
    return Error{Code::kIncompatible,
                 fmt::format("{} members were offered; the state takes {}, between other ranks", given.size(),
                             due.size())};
  }
  run.source = digest;
  return ok_status();
}

void GroupLead::verified(Run& run, std::uint32_t member, const SealInfo& seal) {
  if (!run.seal) run.seal = seal;
  if (run.seal->tokens != seal.tokens || run.seal->token_digest != seal.token_digest ||
      run.seal->first_tokens != seal.first_tokens || run.seal->finish != seal.finish)
    return failed(run, member, TerminalKind::kCorrupt,
                  {Code::kCorrupt, "the ranks of the producer have sealed unlike states"});
  GroupActions actions;
  core_.verified(run.id, member, now(), actions);
  act(actions);
}

void GroupLead::failed(Run& run, std::uint32_t member, TerminalKind kind, const Error& why) {
  GroupActions actions;
  core_.failed(run.id, member, kind, why, actions);
  act(actions);
  run.settle();
}

void GroupLead::act(const GroupActions& actions) {
  for (const GroupAction& action : actions) {
    const auto found = runs_.find(std::visit([](const auto& one) { return one.group; }, action));
    if (found == runs_.end()) continue;
    const std::shared_ptr<Run> run = found->second;
    if (const auto* ended = std::get_if<GroupEnded>(&action)) {
      run->outcome = ended->kind;
      if (!ended->why.ok()) run->why = ended->why.error();
      ISTHMUS_LOG(kInfo, "group ended", "outcome={} members={}{}", name(ended->kind), run->members.size(),
                  ended->why.ok() ? "" : fmt::format(" why=\"{}\"", ended->why.error().text()));
      run->settle();
    } else if (const auto* own = std::get_if<TellOwn>(&action)) {
      if (run->members[own->rank].is_finished) {
        GroupActions next;
        core_.owned(run->id, own->rank, now(), next);
        act(next);
      } else if (const auto agent = run->agent_of(own->rank)) {
        agent->decide(run->members[own->rank].fetch);
      }
    } else if (const auto* abandon = std::get_if<TellAbandon>(&action)) {
      if (const auto agent = run->agent_of(abandon->rank))
        agent->abandon(run->members[abandon->rank].fetch, abandon->why);
    }
  }
  next_tick_.set(core_.next_deadline());
}

}  // namespace isthmus::handoff
