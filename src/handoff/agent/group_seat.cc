// SPDX-License-Identifier: Apache-2.0
// Members' events up to the lead, its words down to members, and the memory that members of one rank share.
#include "handoff/agent/group_seat.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "net/deadline.h"
#include "transform/members.h"
#include "transform/plan.h"

namespace isthmus::handoff {
namespace {

using wire::GroupReport;
using wire::GroupReportKind;
using wire::GroupWordKind;

wire::GroupSeal told(const SealInfo& seal) {
  return {seal.tokens, seal.token_digest, seal.first_tokens, seal.finish};
}

}  // namespace

// One group, from the lead's GROUP_BEGIN to its end. Members' events keep it, so that memory is given back
// also when nobody leads any more.
struct GroupSeat::Run {
  using Ready = std::function<void(Result<std::vector<kv::Binding>>)>;
  enum class Memory : std::uint8_t { kNone, kTaken, kBinding, kReady, kRefused };
  struct Member {
    std::size_t rank = 0;  // Its place among those here.
    transform::Route route;
    std::string ticket;
    std::vector<std::string> endpoints;
    FetchId fetch = 0;
    bool is_over = false;     // Its end has been told.
    bool is_owned = false;    // Or finished, and the lead has said so.
    bool has_memory = false;  // It may write its rank's memory.
    bool is_finished = false;
  };

  GroupSeat* seat = nullptr;  // Null: it is gone.
  std::uint64_t life = 0;     // Of the lead.
  GroupId id = 0;
  kv::TokenChain prompt;
  Instant deadline;
  std::vector<transform::Route> routes;     // All of the group's, ascending.
  std::vector<Amount> amounts;              // By place of the rank.
  std::map<std::uint32_t, Member> members;  // Of the ranks here, by number.
  GroupFetchEvents events;
  RankAgents agents;
  std::optional<Digest128> source;
  std::optional<wire::GroupSeal> seal;  // Of a group that is owned or finished.
  Memory memory = Memory::kNone;
  bool has_asked = false;
  Error refused;  // Of kRefused.
  std::vector<RankBindings> bindings;
  std::vector<GrantId> grants;                           // By place of the rank.
  std::vector<std::pair<std::uint32_t, Ready>> waiting;  // Members, for the memory.
  std::optional<TerminalKind> outcome;
  Error why;
  Ending ending;
  bool is_told = false;
  std::unique_ptr<net::Deadline> unled;  // The lead has been waited for long enough.
  std::weak_ptr<Run> keep;               // Itself.

  std::shared_ptr<Agent> agent_of(const Member& member) const { return agents.at(member.rank).lock(); }

  void tell(GroupReport report) const {
    if (seat == nullptr || outcome) return;
    report.group = id;
    seat->tell_(report);
  }

  void reserve(std::uint32_t member, Ready done) {
    waiting.emplace_back(member, std::move(done));
    if (memory == Memory::kReady || memory == Memory::kRefused) return answer();
    if (!std::exchange(has_asked, true)) tell({.report = GroupReportKind::kAsked});
  }

  void take() {
    if (memory != Memory::kNone || outcome) return;
    const Status taken = take_grants();
    if (taken.ok()) memory = Memory::kTaken;
    tell({.report = taken.ok() ? GroupReportKind::kTaken : GroupReportKind::kRefused,
          .code = taken.code(),
          .detail = taken.ok() ? "" : taken.error().detail});
  }

  Status take_grants() {
    for (std::size_t i = 0; i < agents.size(); ++i) {
      const auto agent = agents[i].lock();
      Result<GrantId> grant = Error{Code::kUnavailable, "the agent of a rank is gone"};
      if (agent) grant = agent->take_memory(amounts[i], deadline);
      if (!grant.ok()) {
        free_grants();
        return grant.error();
      }
      grants[i] = *grant;
    }
    return ok_status();
  }

  void free_grants() {
    for (std::size_t i = 0; i < agents.size(); ++i) {
      const GrantId grant = std::exchange(grants[i], 0);
      if (const auto agent = agents[i].lock()) agent->free_memory(grant);
    }
  }

