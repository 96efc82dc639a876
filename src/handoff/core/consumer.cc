// SPDX-License-Identifier: Apache-2.0
// Opening, sessions, memory, time. Frames and chunks are in consumer_frames.cc, ends in consumer_ends.cc.
#include "handoff/core/consumer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handoff/core/planted.h"

namespace isthmus::handoff {
namespace {

std::string summary(const kv::Verdict& verdict) {
  std::string text;
  for (const kv::Reason& reason : verdict.rejects) {
    text += fmt::format("{}{}: '{}' there, '{}' here", text.empty() ? "" : "; ", reason.path, reason.source,
                        reason.target);
  }
  return clip(text);
}

}  // namespace

ConsumerCore::ConsumerCore(ConsumerOptions options, Ledger* ledger)
    : options_(std::move(options)), ledger_(ledger) {
  ISTHMUS_CHECK(ledger_ != nullptr);
  const Timings& timings = options_.timings;  // An interval of nothing would keep tick() from ever returning.
  for (const Duration each :
       {timings.renew_interval, timings.resend_interval, timings.busy_retry, timings.quiesce_max}) {
    ISTHMUS_CHECK(each > Duration::zero());
  }
  ISTHMUS_CHECK(options_.slots > 0 && options_.slots <= options_.limits.slots_max);
}

Result<ConsumerCore::Entry> ConsumerCore::check_begin(Begin begin, Instant now) {
  if (handoffs_.size() >= options_.limits.handoffs_max) {
    return Error{Code::kExhausted, fmt::format("{} handoffs are live, the most allowed", handoffs_.size())};
  }
  if (quarantined_ >= options_.limits.quarantined_max) {
    return Error{Code::kExhausted,
                 fmt::format("{} destinations are quarantined, the most allowed", quarantined_)};
  }
  if (begin.deadline <= now) return Error{Code::kDeadlineExceeded, "the request's deadline has passed"};
  const auto session = sessions_.find(begin.session);
  if (session == sessions_.end())
    return Error{Code::kUnavailable, fmt::format("session {} isn't up", begin.session)};
  const auto channel = channels_.lower_bound({begin.session, 0});
  if (channel == channels_.end() || channel->session != begin.session) {
    return Error{Code::kUnavailable, fmt::format("session {} has no data channel", begin.session)};
  }
  const Peer& peer = session->second;
  ISTHMUS_TRY(const wire::SignedTicket ticket, wire::parse_ticket(begin.ticket));
  const wire::TicketFault fault =
      wire::verify(ticket, options_.fleet_key, {peer.name, peer.incarnation, std::nullopt});
  if (fault != wire::TicketFault::kNone)
    return Error{Code::kAborted, fmt::format("ticket refused: {}", wire::name(fault))};
  const kv::TokenRange range = ticket.ticket.tokens;
  if (begin.wanted.begin >= begin.wanted.end || !range.contains(begin.wanted) ||
      begin.wanted.end != range.end) {
    return Error{
        Code::kInvalidArgument,
        fmt::format("tokens [{}, {}) are wanted, the ticket is for [{}, {}) and must be read to its end",
                    begin.wanted.begin, begin.wanted.end, range.begin, range.end)};
  }
  const kv::Descriptor* target = options_.descriptors.find(begin.target);
  if (target == nullptr) {
    return Error{Code::kInvalidArgument,
                 fmt::format("descriptor {} isn't one of this agent's", begin.target.hex())};
  }
  const kv::Descriptor* source = peer.descriptors.find(ticket.ticket.descriptor);
  if (source == nullptr) {
    return Error{Code::kIncompatible, fmt::format("'{}' hasn't told of the ticket's descriptor {}", peer.name,
                                                  ticket.ticket.descriptor.hex())};
  }
  Entry entry;
  entry.verdict = verdicts_.of({*source, ticket.ticket.descriptor}, {*target, begin.target}, begin.policy);
  if (entry.verdict.kind == kv::VerdictKind::kReject)
    return Error{Code::kIncompatible, summary(entry.verdict)};
  entry.nonce = ticket.ticket.nonce;
  entry.producer = peer.incarnation;
  entry.session_key = peer.session_key;
  entry.source = ticket.ticket.descriptor;
  entry.begin = std::move(begin);
  return entry;
}

Result<wire::HandoffId> ConsumerCore::begin(Begin begin, Instant now, ConsumerActions& out) {
  ISTHMUS_TRY(Entry checked, check_begin(std::move(begin), now));
  if (!(checked.begin.retained == Amount{})) {
    ISTHMUS_TRY(checked.retained,
                ledger_->grant(Category::kRetained, checked.begin.retained, checked.begin.deadline));
  }
  const std::uint64_t sequence = next_sequence_++;
  Entry& entry = handoffs_.emplace(sequence, std::move(checked)).first->second;
  entry.address = {{options_.incarnation, sequence}, 1, 0};
  entry.opened_at = now;
  entry.state_end = now + options_.timings.open_max;
  if (mutation(Mutation::kReserveBeforeAdmission)) {
    const Result<GrantId> early = ledger_->grant(Category::kIncoming, entry.begin.destination);
    if (early.ok()) entry.peak.destination = *early;
  }
  send_open(entry, now, out);
  arm(entry);
  return entry.address.handoff;
}

void ConsumerCore::send_open(Entry& entry, Instant now, ConsumerActions& out) {
  if (entry.busy) {  // The lease is to count from this OPEN, so that an answer to an older one must not pass
                     // for its own.
    entry.busy = false;
    entry.address.attempt = std::min(entry.address.attempt + 1, wire::kAttemptMax);
    entry.opened_at = now;
    drop_early(entry);  // Of the past attempt.
  }
  wire::Open open;
  open.address = entry.address;
  open.ticket = entry.begin.ticket;
  open.proof = wire::open_proof(entry.session_key, entry.nonce, entry.address.handoff, entry.address.attempt);
  open.target = entry.begin.target;
  open.wanted = entry.begin.wanted;
  open.exactness = entry.begin.policy.exactness;
  open.roundings_max = entry.begin.policy.roundings_max;
  open.deadline_ms = wire::to_ms(entry.begin.deadline - now);
  open.direct = entry.begin.is_direct;
  open.target_rank = options_.rank;
  open.resumes = entry.placed_count > 0;
  if (open.resumes) open.missing = missing_of(entry);
  // Memory that was reserved without room for a codec stays as it is.
  const bool has_room = !entry.memory_reserved || entry.has_codec_memory;
  const auto session = sessions_.find(entry.begin.session);
  entry.offers_codec =
      has_room && !entry.begin.is_direct && session != sessions_.end() && !session->second.is_same_host;
  if (entry.offers_codec) open.codecs = {wire::Codec::kZstdPlanes};
  allow_early(entry, open);
  entry.resend_at = now + options_.timings.resend_interval;
  send(entry, std::move(open), out);
}

void ConsumerCore::cancel(const wire::HandoffId& handoff, Error why, Instant now, ConsumerActions& out) {
  Entry* entry = find(handoff);
  meet(entry, ConsumerEvent::kWithdrawn);
  if (entry == nullptr || entry->state >= ConsumerState::kOwned) return;
  why.code = Code::kCancelled;
  end(*entry, TerminalKind::kCancelled, std::move(why), Tell::kCancel, now, out);
}

// --- Sessions and channels

Status ConsumerCore::session_up(SessionId session, Peer peer, Instant now, ConsumerActions& out) {
  const auto life = lives_.find(peer.name);
  if (sessions_.size() >= options_.limits.sessions_max ||
      (life == lives_.end() && lives_.size() >= 4 * std::size_t{options_.limits.sessions_max})) {
    return Error{Code::kExhausted, fmt::format("{} sessions are open, the most allowed", sessions_.size())};
  }
  std::vector<SessionId> gone;
  if (life != lives_.end() && life->second != peer.incarnation) {
    for (const auto& [id, old] : sessions_) {
      if (old.incarnation == life->second) gone.push_back(id);
    }
  }
  lives_[peer.name] = peer.incarnation;
  for (const SessionId old : gone) session_down(old, now, out);
  sessions_.emplace(session, std::move(peer));
  return ok_status();
}

void ConsumerCore::session_down(SessionId session, Instant now, ConsumerActions& out) {
  if (sessions_.erase(session) == 0) return;
  std::vector<ChannelId> gone(channels_.lower_bound({session, 0}),
                              channels_.upper_bound({session, 0xffffffffu}));
  for (const ChannelId& channel : gone) {
    out.push_back(RevokeChannel{channel});
    drop_channel(channel, now, out);
  }
  std::vector<std::uint64_t> held;
  for (const auto& [sequence, entry] : handoffs_) {
    if (entry.begin.session == session) held.push_back(sequence);
  }
  for (const std::uint64_t sequence : held) {
    if (Entry* entry = find(sequence)) lose_session(*entry, now, out);
  }
}

// SEAL can't be taken back: with all chunks here the state can still be owned.
void ConsumerCore::lose_session(Entry& entry, Instant now, ConsumerActions& out) {
  meet(&entry, ConsumerEvent::kSessionLost);
  if (entry.state >= ConsumerState::kVerifying) return;
  if (entry.state == ConsumerState::kReceiving && entry.seal) return;
  const Error why{Code::kUnavailable,
                  fmt::format("the session with the producer is down in state {}", name(entry.state))};
  if (entry.state == ConsumerState::kResuming) return maybe_resume(entry, now, out);
  lose(entry, why, now, out);
}

Status ConsumerCore::channel_up(ChannelId channel) {
  if (!sessions_.contains(channel.session))
    return Error{Code::kUnavailable, fmt::format("session {} isn't up", channel.session)};
  const auto count = std::distance(channels_.lower_bound({channel.session, 0}),
                                   channels_.upper_bound({channel.session, 0xffffffffu}));
  if (static_cast<std::size_t>(count) >= wire::kChannelsMax) {
    return Error{Code::kExhausted,
                 fmt::format("session {} has {} data channels, the most allowed", channel.session, count)};
  }
  channels_.insert(channel);
  return ok_status();
}

void ConsumerCore::channel_down(ChannelId channel, Status why, Instant now, ConsumerActions& out) {
  (void)why;  // The shell logs it; here a lost channel is a lost channel.
  drop_channel(channel, now, out);
}

// The transport touches no memory for this channel any more. Chunks that were on it are lost.
void ConsumerCore::drop_channel(ChannelId channel, Instant now, ConsumerActions& out) {
  channels_.erase(channel);
  const auto landing = landing_.find(channel);
  if (landing != landing_.end()) {
    Entry* entry = landing->second.place ? find(landing->second.sequence) : nullptr;
    if (entry != nullptr) entry->slots[landing->second.slot].use = SlotUse::kFree;
    landing_.erase(landing);
  }
  std::vector<std::uint64_t> users;
  for (const auto& [sequence, entry] : handoffs_) {
    if (entry.unquiet.contains(channel)) users.push_back(sequence);
  }
  for (const std::uint64_t sequence : users) {
    Entry& entry = *find(sequence);
    meet(&entry, ConsumerEvent::kChannelLost);
    entry.unquiet.erase(channel);
    const auto in_hand = static_cast<std::uint32_t>(std::ranges::count_if(entry.slots, [&](const Slot& slot) {
      return slot.generation == entry.address.generation &&
             (slot.use == SlotUse::kLanding || slot.use == SlotUse::kPlacing);
    }));
    if (entry.state == ConsumerState::kResuming) {
      maybe_resume(entry, now, out);
    } else if (entry.state != ConsumerState::kReceiving) {
      settle(entry, out);
    } else if (entry.placed_count + in_hand < entry.plan->chunk_count) {
      const std::string detail = fmt::format("data channel {} is down with {} of {} chunks here",
                                             channel.number, entry.placed_count, entry.plan->chunk_count);
      lose(entry, Error{Code::kUnavailable, detail}, now, out);
    } else {
      maybe_verify(entry, now, out);
    }
  }
}

// --- Memory

void ConsumerCore::plan_ready(const wire::HandoffId& handoff, std::uint32_t attempt, PlanFacts plan,
                              Instant now, ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kPlanReady);
  Entry* entry = find(handoff, attempt);
  if (entry == nullptr || entry->state != ConsumerState::kPlanning) return;
  entry->plan = std::move(plan);
  agree(*entry, now, out);
}

