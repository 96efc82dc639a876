// SPDX-License-Identifier: Apache-2.0
// The lead of groups: what the processes of its ranks report into the core, and its words to them.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "handoff/agent/group.h"
#include "wire/ticket.h"

namespace isthmus::handoff {
namespace {

using wire::GroupReport;
using wire::GroupReportKind;
using wire::GroupWord;
using wire::GroupWordKind;

static_assert(static_cast<std::uint32_t>(TerminalKind::kSuperseded) + 1 == wire::kEndingCount);

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

// A process may say anything: that a member has ended well is no end, but with the seal of a finished answer.
TerminalKind ending_of(const GroupReport& report) {
  const auto kind = static_cast<TerminalKind>(report.ending);
  const bool is_good = kind == TerminalKind::kOwned || kind == TerminalKind::kDone ||
                       (kind == TerminalKind::kFinished && !report.seal);
  return is_good ? TerminalKind::kFailed : kind;
}

std::uint32_t ranks_of(const kv::Descriptor& descriptor) {
  std::uint32_t ranks = 0;
  for (const kv::RankBox& box : descriptor.partition) ranks = std::max(ranks, box.rank + 1);
  return ranks;
}

}  // namespace

// What the lead knows of one group.
struct GroupLead::Run {
  enum class Memory : std::uint8_t { kNone, kAsked, kDone };
  enum class Answer : std::uint8_t { kNone, kTaken, kFull, kRefused };

  GroupId id = 0;
  std::vector<std::uint32_t> seats;  // Of each member.
  std::optional<Digest128> source;
  std::optional<wire::GroupSeal> seal;
  Memory memory = Memory::kNone;
  std::vector<Answer> answers;  // By seat, to kTake.
  Error refused;                // Of the last kRefused.
  std::unique_ptr<net::Deadline> retry;
};

GroupLead::GroupLead(net::Loop& loop, RankAgents agents, kv::Descriptor descriptor, kv::Policy policy,
                     const Timings& timings, std::vector<RemoteSeat> others)
    : loop_(loop),
      timings_(timings),
      core_(timings),
      ranks_(ranks_of(descriptor)),
      seats_(1),
      next_tick_(loop, [this] {
        GroupActions actions;
        core_.tick(now(), actions);
        act(actions);
      }) {
  for (RemoteSeat& other : others) seats_.push_back({std::move(other.ranks), std::move(other.tell)});
  Seat& own = seats_.front();
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!seat_of(rank).ok()) own.ranks.push_back(rank);
  }
  ISTHMUS_CHECK(own.ranks.size() == agents.size());
  own.is_up = true;
  own_ = std::make_unique<GroupSeat>(
      loop, GroupSeat::Here{own.ranks, std::move(agents), std::move(descriptor), policy, timings},
      [this](const GroupReport& report) { ISTHMUS_CHECK(report_in(0, report).ok()); },
      [this](GroupId group) { return std::move(begun_.extract(group).mapped()); });
  own.tell = [this](const wire::Frame& frame) {
    const auto* begin = std::get_if<wire::GroupBegin>(&frame);
    ISTHMUS_CHECK((begin ? own_->hear(*begin) : own_->hear(std::get<GroupWord>(frame))).ok());
  };
}

GroupLead::~GroupLead() {
  own_ = nullptr;
}

Result<std::uint32_t> GroupLead::seat_of(std::uint32_t rank) const {
  for (std::uint32_t seat = 0; seat < seats_.size(); ++seat) {
    if (std::ranges::find(seats_[seat].ranks, rank) != seats_[seat].ranks.end()) return seat;
  }
  return Error{Code::kInvalidArgument, fmt::format("there is no rank {}", rank)};
}

wire::GroupBegin GroupLead::begin_of(const Run& run, std::uint32_t seat, const GroupFetch& fetch) const {
  wire::GroupBegin begin{.group = run.id,
                         .tokens = fetch.prompt.size(),
                         .token_digest = fetch.prompt.digest(),
                         .deadline_ms = wire::to_ms(fetch.deadline - now()),
                         .members = {},
                         .destination = {}};
  for (std::size_t i = 0; i < fetch.members.size(); ++i) {
    const MemberTicket& member = fetch.members[i];
    wire::GroupMember& told =
        begin.members.emplace_back(wire::GroupMember{member.route.source_rank, member.route.target_rank});
    if (run.seats[i] != seat) continue;
    told.ticket = member.ticket;
    told.endpoints = member.endpoints;
  }
  for (const std::uint32_t rank : seats_[seat].ranks)
    begin.destination.push_back({rank, fetch.destination[rank].bytes, fetch.destination[rank].blocks});
  return begin;
}