  void bind() {
    if (memory != Memory::kTaken || outcome) return;
    memory = Memory::kBinding;
    const auto self = keep.lock();
    events.reserve({0, prompt.size()}, [self](Result<std::vector<RankBindings>> made) {
      if (made.ok() && made->size() != self->agents.size()) {
        self->events.release();
        made = Error{Code::kInternal,
                     fmt::format("the engine bound {} ranks of {}", made->size(), self->agents.size())};
      }
      if (!made.ok()) return self->refuse(made.error());
      self->bindings = *std::move(made);
      self->memory = Memory::kReady;
      self->answer();
      self->settle();  // All may be over by now.
    });
  }

  // Not every rank has memory. With a code: none is waited for any more.
  void give_up(const wire::GroupWord& word) {
    if (memory != Memory::kTaken && memory != Memory::kNone) return;
    if (word.code != Code::kOk) return refuse({word.code, word.detail});
    free_grants();
    memory = Memory::kNone;
  }

  void refuse(const Error& error) {
    free_grants();
    refused = error;
    memory = Memory::kRefused;
    answer();
  }

  void answer() {
    for (auto& [member, done] : std::exchange(waiting, {})) {
      if (memory == Memory::kRefused) {
        done(refused);
        continue;
      }
      Member& one = members.at(member);
      one.has_memory = true;
      done(bindings.at(one.rank));
    }
  }

  void add(const Ending& one) {
    ending.bytes += one.bytes;
    ending.stored_bytes += one.stored_bytes;
    ending.chunks += one.chunks;
    if (ending.wire.empty()) ending.wire = one.wire;
    if (ending.transport.empty()) ending.transport = one.transport;
  }

  void own(Member& member, std::uint32_t number) {
    if (member.is_finished) {
      member.is_owned = true;
      tell({.report = GroupReportKind::kOwned, .member = number});
    } else if (const auto agent = agent_of(member)) {
      agent->decide(member.fetch);
    }
  }

  void over(TerminalKind kind, const Error& error) {
    if (outcome) return;
    outcome = kind;
    why = error;
    settle();
  }

  bool is_all(bool Member::* what) const {
    return std::ranges::all_of(members, [&](const auto& one) { return one.second.*what; });
  }

  // All members are over, or there is none here: only the lead knows how the group ends.
  void wait_for_end() {
    if (unled->is_set()) return;
    const Duration wait = seat->here_.timings.confirm_max;
    unled->set(members.empty() ? deadline + wait : now() + wait);
  }