// Both plans are there: are they one?
void ConsumerCore::agree(Entry& entry, Instant now, ConsumerActions& out) {
  const wire::Plan& offered = *entry.offered;
  const PlanFacts& plan = *entry.plan;
  if (plan.digest != offered.plan || plan.chunk_count != offered.chunk_count ||
      plan.slot_bytes != offered.slot_bytes || plan.total_bytes != offered.total_bytes) {
    const std::string detail =
        fmt::format("the producer's plan {} ({} chunks, {} bytes) isn't the own {} ({} chunks, {} bytes)",
                    offered.plan.hex(), offered.chunk_count, offered.total_bytes, plan.digest.hex(),
                    plan.chunk_count, plan.total_bytes);
    return end(entry, TerminalKind::kRejected, Error{Code::kIncompatible, detail}, Tell::kAbort, now, out);
  }
  entry.wanted = offered.resumed ? ChunkSet(missing_of(entry)) : ChunkSet::all(plan.chunk_count);
  const std::uint64_t staging = plan.slot_bytes + codec_staging(offered.codec, plan.slot_bytes);
  const Capacity& capacity = ledger_->capacity();
  move(entry, ConsumerState::kReserving, "plans agree", now + options_.timings.capacity_max);
  if (entry.memory_ready) return start_receiving(entry, now, out);
  if (entry.begin.destination.bytes > capacity.kv.bytes || staging > capacity.staging_bytes ||
      waiting_.size() >= options_.limits.admission_queue_max) {
    const std::string detail = fmt::format(
        "{} KV bytes and {} staging bytes are wanted of {} and {} in all; {} handoffs wait",
        entry.begin.destination.bytes, staging, capacity.kv.bytes, capacity.staging_bytes, waiting_.size());
    return end(entry, TerminalKind::kExhausted, Error{Code::kExhausted, detail}, Tell::kAbort, now, out);
  }
  waiting_.push_back(entry.address.handoff.sequence);
  serve_waiting(out);
  // Who waits holds nothing that others wait for.
  if (!entry.memory_reserved && entry.retained != 0) {
    const Error why{Code::kExhausted, "no memory beside what is retained of this handoff's state"};
    return end(entry, TerminalKind::kExhausted, why, Tell::kAbort, now, out);
  }
  if (!entry.memory_reserved) entry.resend_at = now + options_.timings.busy_retry;
  arm(entry);
}