Result<GroupId> GroupLead::fetch(GroupFetch fetch, GroupFetchEvents events) {
  if (fetch.destination.size() != ranks_) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{} amounts for {} ranks", fetch.destination.size(), ranks_)};
  }
  const auto run = std::make_shared<Run>();
  for (const MemberTicket& member : fetch.members) {
    ISTHMUS_TRY(const std::uint32_t seat, seat_of(member.route.target_rank));
    run->seats.push_back(seat);
  }
  ISTHMUS_TRY(check_tickets(fetch.members));
  for (const Seat& seat : seats_) {
    if (!seat.is_up)
      return Error{Code::kUnavailable, fmt::format("the process of rank {} isn't there", seat.ranks.at(0))};
  }
  const auto count = static_cast<std::uint32_t>(fetch.members.size());
  ISTHMUS_TRY(run->id, core_.begin(count, fetch.deadline, now()));
  run->answers.resize(seats_.size());
  run->retry = std::make_unique<net::Deadline>(loop_, [this, id = run->id] {
    const auto found = runs_.find(id);
    if (found == runs_.end()) return;
    const auto kept = found->second;
    take(*kept);
    loop_.post([kept] {});  // This is its.
  });
  runs_[run->id] = run;
  begun_[run->id] = std::move(events);
  next_tick_.set(core_.next_deadline());
  for (std::uint32_t seat = 0; seat < seats_.size(); ++seat) seats_[seat].tell(begin_of(*run, seat, fetch));
  return run->id;
}

void GroupLead::cancel(GroupId group) {
  const auto found = runs_.find(group);
  if (found == runs_.end()) return;
  const std::shared_ptr<Run> run = found->second;
  tell_all(*run, {.word = GroupWordKind::kCancel});
  failed(group, 0, TerminalKind::kCancelled, {Code::kCancelled, "the request is no longer wanted"});
}

void GroupLead::rank_lost(std::uint32_t rank) {
  own_->rank_lost(rank);
}

void GroupLead::seat_up(std::size_t other) {
  seats_.at(other + 1).is_up = true;
}

void GroupLead::seat_down(std::size_t other) {
  const std::size_t seat = other + 1;
  seats_.at(seat).is_up = false;
  const auto runs = runs_;
  for (const auto& [id, run] : runs) {
    const auto at = std::ranges::find(run->seats, seat);
    const auto member = at == run->seats.end() ? 0 : static_cast<std::uint32_t>(at - run->seats.begin());
    failed(id, member, TerminalKind::kPeerLost,
           {Code::kUnavailable, fmt::format("the process of rank {} is gone", seats_[seat].ranks.at(0))});
  }
}

Status GroupLead::heard(std::size_t other, const GroupReport& report) {
  return report_in(static_cast<std::uint32_t>(other + 1), report);
}

Status GroupLead::report_in(std::uint32_t seat, const GroupReport& report) {
  const auto found = runs_.find(report.group);
  if (found == runs_.end()) return ok_status();  // It is over.
  const std::shared_ptr<Run> run = found->second;
  const bool is_of_member = report.report >= GroupReportKind::kVerified;
  if (is_of_member && (report.member >= run->seats.size() || run->seats[report.member] != seat))
    return Error{Code::kMalformed, fmt::format("member {} isn't in that process", report.member)};
  GroupActions actions;
  switch (report.report) {
    case GroupReportKind::kAsked:
      if (run->memory == Run::Memory::kNone) take(*run);
      break;
    case GroupReportKind::kTaken:
      run->answers[seat] = Run::Answer::kTaken;
      answered(*run);
      break;
    case GroupReportKind::kRefused:
      run->answers[seat] = report.code == Code::kExhausted ? Run::Answer::kFull : Run::Answer::kRefused;
      run->refused = {report.code == Code::kOk ? Code::kInternal : report.code, report.detail};
      answered(*run);
      break;
    case GroupReportKind::kVerified:
      verified(*run, report.member, report);
      break;
    case GroupReportKind::kOwned:
      core_.owned(run->id, report.member, now(), actions);
      act(actions);
      break;
    case GroupReportKind::kEnded:
      if (const TerminalKind kind = ending_of(report); kind == TerminalKind::kFinished) {
        verified(*run, report.member, report);
      } else {
        failed(run->id, report.member, kind,
               {report.code == Code::kOk ? Code::kInternal : report.code, report.detail});
      }
      break;
  }
  return ok_status();
}