  // Gives back what nobody writes any more, and tells the end once every member's is known.
  void settle() {
    const auto self = keep.lock();
    const bool is_all_over = is_all(&Member::is_over);
    if (seat != nullptr && !outcome) {
      if (is_all_over) wait_for_end();
      return;
    }
    if (memory == Memory::kNone || memory == Memory::kTaken) refuse({Code::kAborted, "the group is over"});
    if (!is_all_over) return;
    const bool is_whole = outcome == TerminalKind::kOwned && seal && is_all(&Member::is_owned);
    const bool is_owned = is_whole && seal->finish == wire::FinishState::kNone;
    const bool is_written =
        std::ranges::any_of(members, [](const auto& one) { return one.second.has_memory; });
    if (memory == Memory::kReady && !is_written && !is_owned) {
      memory = Memory::kRefused;
      free_grants();
      events.release();
    }
    if (seat == nullptr || std::exchange(is_told, true)) return;
    seat->runs_.erase({life, id});
    const bool is_said_good = outcome == TerminalKind::kOwned || outcome == TerminalKind::kDone ||
                              outcome == TerminalKind::kFinished;
    ending.kind = is_said_good && !is_whole ? TerminalKind::kFailed : *outcome;
    ending.error = why;
    if (!is_whole) return events.ended(nullptr, ending);
    const SealInfo info{seal->tokens, seal->token_digest, {}, seal->first_tokens, seal->finish};
    if (is_owned) return events.owned(info, grants, ending);
    ending.kind = TerminalKind::kFinished;
    events.ended(&info, ending);
  }
};

GroupSeat::GroupSeat(net::Loop& loop, Here here, std::function<void(const GroupReport&)> tell,
                     std::function<GroupFetchEvents(GroupId)> begun)
    : loop_(loop), here_(std::move(here)), tell_(std::move(tell)), begun_(std::move(begun)) {}

GroupSeat::~GroupSeat() {
  for (const auto& [key, run] : std::exchange(runs_, {})) {
    run->seat = nullptr;
    run->unled->set(kFarFuture);
    run->settle();
  }
}

Status GroupSeat::hear(const wire::GroupBegin& begin) {
  if (begin.group <= newest_)
    return Error{Code::kMalformed, fmt::format("group {} has been begun before", begin.group)};
  const auto run = std::make_shared<Run>();
  run->amounts.resize(here_.ranks.size());
  for (const wire::RankAmount& amount : begin.destination) {
    const auto at = std::ranges::find(here_.ranks, amount.rank);
    if (at == here_.ranks.end())
      return Error{Code::kMalformed, fmt::format("rank {} isn't in this process", amount.rank)};
    run->amounts[static_cast<std::size_t>(at - here_.ranks.begin())] = {amount.bytes, amount.blocks};
  }
  for (std::uint32_t i = 0; i < begin.members.size(); ++i) {
    const wire::GroupMember& member = begin.members[i];
    const transform::Route route{member.source_rank, member.target_rank};
    run->routes.push_back(route);
    const auto at = std::ranges::find(here_.ranks, member.target_rank);
    if (at == here_.ranks.end()) continue;
    Run::Member& mine = run->members[i];
    mine.rank = static_cast<std::size_t>(at - here_.ranks.begin());
    mine.route = route;
    mine.ticket = member.ticket;
    mine.endpoints = member.endpoints;
  }
  std::ranges::sort(run->routes);
  newest_ = begin.group;
  run->seat = this;
  run->life = life_;
  run->id = begin.group;
  run->prompt = {begin.token_digest, begin.tokens};
  run->deadline = now() + wire::from_ms(begin.deadline_ms);
  run->events = begun_(begin.group);
  run->agents = here_.agents;
  run->grants.resize(here_.ranks.size());
  run->keep = run;
  run->unled = std::make_unique<net::Deadline>(loop_, [this, self = run.get()] {
    const auto kept = self->keep.lock();
    kept->over(TerminalKind::kTimedOut,
               {Code::kDeadlineExceeded, "the lead says nothing of the group's end"});
    loop_.post([kept] {});  // This is its.
  });
  runs_[{life_, begin.group}] = run;
  start(run);
  return ok_status();
}

void GroupSeat::start(const std::shared_ptr<Run>& run) {
  if (run->members.empty()) run->wait_for_end();
  for (auto& [number, member] : run->members) {
    Result<FetchId> begun = Error{Code::kUnavailable, "its agent is gone"};
    if (const auto agent = run->agent_of(member)) {
      begun = agent->fetch({.ticket = member.ticket,
                            .endpoints = member.endpoints,
                            .prompt = run->prompt,
                            .destination = {},  // All ranks' are the group's.
                            .deadline = run->deadline,
                            .is_member = true,
                            .source_rank = member.route.source_rank},
                           events_of(run, number));
    }
    if (begun.ok()) {
      member.fetch = *begun;
      continue;
    }
    member.is_over = true;
    loop_.post([run, failed = number, why = begun.error()] {
      run->tell({.report = GroupReportKind::kEnded,
                 .member = failed,
                 .code = why.code,
                 .detail = why.detail,
                 .ending = static_cast<std::uint32_t>(terminal_kind(why.code))});
      run->settle();
    });
  }
}

FetchEvents GroupSeat::events_of(const std::shared_ptr<Run>& run, std::uint32_t number) {
  FetchEvents events;
  events.reserve = [run, number](kv::TokenRange, Run::Ready done) { run->reserve(number, std::move(done)); };
  events.release = [run, number] {
    run->members.at(number).has_memory = false;
    run->settle();
  };
  events.owned = [run, number](const SealInfo&, GrantId grant, const Ending& ending) {
    Run::Member& one = run->members.at(number);
    if (const auto agent = run->agent_of(one)) agent->free_memory(grant);  // Of nothing.
    one.is_over = one.is_owned = true;
    one.has_memory = false;
    run->add(ending);
    run->tell({.report = GroupReportKind::kOwned,
               .member = number,
               .bytes = ending.bytes,
               .chunks = ending.chunks});
    run->settle();
  };
  events.ended = [run, number](const SealInfo* seal, const Ending& ending) {
    Run::Member& one = run->members.at(number);
    one.is_over = true;
    one.is_finished = ending.kind == TerminalKind::kFinished && seal != nullptr;
    run->add(ending);
    GroupReport report{.report = GroupReportKind::kEnded,
                       .member = number,
                       .ending = static_cast<std::uint32_t>(ending.kind),
                       .bytes = ending.bytes,
                       .chunks = ending.chunks};
    if (one.is_finished) {
      report.seal = told(*seal);
    } else {
      report.code = ending.error.code;
      report.detail = ending.error.detail;
    }
    run->tell(std::move(report));
    run->settle();
  };
  events.planned = [run](const kv::Descriptor& source) -> Status {
    if (run->seat == nullptr) return Error{Code::kAborted, "nobody leads the group any more"};
    ISTHMUS_TRY(run->seat->check_source(*run, source));
    run->source = source.digest();
    return ok_status();
  };
  events.verified = [run, number](const SealInfo& seal) {
    run->tell({.report = GroupReportKind::kVerified,
               .member = number,
               .source = run->source.value_or(Digest128{}),
               .seal = told(seal)});
  };
  return events;
}

// The members are those that the whole state takes: one that is missing would leave a hole in what is owned.
Status GroupSeat::check_source(const Run& run, const kv::Descriptor& source) const {
  if (run.source == source.digest()) return ok_status();
  if (run.source) return Error{Code::kIncompatible, "the ranks of the producer have unlike descriptors"};
  ISTHMUS_TRY(const auto due, transform::Plan::members(source, here_.descriptor,
                                                       kv::negotiate(source, here_.descriptor, here_.policy),
                                                       {0, run.prompt.size()}));
  if (run.routes == due) return ok_status();
  return Error{Code::kIncompatible,
               fmt::format("{} members were offered; the state takes {}, between other ranks",
                           run.routes.size(), due.size())};
}

Status GroupSeat::hear(const wire::GroupWord& word) {
  const auto found = runs_.find({life_, word.group});
  if (found == runs_.end()) {
    if (word.group <= newest_) return ok_status();  // It is over.
    return Error{Code::kMalformed, fmt::format("group {} hasn't been begun", word.group)};
  }
  const std::shared_ptr<Run> run = found->second;
  const Error why{word.code == Code::kOk ? Code::kAborted : word.code, word.detail};
  const auto member = run->members.find(word.member);
  switch (word.word) {
    case GroupWordKind::kTake:
      run->take();
      break;
    case GroupWordKind::kBind:
      run->bind();
      break;
    case GroupWordKind::kGiveUp:
      run->give_up(word);
      break;
    case GroupWordKind::kOwn:
    case GroupWordKind::kAbandon:
      if (member == run->members.end())
        return Error{Code::kMalformed, fmt::format("member {} isn't in this process", word.member)};
      if (word.word == GroupWordKind::kOwn) {
        run->own(member->second, word.member);
      } else if (const auto agent = run->agent_of(member->second)) {
        agent->abandon(member->second.fetch, why);
      }
      break;
    case GroupWordKind::kCancel:  // CANCEL, so that each reservation ends with it.
      for (const auto& [number, one] : run->members) {
        if (const auto agent = run->agent_of(one); agent && !one.is_over) agent->cancel(one.fetch);
      }
      break;
    case GroupWordKind::kEnd:
      run->seal = word.seal;
      run->over(static_cast<TerminalKind>(word.ending), why);
      break;
  }
  return ok_status();
}

void GroupSeat::lead_lost() {
  const Error why{Code::kUnavailable, "the group's lead is gone"};
  const auto runs = runs_;
  for (const auto& [key, run] : runs) {
    run->over(TerminalKind::kPeerLost, why);
    for (const auto& [number, one] : run->members) {
      if (const auto agent = run->agent_of(one)) agent->abandon(one.fetch, why);
    }
  }
  ++life_;  // It numbers its groups anew.
  newest_ = 0;
}

void GroupSeat::rank_lost(std::uint32_t rank) {
  const auto runs = runs_;
  for (const auto& [key, run] : runs) {
    for (auto& [number, one] : run->members) {
      if (here_.ranks.at(one.rank) != rank) continue;
      one.is_over = true;
      one.has_memory = false;
      run->tell({.report = GroupReportKind::kEnded,
                 .member = number,
                 .code = Code::kUnavailable,
                 .detail = "its agent is gone",
                 .ending = static_cast<std::uint32_t>(TerminalKind::kPeerLost)});
    }
    run->settle();
  }
}

}  // namespace isthmus::handoff