void ConsumerCore::plan_failed(const wire::HandoffId& handoff, std::uint32_t attempt, Error why, Instant now,
                               ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kPlanFailed);
  Entry* entry = find(handoff, attempt);
  if (entry == nullptr || entry->state != ConsumerState::kPlanning) return;
  const TerminalKind kind = terminal_kind(why.code);
  end(*entry, kind, std::move(why), Tell::kAbort, now, out);
}

// Destination and staging together, or nothing: half of them would be a wait while holding.
bool ConsumerCore::try_reserve(Entry& entry, ConsumerActions& out) {
  // A direct read lands in the destination itself.
  const std::uint64_t slot_bytes =
      entry.begin.is_direct ? 0 : std::max<std::uint64_t>(entry.plan->slot_bytes, 1);
  const std::uint64_t codec_bytes = codec_staging(entry.offered->codec, slot_bytes);
  const std::uint64_t free = ledger_->free_staging();
  const std::uint64_t wanted = std::min(options_.slots, entry.plan->chunk_count);
  // What comes early has a slot for each chunk.
  const auto slots = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>((free - std::min(free, codec_bytes)) / std::max<std::uint64_t>(slot_bytes, 1),
                                entry.early ? wanted : 1, wanted));
  if (mutation(Mutation::kReserveBeforeAdmission)) ledger_->release(std::exchange(entry.peak.destination, 0));
  const Result<Ledger::Peak> peak =
      ledger_->grant_peak(entry.begin.destination, slots * slot_bytes + codec_bytes, entry.begin.deadline);
  if (!peak.ok()) return false;
  entry.peak = *peak;
  entry.slots.resize(slots);
  entry.memory_reserved = true;
  entry.has_codec_memory = codec_bytes > 0;
  entry.resend_at = kFarFuture;
  out.push_back(ReserveCapacity{entry.address.handoff, entry.address.attempt, entry.begin.tag,
                                entry.begin.destination, slots, slot_bytes, codec_bytes});
  return true;
}

