// SPDX-License-Identifier: Apache-2.0
// What stands between a verified state and owning it: the producer's word on pages that were read directly,
// and the word of a group of ranks.
#include "handoff/core/consumer.h"
#include "handoff/core/planted.h"

namespace isthmus::handoff {

void ConsumerCore::confirm(Entry& entry, Instant now, ConsumerActions& out) {
  move(entry, ConsumerState::kConfirming, "verified", now + options_.timings.confirm_max);
  ask_again(entry, now, out);
}

// Both questions are repeated until they are answered. VALID? only now: an answer to one asked before the
// last read would say nothing about it.
void ConsumerCore::ask_again(Entry& entry, Instant now, ConsumerActions& out) {
  if (entry.begin.is_member && !entry.is_decided)
    out.push_back(Verified{entry.address.handoff, entry.address.attempt, entry.begin.tag, *entry.seal});
  if (entry.begin.is_direct && !entry.is_valid) {
    wire::Valid valid{entry.address, ++entry.valid_number};
    valid.mac = wire::valid_mac(entry.session_key, valid);
    send(entry, valid, out);
  }
  entry.resend_at = now + options_.timings.resend_interval;
  arm(entry);
}

void ConsumerCore::on_validity(Entry& entry, const wire::Validity& validity, Instant now,
                               ConsumerActions& out) {
  const bool asked = validity.number > 0 && validity.number <= entry.valid_number &&
                     validity.address.generation == entry.address.generation;
  if (entry.state != ConsumerState::kConfirming || !entry.begin.is_direct || !asked || entry.is_valid) return;
  if (!equal_constant_time(wire::validity_mac(entry.session_key, validity), validity.mac)) return;
  if (!validity.is_valid) {
    const Error why{Code::kAborted, "the producer's pages were revoked while they were read"};
    return end(entry, TerminalKind::kExpired, why, Tell::kAbort, now, out);
  }
  entry.is_valid = true;
  maybe_own(entry, now, out);
}

void ConsumerCore::maybe_own(Entry& entry, Instant now, ConsumerActions& out) {
  if (entry.state != ConsumerState::kConfirming) return;
  if (entry.begin.is_direct && !entry.is_valid) return;
  if (entry.begin.is_member && !entry.is_decided) return;
  own(entry, now, out);
}

void ConsumerCore::decide(const wire::HandoffId& handoff, Instant now, ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kDecided);
  Entry* entry = find(handoff);
  if (entry == nullptr || entry->state != ConsumerState::kConfirming || !entry->begin.is_member) return;
  entry->is_decided = true;
  maybe_own(*entry, now, out);
}

void ConsumerCore::abandon(const wire::HandoffId& handoff, Error why, Instant now, ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kAbandoned);
  Entry* entry = find(handoff);
  if (entry == nullptr || entry->state >= ConsumerState::kOwned) return;
  const TerminalKind kind = terminal_kind(why.code);
  end(*entry, kind, std::move(why), Tell::kAbort, now, out);
}

}  // namespace isthmus::handoff
