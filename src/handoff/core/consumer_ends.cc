// SPDX-License-Identifier: Apache-2.0
// How the consumer's handoffs end: owned, or given up with memory free only when nothing can write it.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handoff/core/consumer.h"
#include "handoff/core/planted.h"

namespace isthmus::handoff {

void ConsumerCore::own(Entry& entry, Instant now, ConsumerActions& out) {
  const bool quiet = entry.unquiet.empty() || mutation(Mutation::kOwnWithOpenChannel);
  ISTHMUS_CHECK(entry.seal && quiet && !has_work_in_flight(entry) &&
                (entry.begin.is_direct || entry.placed_count == entry.plan->chunk_count));
  const bool confirmed = entry.state == ConsumerState::kConfirming;
  move(entry, ConsumerState::kOwned, confirmed ? "confirmed" : "verified", kFarFuture);
  const Ledger::Peak peak = std::exchange(entry.peak, {});
  ledger_->move(peak.destination, Category::kActive);
  ledger_->release(peak.staging);
  if (const GrantId retained = std::exchange(entry.retained, 0)) ledger_->join(peak.destination, retained);
  out.push_back(
      Own{entry.address.handoff, entry.address.attempt, entry.begin.tag, *entry.seal, peak.destination});
  out.push_back(ReleaseStaging{entry.address.handoff, entry.address.attempt});
  give_terminal(entry, Destination::kOwned, out);
  send_done(entry, now, out);
  serve_waiting(out);
}

// The lease backs it: a producer that never hears frees its pages when that ends.
void ConsumerCore::send_done(Entry& entry, Instant now, ConsumerActions& out) {
  if (entry.done_sent > options_.timings.done_resends_max) return close(entry, "released");
  ++entry.done_sent;
  send(entry, wire::Done{entry.address}, out);
  entry.resend_at = now + options_.timings.resend_interval;
  arm(entry);
}

void ConsumerCore::end(Entry& entry, TerminalKind kind, Status why, Tell tell, Instant now,
                       ConsumerActions& out) {
  if (entry.state >= ConsumerState::kOwned) return;
  const std::string detail = why.ok() ? "" : clip(why.error().detail);
  if (tell == Tell::kAbort) send(entry, wire::Abort{entry.address, why.code(), detail, entry.channels}, out);
  if (tell == Tell::kCancel) send(entry, wire::Cancel{entry.address, detail, entry.channels}, out);
  if (tell == Tell::kDone) send(entry, wire::Done{entry.address}, out);
  drop_early(entry);
  entry.end_kind = kind;
  entry.end_why = std::move(why);
  if (kind == TerminalKind::kExhausted)
    entry.retry_after = ledger_->retry_hint(now, options_.timings.capacity_max);
  if (mutation(Mutation::kReserveBeforeAdmission) && !entry.memory_reserved)
    ledger_->release(std::exchange(entry.peak.destination, 0));
  move(entry, ConsumerState::kQuiescing, "ended", now + options_.timings.quiesce_max);
  entry.resend_at = kFarFuture;
  arm(entry);
  settle(entry, out);
}

bool ConsumerCore::has_work_in_flight(const Entry& entry) const {
  return entry.verifying || std::ranges::any_of(entry.slots, [](const Slot& slot) {
           return slot.use == SlotUse::kLanding || slot.use == SlotUse::kPlacing;
         });
}

// Nothing may be freed before every channel is fenced or closed, and every placement and read-back has
// reported.
void ConsumerCore::settle(Entry& entry, ConsumerActions& out) {
  const bool quiet = !has_work_in_flight(entry) && entry.unquiet.empty();
  if (!quiet && !mutation(Mutation::kFailureBeforeQuiet)) return;
  if (entry.state == ConsumerState::kQuiescing) {
    const Destination destination = entry.memory_reserved ? Destination::kFreed : Destination::kNone;
    free_memory(entry, out);
    give_terminal(entry, destination, out);
    close(entry, "quiet");
    serve_waiting(out);
  } else if (entry.state == ConsumerState::kQuarantined) {
    --quarantined_;
    free_memory(entry, out);
    close(entry, "quiet");
    serve_waiting(out);
  }
}

void ConsumerCore::free_memory(Entry& entry, ConsumerActions& out) {
  ledger_->release(std::exchange(entry.retained, 0));
  if (!entry.memory_reserved) return;
  out.push_back(ReleaseStaging{entry.address.handoff, entry.address.attempt});
  out.push_back(ReleaseDestination{entry.address.handoff, entry.address.attempt});
  ledger_->release(entry.peak.destination);
  ledger_->release(entry.peak.staging);
  entry.peak = {};
  entry.memory_reserved = entry.memory_ready = false;
}

void ConsumerCore::give_terminal(Entry& entry, Destination destination, ConsumerActions& out) {
  const bool owned = destination == Destination::kOwned;
  out.push_back(ConsumerHandoffEnded{
      entry.address.handoff, entry.address.attempt, entry.begin.tag,
      owned ? TerminalKind::kOwned : entry.end_kind, owned ? ok_status() : entry.end_why, destination,
      entry.retry_after, owned || entry.end_kind == TerminalKind::kFinished ? entry.seal : std::nullopt});
}

void ConsumerCore::close(Entry& entry, std::string_view cause) {
  move(entry, ConsumerState::kClosed, cause, kFarFuture);
  const std::uint64_t sequence = entry.address.handoff.sequence;
  deadlines_.disarm(sequence);
  handoffs_.erase(sequence);  // `entry` is gone.
}

// First the channels are revoked, which works whatever the peer does. What is still placing or reading back
// by the next deadline may write at any time: the request ends, the memory waits for the report.
void ConsumerCore::on_quiesce_timeout(Entry& entry, Instant now, ConsumerActions& out) {
  if (!entry.revoked) {
    entry.revoked = true;
    entry.state_end = now + options_.timings.quiesce_max;
    arm(entry);
    const std::uint64_t sequence = entry.address.handoff.sequence;
    const std::vector<ChannelId> unquiet(entry.unquiet.begin(), entry.unquiet.end());
    for (const ChannelId& channel : unquiet) {
      out.push_back(RevokeChannel{channel});
      drop_channel(channel, now, out);
    }
    if (Entry* left = find(sequence)) settle(*left, out);
    return;
  }
  if (mutation(Mutation::kQuarantineFrees)) {
    free_memory(entry, out);
    give_terminal(entry, Destination::kFreed, out);
    return close(entry, "quiet");
  }
  move(entry, ConsumerState::kQuarantined, "not quiet in time", kFarFuture);
  ++quarantined_;
  ledger_->move(entry.peak.destination, Category::kQuarantine);
  give_terminal(entry, Destination::kQuarantined, out);
  arm(entry);
}

}  // namespace isthmus::handoff
