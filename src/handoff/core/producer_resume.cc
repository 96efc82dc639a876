// SPDX-License-Identifier: Apache-2.0
// A lost connection before SEAL costs an attempt, not the slot: the holder comes back and names what it
// misses.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handoff/core/planted.h"
#include "handoff/core/producer.h"

namespace isthmus::handoff {

// Chunks under way report as they can. Whoever hears BUSY opens the next attempt; others are told that the
// slot is taken.
void ProducerCore::sever(Entry& entry, Error why, Instant now, ProducerActions& out) {
  Attempt& attempt = *entry.attempt;
  move(entry, ProducerState::kSevered, "lost");
  attempt.lost = std::move(why);
  entry.state_end = now + options_.timings.resume_max;
  arm(entry);
  if (peer(attempt.session) != nullptr)
    out.push_back(SendFrame{attempt.session, wire::Busy{address_of(entry), 0}});
}

void ProducerCore::extend_lease(Entry& entry, const wire::Open& open, Instant now) const {
  const Instant request_end = now + wire::from_ms(open.deadline_ms);
  entry.lease_end =
      std::max(entry.lease_end, std::min({now + options_.timings.lease, entry.spec.deadline, request_end}));
}

// The consumer has left the attempt before: it won't own by it, sealed or not.
void ProducerCore::resume(Entry& entry, SessionId session, const wire::Open& open, Instant now,
                          ProducerActions& out) {
  Attempt& attempt = *entry.attempt;
  if (entry.state == ProducerState::kOpened || entry.state == ProducerState::kGrowing) {
    move(entry, ProducerState::kSevered, "lost");
    attempt.lost = Error{Code::kUnavailable, "the consumer has lost a connection"};
  } else if (entry.state == ProducerState::kSealed) {
    attempt.lost = Error{Code::kUnavailable, "the consumer has lost a connection after SEAL"};
  }
  out.push_back(ResumeAttempt{attempt.handoff, attempt.number, open.address.attempt});
  out.push_back(ProducerHandoffEnded{
      attempt.handoff, attempt.number, entry.spec.id, TerminalKind::kPeerLost, attempt.lost, {}});
  move(entry, ProducerState::kOpened, "resumed");
  const bool of_this_generation =
      open.address.generation == entry.generation ||
      (mutation(Mutation::kResumeKeepsOldGeneration) && open.address.generation != 0);
  attempt.number = open.address.attempt;
  attempt.session = session;
  attempt.direct = open.direct;
  attempt.may_compress = may_compress(session, open);
  if (!attempt.may_compress) attempt.offer.codec = wire::Codec::kNone;
  attempt.channels.clear();
  attempt.early_channels.clear();
  attempt.offer.early = false;
  attempt.slots = 0;
  if (!mutation(Mutation::kCreditSurvivesResume)) attempt.granted = 0;
  attempt.next_chunk = attempt.placed = 0;
  attempt.progress_renewed = 0;
  attempt.seal_asked = attempt.fenced = false;
  attempt.seal.reset();
  extend_lease(entry, open, now);
  if (!attempt.plan) {
    const kv::Descriptor* source = options_.descriptors.find(entry.spec.source);
    const kv::Descriptor* target = peer(session)->descriptors.find(open.target);
    ISTHMUS_CHECK(source != nullptr);
    if (target == nullptr) {
      const Error why{Code::kIncompatible, "the session that resumes hasn't told of the descriptor"};
      return end_attempt(entry, {TerminalKind::kRejected, why, false, true}, now, out);
    }
    entry.state_end = now + options_.timings.plan_max;
    arm(entry);
    out.push_back(
        MakePlan{attempt.handoff, attempt.number, entry.spec.source, open.target,
                 verdicts_.of({*source, entry.spec.source}, {*target, open.target}, entry.spec.policy),
                 open.wanted, open.target_rank, attempt.may_compress});
    return;
  }
  const ChunkSet missing(open.missing);
  attempt.offer.resumed = open.resumes && of_this_generation && missing.end() <= attempt.plan->chunk_count;
  attempt.wanted = attempt.offer.resumed ? missing : ChunkSet::all(attempt.plan->chunk_count);
  entry.state_end = kFarFuture;
  arm(entry);
  send_plan(entry, now, out);
  maybe_seal(entry, now, out);
}

// --- Superseding

bool ProducerCore::is_superseded(const Entry& entry, const wire::Ticket& ticket) {
  return entry.only_nonce && ticket.nonce != *entry.only_nonce;
}

ProducerCore::Entry* ProducerCore::successor_of(const wire::HandoffId& superseded) {
  const auto found = std::ranges::find_if(reservations_, [&](const auto& each) {
    return each.second.attempt && each.second.superseded == superseded;
  });
  return found == reservations_.end() ? nullptr : &found->second;
}

Result<std::string> ProducerCore::supersede(const Id128& reservation, const Id128& nonce, Instant now,
                                            ProducerActions& out) {
  Entry* entry = find(reservation);
  meet(entry, ProducerEvent::kSuperseded);
  const bool ending = entry != nullptr && entry->state == ProducerState::kQuiescing &&
                      (entry->attempt->end.ends_reservation || entry->attempt->reservation_end);
  if (entry == nullptr || ending || entry->state == ProducerState::kPromised ||
      entry->state == ProducerState::kQuarantined || now >= entry->lease_end) {
    return Error{Code::kNotFound,
                 fmt::format("reservation {} isn't here, not admitted, or over", reservation.hex())};
  }
  const Instant lease_end =
      std::max(entry->lease_end, std::min(now + entry->spec.lease, entry->spec.deadline));
  Reservation spec = entry->spec;
  spec.nonce = nonce;
  ISTHMUS_TRY(std::string text, wire::mint(ticket_of(spec, lease_end), options_.fleet_key));
  entry->spec.nonce = nonce;
  entry->only_nonce = nonce;
  entry->lease_end = lease_end;
  if (entry->attempt) entry->superseded = entry->attempt->handoff;
  if (entry->attempt && entry->state != ProducerState::kQuiescing) {
    const Error why{Code::kAborted, "the slot was given to another opener"};
    end_attempt(*entry, {TerminalKind::kSuperseded, why, false, true}, now, out);
  } else {
    arm(*entry);
  }
  return text;
}

}  // namespace isthmus::handoff
