// SPDX-License-Identifier: Apache-2.0
// How the producer's attempts and reservations end: one terminal event each, pages free when the senders are
// quiet.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handoff/core/planted.h"
#include "handoff/core/producer.h"

namespace isthmus::handoff {

template <typename Id>
void ProducerCore::Tombstones<Id>::put(const Id& id, Ended ended, std::uint32_t limit) {
  const auto known = by_id.find(id);
  if (known != by_id.end()) {  // The latest attempt's end is the one to remember, whichever ended last.
    if (ended.attempt >= known->second.attempt) known->second = std::move(ended);
    return;
  }
  by_id.emplace(id, std::move(ended));
  order.push_back(id);
  while (order.size() > limit) {
    by_id.erase(order.front());
    order.pop_front();
  }
}

template <typename Id>
const ProducerCore::Ended* ProducerCore::Tombstones<Id>::find(const Id& id, Instant now) const {
  const auto found = by_id.find(id);
  return found == by_id.end() || found->second.until <= now ? nullptr : &found->second;
}

template struct ProducerCore::Tombstones<Id128>;
template struct ProducerCore::Tombstones<wire::HandoffId>;

ProducerCore::Ended ProducerCore::tombstone(const End& end, std::uint32_t attempt, Instant now) const {
  return {attempt,
          end.kind,
          end.why.ok() ? Code::kOk : end.why.code(),
          end.why.ok() ? "" : clip(end.why.error().detail),
          wire::TicketFault::kNone,
          {},
          now + options_.timings.tombstone};
}

// The holder's attempt is over; the reservation only if `end` says so. Pages stay until the senders are
// quiet.
void ProducerCore::end_attempt(Entry& entry, End end, Instant now, ProducerActions& out) {
  ISTHMUS_CHECK(entry.attempt);
  Attempt& attempt = *entry.attempt;
  if (end.tell_peer && peer(attempt.session) != nullptr) {
    const std::string detail = end.why.ok() ? "" : clip(end.why.error().detail);
    if (end.kind == TerminalKind::kCancelled) {
      out.push_back(SendFrame{attempt.session, wire::Cancel{address_of(entry), detail, {}}});
    } else {
      const Code code = end.why.ok() ? Code::kAborted : end.why.code();
      out.push_back(SendFrame{attempt.session, wire::Abort{address_of(entry), code, detail, {}}});
    }
  }
  attempt.end = end;
  move(entry, ProducerState::kQuiescing, end.cause);
  entry.state_end = now + options_.timings.quiesce_max;
  arm(entry);
  settle(entry, now, out);
}

void ProducerCore::end_promise(Entry& entry, End end, Instant now, ProducerActions& out) {
  const PromisedOpen promised = *std::exchange(entry.promised, std::nullopt);
  const wire::Address& address = promised.open.address;
  if (end.tell_peer && peer(promised.session) != nullptr) {
    wire::Reject reject{address,
                        end.why.ok() ? Code::kAborted : end.why.code(),
                        end.why.ok() ? "" : clip(end.why.error().detail),
                        {},
                        {}};
    out.push_back(SendFrame{promised.session, std::move(reject)});
  }
  out.push_back(ProducerHandoffEnded{address.handoff, address.attempt, entry.spec.id, end.kind, end.why, {}});
  ended_handoffs_.put(address.handoff, tombstone(end, address.attempt, now), options_.limits.tombstones_max);
  if (end.ends_reservation) {
    ended_reservations_.put(entry.spec.id, tombstone(end, 0, now), options_.limits.tombstones_max);
  }
  handoffs_.erase(address.handoff);
  move(entry, ProducerState::kReleased, "ended");
  deadlines_.disarm(entry.spec.id);
  reservations_.erase(entry.spec.id);  // `entry` is gone.
}

void ProducerCore::end_reservation(Entry& entry, End end, Instant now, ProducerActions& out) {
  switch (entry.state) {
    case ProducerState::kPromised:
      return end_promise(entry, std::move(end), now, out);
    case ProducerState::kPinned:
      end_reservation_event(entry, end, now, out);
      return release(entry, "ended", out);
    case ProducerState::kOpened:
    case ProducerState::kGrowing:
    case ProducerState::kSevered:
    case ProducerState::kSealed:
      return end_attempt(entry, std::move(end), now, out);
    case ProducerState::kQuiescing:
      // The attempt ends as it began to; only the reservation's fate changes.
      if (!entry.attempt->end.ends_reservation) entry.attempt->reservation_end = std::move(end);
      return;
    case ProducerState::kQuarantined:
    case ProducerState::kReleased:
      return;
  }
}

void ProducerCore::end_reservation_event(Entry& entry, const End& end, Instant now, ProducerActions& out) {
  out.push_back(ReservationEnded{entry.spec.id, end.kind, end.why});
  ended_reservations_.put(entry.spec.id, tombstone(end, 0, now), options_.limits.tombstones_max);
}

// Nothing of ours reads the pages any more.
void ProducerCore::release(Entry& entry, std::string_view cause, ProducerActions& out) {
  out.push_back(ReleasePins{entry.spec.id});
  ledger_->release(entry.grant);
  if (entry.attempt) handoffs_.erase(entry.attempt->handoff);
  move(entry, ProducerState::kReleased, cause);
  deadlines_.disarm(entry.spec.id);
  reservations_.erase(entry.spec.id);  // `entry` is gone.
}

// The slot is empty again: the one terminal event of this attempt.
std::optional<ProducerCore::End> ProducerCore::close_attempt(Entry& entry, Instant now,
                                                             ProducerActions& out) {
  Attempt& attempt = *entry.attempt;
  const End& end = attempt.end;
  ledger_->release(std::exchange(attempt.staging, 0));
  out.push_back(ProducerHandoffEnded{attempt.handoff, attempt.number, entry.spec.id, end.kind, end.why, {}});
  ended_handoffs_.put(attempt.handoff, tombstone(end, attempt.number, now), options_.limits.tombstones_max);
  const SessionId session = session_to(attempt.handoff.consumer, attempt.session);
  if (attempt.reply && session != 0) {
    out.push_back(SendFrame{session, wire::Released{attempt.end_address, *attempt.reply}});
  }
  std::optional<End> reservation_end = end.ends_reservation ? std::optional(end) : attempt.reservation_end;
  if (!reservation_end && now >= entry.lease_end) {
    reservation_end =
        End{TerminalKind::kExpired, Error{Code::kAborted, "the lease ran out"}, true, false, "quiet"};
  }
  return reservation_end;
}

void ProducerCore::settle(Entry& entry, Instant now, ProducerActions& out) {
  if (!entry.attempt || entry.state == ProducerState::kOpened || entry.state == ProducerState::kGrowing ||
      entry.state == ProducerState::kSevered)
    return;
  maybe_fence(entry, out);
  const bool skips = mutation(entry.attempt->end.cause == "done" ? Mutation::kDoneSkipsQuiesce
                                                                 : Mutation::kAbortSkipsQuiesce);
  if (!entry.attempt->sending.empty() && !skips) return;
  if (entry.state == ProducerState::kQuarantined) return release(entry, "quiet", out);
  if (entry.state != ProducerState::kQuiescing) return;
  const std::optional<End> reservation_end = close_attempt(entry, now, out);
  if (reservation_end) {
    end_reservation_event(entry, *reservation_end, now, out);
    return release(entry, "quiet", out);
  }
  handoffs_.erase(entry.attempt->handoff);
  entry.attempt.reset();
  move(entry, ProducerState::kPinned, "quiet, reservation holds");
  entry.state_end = kFarFuture;
  arm(entry);
}

// First the channels are revoked, which makes sends quiet whatever the peer does. A pack that still hasn't
// reported by the next deadline may read the pages at any time: they are lost to it until it does.
void ProducerCore::on_quiesce_timeout(Entry& entry, Instant now, ProducerActions& out) {
  Attempt& attempt = *entry.attempt;
  if (!attempt.revoked) {
    attempt.revoked = true;
    std::set<ChannelId> busy;
    for (const auto& [chunk, sending] : attempt.sending) busy.insert(sending.channel);
    for (const ChannelId& channel : busy) out.push_back(RevokeChannel{channel});
    std::erase_if(attempt.sending, [](const auto& each) { return each.second.packed; });
    entry.state_end = now + options_.timings.quiesce_max;
    arm(entry);
    return settle(entry, now, out);
  }
  const std::optional<End> reservation_end = close_attempt(entry, now, out);
  const End stuck{TerminalKind::kFailed,
                  Error{Code::kInternal, "a chunk's packing never reported back"},
                  true,
                  false,
                  {}};
  end_reservation_event(entry, reservation_end.value_or(stuck), now, out);
  ledger_->move(entry.grant, Category::kQuarantine);
  move(entry, ProducerState::kQuarantined, "not quiet in time");
  entry.state_end = kFarFuture;
  arm(entry);
  attempt.channels.clear();
}

void ProducerCore::maybe_fence(Entry& entry, ProducerActions& out) {
  Attempt& attempt = *entry.attempt;
  if (attempt.fenced ||
      std::ranges::any_of(attempt.sending, [](const auto& each) { return !each.second.packed; }))
    return;
  attempt.fenced = true;
  // The consumer may have gone on to an attempt that was never opened here.
  const std::uint32_t number = std::max(attempt.number, attempt.end_address.attempt);
  for (const ChannelId& channel : attempt.channels) {
    if (channels_.contains(channel))
      out.push_back(SendFence{channel, wire::fence_token(attempt.handoff, number)});
  }
}

}  // namespace isthmus::handoff