void ConsumerCore::serve_waiting(ConsumerActions& out) {
  while (!waiting_.empty()) {
    Entry* entry = find(waiting_.front());
    const bool waits =
        entry != nullptr && entry->state == ConsumerState::kReserving && !entry->memory_reserved;
    if (waits && !try_reserve(*entry, out)) return;
    if (waits) arm(*entry);
    waiting_.pop_front();
  }
}

void ConsumerCore::capacity_ready(const wire::HandoffId& handoff, std::uint32_t attempt, Instant now,
                                  ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kMemoryReady);
  Entry* entry = find(handoff, attempt);
  const bool waits = entry != nullptr && entry->memory_reserved && !entry->memory_ready &&
                     (entry->state == ConsumerState::kReserving || entry->state == ConsumerState::kResuming);
  if (!waits) return;
  entry->memory_ready = true;
  if (entry->state == ConsumerState::kResuming) return maybe_resume(*entry, now, out);
  start_receiving(*entry, now, out);
}

void ConsumerCore::capacity_refused(const wire::HandoffId& handoff, std::uint32_t attempt, Error why,
                                    Instant now, ConsumerActions& out) {
  meet(find(handoff), ConsumerEvent::kMemoryRefused);
  Entry* entry = find(handoff, attempt);
  const bool waits = entry != nullptr && entry->memory_reserved && !entry->memory_ready &&
                     (entry->state == ConsumerState::kReserving || entry->state == ConsumerState::kResuming);
  if (!waits) return;
  const TerminalKind kind = terminal_kind(why.code);
  end(*entry, kind, std::move(why), Tell::kAbort, now, out);
}