// All ranks' memory is taken together or not at all, when the first member asks (R10). The members' own
// deadlines bound the wait.
void GroupLead::take(Run& run) {
  run.memory = Run::Memory::kAsked;
  std::ranges::fill(run.answers, Run::Answer::kNone);
  tell_all(run, {.word = GroupWordKind::kTake});
}

void GroupLead::answered(Run& run) {
  const auto has = [&](Run::Answer answer) {
    return std::ranges::find(run.answers, answer) != run.answers.end();
  };
  if (run.memory != Run::Memory::kAsked || has(Run::Answer::kNone)) return;
  if (has(Run::Answer::kRefused)) {
    run.memory = Run::Memory::kDone;
    return tell_all(run,
                    {.word = GroupWordKind::kGiveUp, .code = run.refused.code, .detail = run.refused.detail});
  }
  if (has(Run::Answer::kFull)) {
    tell_all(run, {.word = GroupWordKind::kGiveUp});
    return run.retry->set(now() + timings_.busy_retry);
  }
  run.memory = Run::Memory::kDone;
  tell_all(run, {.word = GroupWordKind::kBind});
}

void GroupLead::tell_all(const Run& run, const GroupWord& word) {
  GroupWord told = word;
  told.group = run.id;
  for (const Seat& seat : seats_) {
    if (seat.is_up) seat.tell(told);
  }
}

void GroupLead::verified(Run& run, std::uint32_t member, const GroupReport& report) {
  if (!report.seal)
    return failed(run.id, member, TerminalKind::kFailed, {Code::kInternal, "it tells no seal"});
  if (!run.seal) run.seal = report.seal;
  if (run.seal != report.seal) {
    return failed(run.id, member, TerminalKind::kCorrupt,
                  {Code::kCorrupt, "the ranks of the producer have sealed unlike states"});
  }
  if (report.report == GroupReportKind::kVerified) {
    if (!run.source) run.source = report.source;
    if (run.source != report.source) {
      return failed(run.id, member, TerminalKind::kRejected,
                    {Code::kIncompatible, "the ranks of the producer have unlike descriptors"});
    }
  }
  GroupActions actions;
  core_.verified(run.id, member, now(), actions);
  act(actions);
}

void GroupLead::failed(GroupId group, std::uint32_t member, TerminalKind kind, const Error& why) {
  GroupActions actions;
  core_.failed(group, member, kind, why, actions);
  act(actions);
}

void GroupLead::act(const GroupActions& actions) {
  for (const GroupAction& action : actions) {
    const auto found = runs_.find(std::visit([](const auto& one) { return one.group; }, action));
    if (found == runs_.end()) continue;
    const std::shared_ptr<Run> run = found->second;
    if (const auto* ended = std::get_if<GroupEnded>(&action)) {
      ISTHMUS_LOG(kInfo, "group ended", "outcome={} members={}{}", name(ended->kind), run->seats.size(),
                  ended->why.ok() ? "" : fmt::format(" why=\"{}\"", ended->why.error().text()));
      runs_.erase(found);
      GroupWord end{.word = GroupWordKind::kEnd, .ending = static_cast<std::uint32_t>(ended->kind)};
      if (!ended->why.ok()) {
        end.code = ended->why.code();
        end.detail = ended->why.error().detail;
      } else {
        end.seal = run->seal;
      }
      tell_all(*run, end);
      continue;
    }
    GroupWord word{.group = run->id, .word = GroupWordKind::kOwn};
    if (const auto* own = std::get_if<TellOwn>(&action)) word.member = own->rank;
    if (const auto* abandon = std::get_if<TellAbandon>(&action)) {
      word.word = GroupWordKind::kAbandon;
      word.member = abandon->rank;
      word.code = abandon->why.code;
      word.detail = abandon->why.detail;
    }
    const Seat& seat = seats_[run->seats[word.member]];
    if (seat.is_up) seat.tell(word);
  }
  next_tick_.set(core_.next_deadline());
}

}  // namespace isthmus::handoff
