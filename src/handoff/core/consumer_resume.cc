// SPDX-License-Identifier: Apache-2.0
// A lost connection costs an attempt, not what has come: chunks that are placed stay, and the next attempt
// asks for the rest.
#include <fmt/format.h>

#include <algorithm>

#include "handoff/core/consumer.h"
#include "handoff/core/planted.h"

namespace isthmus::handoff {

// Credit dies with the attempt; what lands or is being placed may finish first, so that what is missing is
// exact.
void ConsumerCore::lose(Entry& entry, Error why, Instant now, ConsumerActions& out) {
  if (entry.resumes >= options_.limits.resumes_max || entry.address.attempt >= wire::kAttemptMax) {
    return end(entry, TerminalKind::kPeerLost, std::move(why), Tell::kAbort, now, out);
  }
  ++entry.resumes;
  for (Slot& slot : entry.slots) {
    if (slot.use == SlotUse::kGranted) slot.use = SlotUse::kFree;
  }
  drop_early(entry);
  entry.seal.reset();
  entry.busy = entry.session_asked = false;
  entry.lost = std::move(why);
  entry.resend_at = entry.renew_at = entry.lease_end = kFarFuture;
  move(entry, ConsumerState::kResuming, "lost", now + options_.timings.resume_max);
  arm(entry);
  maybe_resume(entry, now, out);
}

SessionId ConsumerCore::session_with_channels(const Entry& entry) const {
  const auto has_channel = [&](SessionId session) {
    const auto first = channels_.lower_bound({session, 0});
    return first != channels_.end() && first->session == session;
  };
  if (sessions_.contains(entry.begin.session) && has_channel(entry.begin.session)) return entry.begin.session;
  const auto other = std::ranges::find_if(sessions_, [&](const auto& each) {
    return each.second.incarnation == entry.producer && has_channel(each.first);
  });
  return other == sessions_.end() ? 0 : other->first;
}

void ConsumerCore::maybe_resume(Entry& entry, Instant now, ConsumerActions& out) {
  const SessionId session = session_with_channels(entry);
  if (session == 0 && !std::exchange(entry.session_asked, true))
    out.push_back(NeedSession{entry.address.handoff, entry.begin.tag});
  const bool memory_asked = entry.memory_reserved && !entry.memory_ready;
  if (session == 0 || memory_asked || has_work_in_flight(entry)) return;
  entry.begin.session = session;
  entry.session_key = sessions_.at(session).session_key;
  ++entry.address.attempt;
  entry.opened_at = now;
  move(entry, ConsumerState::kOpening, "resumed", now + options_.timings.open_max);
  send_open(entry, now, out);
  arm(entry);
}

void ConsumerCore::session_found(const wire::HandoffId& handoff, SessionId session, Instant now,
                                 ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kSessionFound);
  Entry* entry = find(handoff);
  if (entry == nullptr || entry->state != ConsumerState::kResuming) return;
  const auto peer = sessions_.find(session);
  if (peer != sessions_.end() && peer->second.incarnation != entry->producer) {
    const Error why{Code::kUnavailable, "the producer has restarted"};
    return end(*entry, TerminalKind::kPeerLost, why, Tell::kNothing, now, out);
  }
  entry->session_asked = false;  // It may have been lost again meanwhile.
  maybe_resume(*entry, now, out);
}

void ConsumerCore::session_refused(const wire::HandoffId& handoff, Error why, Instant now,
                                   ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kSessionRefused);
  Entry* entry = find(handoff);
  if (entry == nullptr || entry->state != ConsumerState::kResuming) return;
  if (session_with_channels(*entry) != 0) return maybe_resume(*entry, now, out);
  end(*entry, TerminalKind::kPeerLost, std::move(why), Tell::kNothing, now, out);
}

// What was placed is another generation's, or the producer can't go on from there.
void ConsumerCore::void_chunks(Entry& entry, ConsumerActions& out) {
  entry.placed.assign(entry.plan->chunk_count, false);
  entry.placed_count = 0;
  out.push_back(VoidChunks{entry.address.handoff, entry.address.attempt, entry.address.generation});
}

std::vector<wire::ChunkRange> ConsumerCore::missing_of(const Entry& entry) {
  std::vector<wire::ChunkRange> missing;
  for (std::uint32_t i = 0; i < entry.placed.size(); ++i) {
    if (entry.placed[i]) continue;
    if (missing.empty() || missing.back().end != i) missing.push_back({i, i});
    missing.back().end = i + 1;
  }
  return missing;
}

}  // namespace isthmus::handoff