// --- Time

void ConsumerCore::tick(Instant now, ConsumerActions& out) {
  while (const std::optional<std::uint64_t> due = deadlines_.pop_due(now)) {
    if (Entry* entry = find(*due)) on_due(*entry, now, out);
  }
  for (auto& [session, renew] : renewals_) {
    for (std::size_t at = 0; at < renew.items.size(); at += wire::kRenewalsMax) {
      const std::size_t end = std::min(renew.items.size(), at + wire::kRenewalsMax);
      wire::Renew part;
      part.items.assign(renew.items.begin() + static_cast<std::ptrdiff_t>(at),
                        renew.items.begin() + static_cast<std::ptrdiff_t>(end));
      out.push_back(SendFrame{session, std::move(part)});
    }
  }
  renewals_.clear();
}

bool ConsumerCore::end_if_late(Entry& entry, Instant now, ConsumerActions& out) {
  const auto late = [&](std::string_view what) {
    return fmt::format("{} in state {}", what, name(entry.state));
  };
  const bool leased = entry.state == ConsumerState::kPlanning || entry.state == ConsumerState::kReserving ||
                      (entry.state == ConsumerState::kReceiving && !entry.seal);
  if (now >= entry.begin.deadline) {
    end(entry, TerminalKind::kTimedOut, Error{Code::kDeadlineExceeded, late("the request's deadline passed")},
        Tell::kCancel, now, out);
  } else if (leased && now >= entry.lease_end && !mutation(Mutation::kLeaseIgnored)) {
    end(entry, TerminalKind::kExpired, Error{Code::kAborted, late("the lease ran out")}, Tell::kAbort, now,
        out);
  } else if (now >= entry.state_end && entry.state == ConsumerState::kResuming) {
    end(entry, TerminalKind::kPeerLost, entry.lost, Tell::kAbort, now, out);
  } else if (now >= entry.state_end) {
    const bool memory = entry.state == ConsumerState::kReserving;
    end(entry, memory ? TerminalKind::kExhausted : TerminalKind::kTimedOut,
        Error{memory ? Code::kExhausted : Code::kDeadlineExceeded, late("nothing came in time")},
        Tell::kAbort, now, out);
  } else {
    return false;
  }
  return true;
}

void ConsumerCore::on_due(Entry& entry, Instant now, ConsumerActions& out) {
  meet(&entry, ConsumerEvent::kDeadline);
  if (entry.state == ConsumerState::kQuiescing) return on_quiesce_timeout(entry, now, out);
  if (entry.state == ConsumerState::kOwned) return send_done(entry, now, out);
  if (end_if_late(entry, now, out)) return;
  if (now >= entry.renew_at) {
    entry.renew_at = now + options_.timings.renew_interval;
    entry.renew_sent = now;
    ++entry.renew_number;
    const SessionId session = session_of(entry);
    if (session != 0)
      renewals_[session].items.push_back({entry.address, entry.renew_number, entry.placed_count});
  }
  if (now >= entry.resend_at) {
    entry.resend_at = now + options_.timings.resend_interval;
    if (entry.state == ConsumerState::kOpening || entry.state == ConsumerState::kPromised)
      send_open(entry, now, out);
    if (entry.state == ConsumerState::kReceiving) grant_credit(entry, true, out);
    if (entry.state == ConsumerState::kConfirming) ask_again(entry, now, out);
    if (entry.state == ConsumerState::kReserving) {
      serve_waiting(out);
      entry.resend_at = entry.memory_reserved ? kFarFuture : now + options_.timings.busy_retry;
    }
  }
  arm(entry);
}

// --- Small parts

