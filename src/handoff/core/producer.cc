// SPDX-License-Identifier: Apache-2.0
// Reservations, prefill's events, sessions, time. Frames are in producer_frames.cc, ends in producer_ends.cc.
#include "handoff/core/producer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handoff/core/planted.h"

namespace isthmus::handoff {
ProducerCore::ProducerCore(ProducerOptions options, Ledger* ledger)
    : options_(std::move(options)), ledger_(ledger) {
  ISTHMUS_CHECK(ledger_ != nullptr);
  ISTHMUS_CHECK(options_.timings.quiesce_max > Duration::zero());  // Else tick() would find it due for ever.
}

Status ProducerCore::check_reservation(const Reservation& reservation, Instant now) const {
  if (const Ended* ended = ended_reservations_.find(reservation.id, now)) {
    if (ended->kind == TerminalKind::kCancelled) return Error{Code::kCancelled, ended->detail};
    return Error{Code::kInvalidArgument, fmt::format("reservation {} was used before", reservation.id.hex())};
  }
  if (reservation.tokens.begin >= reservation.tokens.end) {
    return Error{Code::kInvalidArgument, fmt::format("token range [{}, {}) is empty",
                                                     reservation.tokens.begin, reservation.tokens.end)};
  }
  if (options_.descriptors.find(reservation.source) == nullptr) {
    return Error{Code::kInvalidArgument,
                 fmt::format("descriptor {} isn't one of this agent's", reservation.source.hex())};
  }
  const auto found = reservations_.find(reservation.id);
  if (found != reservations_.end()) {
    if (found->second.state == ProducerState::kPromised) return ok_status();
    return Error{Code::kInvalidArgument, fmt::format("reservation {} exists already", reservation.id.hex())};
  }
  if (reservations_.size() >= options_.limits.reservations_max) {
    return Error{Code::kExhausted,
                 fmt::format("{} reservations are live, the most allowed", reservations_.size())};
  }
  return ok_status();
}

wire::Ticket ProducerCore::ticket_of(const Reservation& reservation, Instant lease_end) const {
  return {options_.name,         options_.incarnation,
          reservation.id,        reservation.source,
          reservation.tokens,    wire::to_ms(lease_end - options_.started),
          reservation.nonce,     false,
          reservation.membership};
}

Result<std::string> ProducerCore::admitted(const Reservation& reservation, Instant now,
                                           ProducerActions& out) {
  meet(find(reservation.id), ProducerEvent::kAdmitted);
  ISTHMUS_TRY(check_reservation(reservation, now));
  const Instant lease_end = std::min(now + reservation.lease, reservation.deadline);
  ISTHMUS_TRY(std::string text, wire::mint(ticket_of(reservation, lease_end), options_.fleet_key));
  const Result<GrantId> grant = ledger_->grant(Category::kPinned, reservation.pinned, lease_end);
  Entry* promised = find(reservation.id);
  if (!grant.ok()) {
    if (promised != nullptr) {
      end_reservation(*promised, {TerminalKind::kExhausted, grant.status(), true, true, "ended"}, now, out);
    }
    return grant.error();
  }
  Entry& entry = reservations_[reservation.id];
  entry.spec = reservation;
  entry.watermark = reservation.tokens.begin;
  entry.lease_end = lease_end;
  entry.grant = *grant;
  std::optional<PromisedOpen> waiting = std::exchange(entry.promised, std::nullopt);
  if (promised != nullptr) {
    handoffs_.erase(waiting->open.address.handoff);
    move(entry, ProducerState::kPinned, "admitted");
  }
  entry.state_end = kFarFuture;
  arm(entry);
  if (waiting && peer(waiting->session) != nullptr) on_open(waiting->session, waiting->open, now, out);
  return text;
}

void ProducerCore::grew(const Id128& reservation, std::uint64_t watermark, Instant now,
                        ProducerActions& out) {
  Entry* entry = find(reservation);
  meet(entry, ProducerEvent::kGrew);
  if (entry == nullptr) return;
  entry->watermark = std::clamp(watermark, entry->watermark, entry->spec.tokens.end);
  pump(*entry, now, out);
}

void ProducerCore::prefill_done(const Id128& reservation, PrefillResult result, Instant now,
                                ProducerActions& out) {
  Entry* entry = find(reservation);
  meet(entry, ProducerEvent::kPrefillDone);
  if (entry == nullptr || entry->result) return;
  entry->watermark = entry->spec.tokens.end;
  entry->result = std::move(result);
  pump(*entry, now, out);
}

void ProducerCore::prefill_failed(const Id128& reservation, Error why, Instant now, ProducerActions& out) {
  Entry* entry = find(reservation);
  meet(entry, ProducerEvent::kPrefillFailed);
  if (entry == nullptr || entry->result) return;
  end_reservation(*entry, {terminal_kind(why.code), why, true, true, "ended"}, now, out);
}

void ProducerCore::preempted(const Id128& reservation, Instant now, ProducerActions& out) {
  Entry* entry = find(reservation);
  meet(entry, ProducerEvent::kPreempted);
  if (entry == nullptr) return;
  // The pages change from here on. What was sealed was read before and stands under its own generation.
  if (!mutation(Mutation::kPreemptionKeepsGeneration)) ++entry->generation;
  entry->watermark = entry->spec.tokens.begin;
  entry->result.reset();
  if (entry->state != ProducerState::kOpened && entry->state != ProducerState::kGrowing) return;
  Attempt& attempt = *entry->attempt;
  const bool credit_survives = mutation(Mutation::kCreditSurvivesRestart);
  if (!credit_survives) attempt.slots = attempt.granted = 0;
  attempt.offer.resumed = attempt.offer.early = false;
  attempt.wanted = ChunkSet::all(attempt.plan ? attempt.plan->chunk_count : 0);
  attempt.next_chunk = 0;
  attempt.placed = 0;
  attempt.progress_renewed = 0;
  attempt.seal_asked = false;
  if (entry->state == ProducerState::kGrowing && !credit_survives)
    move(*entry, ProducerState::kOpened, "preempted");
  if (attempt.plan) out.push_back(SendFrame{attempt.session, wire::Restart{address_of(*entry)}});
  arm(*entry);
  (void)now;
}

void ProducerCore::cancel(const Id128& reservation, Error why, Instant now, ProducerActions& out) {
  Entry* entry = find(reservation);
  meet(entry, ProducerEvent::kWithdrawn);
  if (entry == nullptr) {
    if (ended_reservations_.find(reservation, now) != nullptr) return;
    Ended tombstone{0,  TerminalKind::kCancelled,        Code::kCancelled, clip(why.detail), {},
                    {}, now + options_.timings.tombstone};
    ended_reservations_.put(reservation, std::move(tombstone), options_.limits.tombstones_max);
    return;
  }
  end_reservation(
      *entry, {TerminalKind::kCancelled, Error{Code::kCancelled, why.detail}, true, true, "ended"}, now, out);
}

Status ProducerCore::session_up(SessionId session, Peer peer, Instant now, ProducerActions& out) {
  const auto life = lives_.find(peer.name);
  if (sessions_.size() >= options_.limits.sessions_max ||
      (life == lives_.end() && lives_.size() >= 4 * std::size_t{options_.limits.sessions_max})) {
    return Error{Code::kExhausted, fmt::format("{} sessions are open, the most allowed", sessions_.size())};
  }
  const std::optional<Id128> past = life == lives_.end() || life->second == peer.incarnation
                                        ? std::nullopt
                                        : std::optional<Id128>(life->second);
  lives_[peer.name] = peer.incarnation;
  if (past) end_life(*past, now, out);
  sessions_.emplace(session, std::move(peer));
  return ok_status();
}

// The name has a new incarnation, proven by a completed handshake: whatever the old one held is over.
void ProducerCore::end_life(const Id128& incarnation, Instant now, ProducerActions& out) {
  std::vector<SessionId> gone;
  for (const auto& [session, old] : sessions_) {
    if (old.incarnation == incarnation) gone.push_back(session);
  }
  for (const SessionId session : gone) session_down(session, now, out);
  const wire::HandoffId first{incarnation, 0};
  std::vector<Id128> held;
  for (auto it = handoffs_.lower_bound(first); it != handoffs_.end() && it->first.consumer == incarnation;
       ++it) {
    held.push_back(it->second);
  }
  for (const Id128& id : held) {
    Entry* entry = find(id);
    meet(entry, ProducerEvent::kLifeOver);
    if (entry != nullptr && entry->state == ProducerState::kSevered) {
      end_attempt(*entry,
                  {TerminalKind::kPeerLost, Error{Code::kUnavailable, "the consumer has restarted"}, false,
                   false, "ended"},
                  now, out);
      continue;
    }
    // A dead consumer may have owned a sealed state and answered with it: the slot isn't given twice.
    if (entry != nullptr && entry->state == ProducerState::kSealed) {
      end_attempt(*entry,
                  {TerminalKind::kPeerLost, Error{Code::kUnavailable, "the consumer has restarted"},
                   !mutation(Mutation::kRestartFreesSealedSlot), false, "ended"},
                  now, out);
    }
  }
}

void ProducerCore::session_down(SessionId session, Instant now, ProducerActions& out) {
  if (sessions_.erase(session) == 0) return;
  channels_.erase(channels_.lower_bound({session, 0}), channels_.upper_bound({session, 0xffffffffu}));
  std::vector<Id128> held;
  for (const auto& [handoff, id] : handoffs_) held.push_back(id);
  for (const Id128& id : held) {
    Entry* entry = find(id);
    if (entry == nullptr) continue;
    const SessionId holders = entry->promised ? entry->promised->session : entry->attempt->session;
    if (holders != session) continue;
    meet(entry, ProducerEvent::kSessionLost);
    const Error why{Code::kUnavailable, "the session with the consumer is down"};
    if (entry->state == ProducerState::kPromised) {
      end_promise(*entry, {TerminalKind::kPeerLost, why, false, false, "ended"}, now, out);
    } else if (entry->state == ProducerState::kOpened || entry->state == ProducerState::kGrowing) {
      sever(*entry, why, now, out);
    }
  }
}

void ProducerCore::channel_up(ChannelId channel) {
  if (sessions_.contains(channel.session)) channels_.insert(channel);
}

void ProducerCore::channel_down(ChannelId channel, Instant now, ProducerActions& out) {
  if (channels_.erase(channel) == 0) return;
  std::vector<Id128> users;
  for (const auto& [handoff, id] : handoffs_) {
    const Entry* entry = find(id);
    if (entry == nullptr || !entry->attempt) continue;
    const std::vector<ChannelId>& named = entry->attempt->channels;
    if (std::ranges::find(named, channel) == named.end()) continue;
    meet(entry, ProducerEvent::kChannelLost);
    if (entry->state == ProducerState::kOpened || entry->state == ProducerState::kGrowing)
      users.push_back(id);
  }
  for (const Id128& id : users) {
    const std::string detail = fmt::format("data channel {} is down", channel.number);
    if (Entry* entry = find(id)) sever(*entry, Error{Code::kUnavailable, detail}, now, out);
  }
}

void ProducerCore::tick(Instant now, ProducerActions& out) {
  while (const std::optional<Id128> due = deadlines_.pop_due(now)) {
    if (Entry* entry = find(*due)) on_due(*entry, now, out);
  }
}

void ProducerCore::on_due(Entry& entry, Instant now, ProducerActions& out) {
  meet(&entry, ProducerEvent::kDeadline);
  if (entry.state == ProducerState::kQuiescing) {
    on_quiesce_timeout(entry, now, out);
  } else if (entry.state == ProducerState::kPromised) {
    // The opener's wait is over, not the reservation: it may still be admitted, for another opener.
    const Error why{Code::kNotFound, "the promised reservation was not admitted in time"};
    end_promise(entry, {TerminalKind::kTimedOut, why, false, true, "ended"}, now, out);
  } else if (now >= entry.lease_end) {
    const std::string detail = fmt::format("the lease ran out in state {}", name(entry.state));
    end_reservation(entry, {TerminalKind::kExpired, Error{Code::kAborted, detail}, true, true, "ended"}, now,
                    out);
  } else if (now >= entry.state_end && entry.state == ProducerState::kSevered) {
    end_attempt(entry, {TerminalKind::kPeerLost, entry.attempt->lost, false, true, "ended"}, now, out);
  } else if (now >= entry.state_end) {
    const Error why{Code::kDeadlineExceeded, "the plan was not made in time"};
    end_attempt(entry, {TerminalKind::kTimedOut, why, false, true, "ended"}, now, out);
  } else {
    arm(entry);
  }
}

// --- Small parts.

ProducerCore::Entry* ProducerCore::find(const Id128& reservation) {
  const auto found = reservations_.find(reservation);
  return found == reservations_.end() ? nullptr : &found->second;
}

ProducerCore::Entry* ProducerCore::find(const wire::HandoffId& handoff) {
  const auto found = handoffs_.find(handoff);
  return found == handoffs_.end() ? nullptr : find(found->second);
}

ProducerCore::Entry* ProducerCore::find(const wire::HandoffId& handoff, std::uint32_t attempt) {
  Entry* entry = find(handoff);
  return entry != nullptr && entry->attempt && entry->attempt->number == attempt ? entry : nullptr;
}

void ProducerCore::meet(const Entry* entry, ProducerEvent event) const {
  const ProducerState state = entry == nullptr ? ProducerState::kReleased : entry->state;
  ISTHMUS_CHECK(is_possible(state, event));
  if (event_observer_) event_observer_(state, event);
}

void ProducerCore::meet_open(const Entry& holder, const wire::Open& open) const {
  const std::uint32_t attempt =
      holder.promised ? holder.promised->open.address.attempt : holder.attempt->number;
  meet(&holder, open.address.attempt > attempt ? ProducerEvent::kOpenNext : ProducerEvent::kOpen);
}

void ProducerCore::move(Entry& entry, ProducerState to, std::string_view cause) {
  ISTHMUS_CHECK(is_transition(entry.state, to, cause));
  if (observer_) observer_(entry.state, to, cause);
  entry.state = to;
}

void ProducerCore::arm(Entry& entry) {
  const bool leased = entry.state == ProducerState::kPinned || entry.state == ProducerState::kOpened ||
                      entry.state == ProducerState::kGrowing || entry.state == ProducerState::kSevered ||
                      entry.state == ProducerState::kSealed;
  deadlines_.arm(entry.spec.id, leased ? std::min(entry.lease_end, entry.state_end) : entry.state_end);
}

wire::Address ProducerCore::address_of(const Entry& entry) const {
  return {entry.attempt->handoff, entry.attempt->number, entry.generation};
}

const Peer* ProducerCore::peer(SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

Instant ProducerCore::lease_until(const Entry& entry, Instant now) const {
  return std::max(entry.lease_end, std::min(now + options_.timings.lease, entry.spec.deadline));
}

std::optional<ProducerState> ProducerCore::state_of(const Id128& reservation) const {
  const auto found = reservations_.find(reservation);
  return found == reservations_.end() ? std::nullopt : std::optional(found->second.state);
}

Status ProducerCore::check() const {
  const auto wrong = [](std::string detail) {
    return Error{Code::kInternal, "producer: " + std::move(detail)};
  };
  std::size_t holders = 0;
  for (const auto& [id, entry] : reservations_) {
    const bool is_held = entry.attempt.has_value() || entry.promised.has_value();
    holders += is_held ? 1 : 0;
    // In the order of ProducerDuty.
    const bool has[kProducerDuties] = {entry.grant != 0, is_held,
                                       entry.attempt && !entry.attempt->sending.empty(),
                                       entry.attempt && entry.attempt->seal, deadlines_.is_armed(id)};
    for (std::size_t i = 0; i < kProducerDuties; ++i) {
      const auto duty = static_cast<ProducerDuty>(i);
      const Holds due = holds(entry.state, duty);
      if (due != Holds::kMay && has[i] != (due == Holds::kYes)) {
        return wrong(fmt::format("reservation {} in state {} {} its {}", id.hex(), name(entry.state),
                                 has[i] ? "still has" : "lacks", name(duty)));
      }
    }
  }
  if (holders != handoffs_.size())
    return wrong(fmt::format("{} holders, {} handoffs", holders, handoffs_.size()));
  return ledger_->check();
}

}  // namespace isthmus::handoff