ConsumerCore::Entry* ConsumerCore::find(std::uint64_t sequence) {
  const auto found = handoffs_.find(sequence);
  return found == handoffs_.end() ? nullptr : &found->second;
}

ConsumerCore::Entry* ConsumerCore::find(const wire::HandoffId& handoff) {
  return handoff.consumer == options_.incarnation ? find(handoff.sequence) : nullptr;
}

ConsumerCore::Entry* ConsumerCore::find(const wire::HandoffId& handoff, std::uint32_t attempt) {
  Entry* entry = find(handoff);
  const bool counts =
      entry != nullptr && (entry->address.attempt == attempt || mutation(Mutation::kAttemptIgnored));
  return counts ? entry : nullptr;
}

void ConsumerCore::meet(const Entry* entry, ConsumerEvent event) const {
  const ConsumerState state = entry == nullptr ? ConsumerState::kClosed : entry->state;
  ISTHMUS_CHECK(is_possible(state, event));
  if (event_observer_) event_observer_(state, event);
}

void ConsumerCore::move(Entry& entry, ConsumerState to, std::string_view cause, Instant state_end) {
  ISTHMUS_CHECK(is_transition(entry.state, to, cause));
  if (observer_) observer_(entry.state, to, cause);
  entry.state = to;
  entry.state_end = state_end;
}

void ConsumerCore::arm(Entry& entry) {
  Instant next = std::min(entry.state_end, entry.resend_at);
  if (entry.state < ConsumerState::kOwned) {
    const bool leased = !entry.seal && !mutation(Mutation::kLeaseIgnored);
    next = std::min({next, entry.begin.deadline, entry.renew_at, leased ? entry.lease_end : kFarFuture});
  }
  deadlines_.arm(entry.address.handoff.sequence, next);
}

SessionId ConsumerCore::session_of(const Entry& entry) const {
  if (sessions_.contains(entry.begin.session)) return entry.begin.session;
  const auto other = std::ranges::find_if(
      sessions_, [&](const auto& each) { return each.second.incarnation == entry.producer; });
  return other == sessions_.end() ? 0 : other->first;
}

void ConsumerCore::send(const Entry& entry, wire::Frame frame, ConsumerActions& out) const {
  const SessionId session = session_of(entry);
  if (session != 0) out.push_back(SendFrame{session, std::move(frame)});
}

std::optional<ConsumerState> ConsumerCore::state_of(const wire::HandoffId& handoff) const {
  const auto found = handoffs_.find(handoff.sequence);
  if (handoff.consumer != options_.incarnation || found == handoffs_.end()) return std::nullopt;
  return found->second.state;
}

Status ConsumerCore::check() const {
  const auto wrong = [](std::string detail) {
    return Error{Code::kInternal, "consumer: " + std::move(detail)};
  };
  std::uint64_t quarantined = 0;
  for (const auto& [sequence, entry] : handoffs_) {
    quarantined += entry.state == ConsumerState::kQuarantined ? 1 : 0;
    // In the order of ConsumerDuty.
    const bool has[kConsumerDuties] = {entry.peak.destination != 0, !entry.unquiet.empty(),
                                       has_work_in_flight(entry), entry.seal.has_value(),
                                       deadlines_.is_armed(sequence)};
    for (std::size_t i = 0; i < kConsumerDuties; ++i) {
      const auto duty = static_cast<ConsumerDuty>(i);
      const Holds due = holds(entry.state, duty);
      if (due != Holds::kMay && has[i] != (due == Holds::kYes)) {
        return wrong(fmt::format("handoff {} in state {} {} its {}", sequence, name(entry.state),
                                 has[i] ? "still has" : "lacks", name(duty)));
      }
    }
    const bool may_hold = entry.memory_reserved && entry.state != ConsumerState::kOwned;
    const bool may_retain = !(entry.begin.retained == Amount{}) && entry.state != ConsumerState::kOwned;
    if (has[0] != may_hold || (entry.retained != 0) != may_retain)
      return wrong(
          fmt::format("handoff {} in state {}: memory and grant differ", sequence, name(entry.state)));
  }
  if (quarantined != quarantined_)
    return wrong(fmt::format("{} quarantined, {} counted", quarantined, quarantined_));
  for (const auto& [channel, landing] : landing_) {
    if (landing.place && !handoffs_.contains(landing.sequence))
      return wrong(fmt::format("channel {} lands a chunk of nothing", channel.number));
  }
  return ledger_->check();
}

}  // namespace isthmus::handoff
