// SPDX-License-Identifier: Apache-2.0
// What the consumer's frames do at the producer, and the flow of chunks up to SEAL.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handoff/core/planted.h"
#include "handoff/core/producer.h"

namespace isthmus::handoff {
namespace {

// The reasons of a refused verdict in one line, for the peer's log.
std::string summary(const std::vector<kv::Reason>& reasons) {
  std::string text;
  for (const kv::Reason& reason : reasons) {
    text += fmt::format("{}{}: '{}' here, '{}' there", text.empty() ? "" : "; ", reason.path, reason.source,
                        reason.target);
  }
  return text;
}

std::vector<kv::Reason> bounded(const std::vector<kv::Reason>& reasons) {
  std::vector<kv::Reason> kept(reasons.begin(), reasons.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                      reasons.size(), wire::kReasonsMax)));
  for (kv::Reason& reason : kept) {
    for (std::string* text : {&reason.path, &reason.source, &reason.target, &reason.text})
      *text = clip(std::move(*text));
  }
  return kept;
}

}  // namespace

Status ProducerCore::frame_in(SessionId session, const wire::Frame& frame, Instant now,
                              ProducerActions& out) {
  const Peer* from = peer(session);
  if (from == nullptr) return Error{Code::kUnavailable, fmt::format("session {} isn't up", session)};
  const wire::Address* address = wire::address_of(frame);
  if (address != nullptr && address->handoff.consumer != from->incarnation) {
    return Error{Code::kMalformed,
                 fmt::format("{} of handoff {} came from '{}', incarnation {}", wire::name(frame),
                             address->handoff.text(), from->name, from->incarnation.hex())};
  }
  if (const auto* open = std::get_if<wire::Open>(&frame)) {
    on_open(session, *open, now, out);
  } else if (const auto* credit = std::get_if<wire::Credit>(&frame)) {
    on_credit(session, *credit, now, out);
  } else if (const auto* done = std::get_if<wire::Done>(&frame)) {
    on_done(session, *done, now, out);
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&frame)) {
    const Error why{Code::kCancelled, fmt::format("cancelled by the consumer: {}", cancel->detail)};
    on_stop(session, cancel->address, cancel->channels, {TerminalKind::kCancelled, why, true, false}, now,
            out);
  } else if (const auto* abort = std::get_if<wire::Abort>(&frame)) {
    const Error why{abort->code, fmt::format("aborted by the consumer: {}", abort->detail)};
    on_stop(session, abort->address, abort->channels, {terminal_kind(abort->code), why, false, false}, now,
            out);
  } else if (const auto* renew = std::get_if<wire::Renew>(&frame)) {
    on_renew(session, *renew, now, out);
  } else if (const auto* valid = std::get_if<wire::Valid>(&frame)) {
    on_valid(session, *valid, now, out);
  } else {
    return Error{Code::kMalformed, fmt::format("{} isn't a consumer's frame", wire::name(frame))};
  }
  return ok_status();
}

// --- OPEN

void ProducerCore::on_open(SessionId session, const wire::Open& open, Instant now, ProducerActions& out) {
  const Entry* holder = find(open.address.handoff);
  if (holder != nullptr) meet_open(*holder, open);
  const Ended* ended = ended_handoffs_.find(open.address.handoff, now);
  if (ended != nullptr && open.address.attempt <= ended->attempt) {
    if (holder == nullptr) meet(nullptr, ProducerEvent::kOpen);
    const Code code = ended->code == Code::kOk ? Code::kAborted : ended->code;
    const std::string detail = ended->detail.empty() ? "this handoff is over" : ended->detail;
    out.push_back(SendFrame{session, wire::Reject{open.address, code, detail, ended->fault, ended->reasons}});
    return;
  }
  if (repeat_answer(session, open, now, out) || resume_answer(session, open, now, out)) return;
  const Result<wire::SignedTicket> ticket = wire::parse_ticket(open.ticket);
  if (!ticket.ok()) {
    return reject(session, open, {},
                  {Code::kMalformed, ticket.error().detail, wire::TicketFault::kMalformed, {}}, now, out);
  }
  const wire::Ticket& stated = ticket->ticket;
  if (std::optional<Refusal> refusal = check_ticket(session, open, *ticket, now)) {
    return reject(session, open, {}, std::move(*refusal), now, out);
  }
  Entry* entry = find(stated.reservation);
  if (holder == nullptr) {
    const bool held = entry != nullptr && entry->state != ProducerState::kPinned;
    meet(entry, held ? ProducerEvent::kOpenOther : ProducerEvent::kOpen);
  }
  if (entry == nullptr) {
    const Ended* past = ended_reservations_.find(stated.reservation, now);
    if (past == nullptr && stated.may_precede_admission) return promise(session, open, stated, now, out);
    Refusal refusal{
        Code::kNotFound, "the reservation isn't known here", wire::TicketFault::kUnknownReservation, {}};
    if (past != nullptr)
      refusal.detail = fmt::format("the reservation is over ({}): {}", name(past->kind), past->detail);
    if (past != nullptr && past->code != Code::kOk) refusal.code = past->code;
    return reject(session, open, stated.reservation, std::move(refusal), now, out);
  }
  if (entry->state == ProducerState::kPromised) return promise(session, open, stated, now, out);
  if (std::optional<Refusal> refusal = check_reserved(*entry, open, stated)) {
    return reject(session, open, stated.reservation, std::move(*refusal), now, out);
  }
  open_slot(*entry, session, open, now, out);
}

// An OPEN that is being served already gets its answer again, also when its ticket has expired since.
bool ProducerCore::repeat_answer(SessionId session, const wire::Open& open, Instant now,
                                 ProducerActions& out) {
  Entry* entry = find(open.address.handoff);
  if (entry == nullptr) return false;
  if (entry->promised) {
    if (entry->promised->open.address.attempt != open.address.attempt) return false;
    out.push_back(SendFrame{session, wire::Promised{open.address, wire::to_ms(entry->state_end - now)}});
    return true;
  }
  if (entry->attempt->number < open.address.attempt) return false;
  open_slot(*entry, session, open, now, out);
  return true;
}

// A later attempt of the holder, which has lost a connection: the slot is still its own.
bool ProducerCore::resume_answer(SessionId session, const wire::Open& open, Instant now,
                                 ProducerActions& out) {
  Entry* entry = find(open.address.handoff);
  if (entry == nullptr || !entry->attempt) return false;
  const bool live = entry->state == ProducerState::kOpened || entry->state == ProducerState::kGrowing ||
                    entry->state == ProducerState::kSevered || entry->state == ProducerState::kSealed;
  const Attempt& attempt = *entry->attempt;
  const bool same = open.target == attempt.target && open.wanted == attempt.offer.tokens;
  const Result<wire::SignedTicket> ticket = wire::parse_ticket(open.ticket);
  // It may have expired since: the lease is what counts from the first OPEN on.
  const bool right = ticket.ok() && ticket->ticket.reservation == entry->spec.id &&
                     !is_superseded(*entry, ticket->ticket) &&
                     !check_ticket(session, open, *ticket, std::nullopt);
  if (!live || !same || !right) return false;
  resume(*entry, session, open, now, out);
  return true;
}

// Without `now` expiry isn't looked at.
std::optional<ProducerCore::Refusal> ProducerCore::check_ticket(SessionId session, const wire::Open& open,
                                                                const wire::SignedTicket& ticket,
                                                                std::optional<Instant> now) const {
  const auto elapsed = now ? std::optional(wire::to_ms(*now - options_.started)) : std::nullopt;
  const wire::TicketFence fence{options_.name, options_.incarnation, elapsed};
  const wire::TicketFault fault = wire::verify(ticket, options_.fleet_key, fence);
  if (fault != wire::TicketFault::kNone) {
    return Refusal{Code::kAborted, fmt::format("ticket refused: {}", wire::name(fault)), fault, {}};
  }
  const Mac proof = wire::open_proof(peer(session)->session_key, ticket.ticket.nonce, open.address.handoff,
                                     open.address.attempt);
  if (!equal_constant_time(proof, open.proof)) {
    return Refusal{Code::kAborted,
                   "the opener didn't prove that it holds the session's key",
                   wire::TicketFault::kNoProof,
                   {}};
  }
  return std::nullopt;
}

std::optional<ProducerCore::Refusal> ProducerCore::check_reserved(const Entry& entry, const wire::Open& open,
                                                                  const wire::Ticket& ticket) const {
  if (is_superseded(entry, ticket)) {
    return Refusal{
        Code::kAborted, "the slot was given to another opener", wire::TicketFault::kSuperseded, {}};
  }
  if (entry.spec.source != ticket.descriptor) {
    return Refusal{Code::kIncompatible,
                   fmt::format("the ticket is for descriptor {}, the reservation's is {}",
                               ticket.descriptor.hex(), entry.spec.source.hex()),
                   wire::TicketFault::kOtherDescriptor,
                   {}};
  }
  if (!entry.spec.tokens.contains(open.wanted) || open.wanted.end != entry.spec.tokens.end) {
    return Refusal{
        Code::kInvalidArgument,
        fmt::format("tokens [{}, {}) are wanted, the reservation is [{}, {}) and must be read to its end",
                    open.wanted.begin, open.wanted.end, entry.spec.tokens.begin, entry.spec.tokens.end),
        wire::TicketFault::kOtherRange,
        {}};
  }
  return std::nullopt;
}

// No capacity is held for a promise: it is a note that an opener waits.
void ProducerCore::promise(SessionId session, const wire::Open& open, const wire::Ticket& ticket, Instant now,
                           ProducerActions& out) {
  Entry* waiting = find(ticket.reservation);
  if (waiting != nullptr && waiting->promised->open.address.handoff != open.address.handoff) {
    out.push_back(SendFrame{session, wire::Busy{open.address, wire::to_ms(options_.timings.busy_retry)}});
    return;
  }
  if (waiting == nullptr) {
    if (reservations_.size() >= options_.limits.reservations_max) {
      return reject(session, open, ticket.reservation, {Code::kExhausted, "too many reservations", {}, {}},
                    now, out);
    }
    waiting = &reservations_[ticket.reservation];
    waiting->spec.id = ticket.reservation;
    waiting->state = ProducerState::kPromised;
    waiting->state_end = now + std::min(options_.timings.promise_max, wire::from_ms(open.deadline_ms));
    handoffs_[open.address.handoff] = ticket.reservation;
    arm(*waiting);
  }
  waiting->promised = PromisedOpen{session, open};
  out.push_back(SendFrame{session, wire::Promised{open.address, wire::to_ms(waiting->state_end - now)}});
}

void ProducerCore::open_slot(Entry& entry, SessionId session, const wire::Open& open, Instant now,
                             ProducerActions& out) {
  if (entry.state == ProducerState::kPinned) return take_slot(entry, session, open, now, out);
  const bool same = entry.attempt && entry.attempt->handoff == open.address.handoff;
  const bool live = entry.state == ProducerState::kOpened || entry.state == ProducerState::kGrowing ||
                    entry.state == ProducerState::kSevered || entry.state == ProducerState::kSealed;
  if (same && live && entry.attempt->number == open.address.attempt) {  // A repeated OPEN: the same answer.
    if (entry.state == ProducerState::kSevered) {
      out.push_back(SendFrame{session, wire::Busy{open.address, 0}});
    } else if (entry.attempt->plan) {
      send_plan(entry, now, out);
    }
    if (entry.state == ProducerState::kSealed) out.push_back(SendFrame{session, *entry.attempt->seal});
    return;
  }
  if (same && open.address.attempt < entry.attempt->number) return;
  out.push_back(SendFrame{session, wire::Busy{open.address, wire::to_ms(options_.timings.busy_retry)}});
  if (same && live) {
    const Error why{Code::kAborted, fmt::format("replaced by attempt {}", open.address.attempt)};
    end_attempt(entry, {TerminalKind::kFailed, why, false, false}, now, out);
  }
}

void ProducerCore::take_slot(Entry& entry, SessionId session, const wire::Open& open, Instant now,
                             ProducerActions& out) {
  const kv::Descriptor* target = peer(session)->descriptors.find(open.target);
  if (target == nullptr) {
    const std::string detail = fmt::format("descriptor {} wasn't in this session's HELLO", open.target.hex());
    return reject(session, open, entry.spec.id, {Code::kIncompatible, detail, {}, {}}, now, out);
  }
  const kv::Descriptor* source = options_.descriptors.find(entry.spec.source);
  ISTHMUS_CHECK(source != nullptr);
  kv::Verdict verdict = verdicts_.of({*source, entry.spec.source}, {*target, open.target}, entry.spec.policy);
  if (verdict.kind == kv::VerdictKind::kReject) {
    return reject(session, open, entry.spec.id,
                  {Code::kIncompatible, clip(summary(verdict.rejects)), {}, bounded(verdict.rejects)}, now,
                  out);
  }
  move(entry, ProducerState::kOpened, "open");
  Attempt& attempt = entry.attempt.emplace(Attempt{});
  attempt.handoff = open.address.handoff;
  attempt.number = open.address.attempt;
  attempt.session = session;
  attempt.target = open.target;
  attempt.direct = open.direct;
  attempt.early_bytes = open.direct ? 0 : open.early_bytes;
  attempt.early_chunks = open.early_chunks;
  for (const std::uint32_t number : open.early_channels) attempt.early_channels.push_back({session, number});
  attempt.may_compress = may_compress(session, open);
  attempt.offer.source = entry.spec.source;
  attempt.offer.tokens = open.wanted;
  attempt.offer.verdict = verdict.kind;
  attempt.offer.wire_text = verdict.wire.text();
  handoffs_[attempt.handoff] = entry.spec.id;
  extend_lease(entry, open, now);
  entry.state_end = now + options_.timings.plan_max;
  arm(entry);
  out.push_back(MakePlan{attempt.handoff, attempt.number, entry.spec.source, open.target, std::move(verdict),
                         open.wanted, open.target_rank, attempt.may_compress});
}

bool ProducerCore::may_compress(SessionId session, const wire::Open& open) const {
  const bool is_offered = std::ranges::find(open.codecs, wire::Codec::kZstdPlanes) != open.codecs.end();
  return is_offered && !open.direct && !peer(session)->is_same_host;
}

void ProducerCore::reject(SessionId session, const wire::Open& open, const Id128& reservation,
                          Refusal refusal, Instant now, ProducerActions& out) {
  const wire::Address& address = open.address;
  refusal.detail = clip(std::move(refusal.detail));
  Ended ended{address.attempt, TerminalKind::kRejected,         refusal.code, refusal.detail, refusal.fault,
              refusal.reasons, now + options_.timings.tombstone};
  ended_handoffs_.put(address.handoff, std::move(ended), options_.limits.tombstones_max);
  out.push_back(ProducerHandoffEnded{address.handoff, address.attempt, reservation, TerminalKind::kRejected,
                                     Error{refusal.code, refusal.detail}, refusal.fault});
  out.push_back(SendFrame{session, wire::Reject{address, refusal.code, refusal.detail, refusal.fault,
                                                std::move(refusal.reasons)}});
}

// --- PLAN, CREDIT, chunks, SEAL

void ProducerCore::plan_ready(const wire::HandoffId& handoff, std::uint32_t attempt, PlanFacts plan,
                              Instant now, ProducerActions& out) {
  meet(find(handoff), ProducerEvent::kPlanReady);
  Entry* entry = find(handoff, attempt);
  if (entry == nullptr || entry->state != ProducerState::kOpened || entry->attempt->plan) return;
  if (plan.chunk_count == 0 || plan.chunk_count > options_.limits.chunks_max) {
    const Error why{Code::kExhausted, fmt::format("a plan of {} chunks, 1 to {} are allowed",
                                                  plan.chunk_count, options_.limits.chunks_max)};
    return end_attempt(*entry, {TerminalKind::kExhausted, why, false, true}, now, out);
  }
  wire::Plan& offer = entry->attempt->offer;
  offer.plan = plan.digest;
  offer.chunk_count = plan.chunk_count;
  offer.slot_bytes = plan.slot_bytes;
  offer.total_bytes = plan.total_bytes;
  entry->attempt->wanted = ChunkSet::all(plan.chunk_count);
  entry->attempt->plan = std::move(plan);
  entry->state_end = kFarFuture;
  arm(*entry);
  Attempt& open = *entry->attempt;
  open.offer.early = may_send_early(open);
  open.offer.codec = granted_codec(open);
  send_plan(*entry, now, out);
  if (!open.offer.early) return maybe_seal(*entry, now, out);
  open.channels = open.early_channels;
  open.slots = open.early_chunks;
  open.granted = open.wanted.count();
  move(*entry, ProducerState::kGrowing, "credit");
  pump(*entry, now, out);
}

// Without memory for it chunks cross as they are.
wire::Codec ProducerCore::granted_codec(Attempt& attempt) {
  const PlanFacts& plan = *attempt.plan;
  if (!attempt.may_compress || attempt.offer.early || plan.codec == wire::Codec::kNone)
    return wire::Codec::kNone;
  const Result<GrantId> staging =
      ledger_->grant(Category::kStaging, {codec_staging(plan.codec, plan.slot_bytes), 0});
  if (!staging.ok()) return wire::Codec::kNone;
  attempt.staging = *staging;
  return plan.codec;
}

bool ProducerCore::may_send_early(const Attempt& attempt) const {
  const bool bound = std::ranges::all_of(
      attempt.early_channels, [&](const ChannelId& channel) { return channels_.contains(channel); });
  return bound && !attempt.early_channels.empty() && attempt.early_chunks <= options_.limits.slots_max &&
         attempt.plan->chunk_count <= attempt.early_chunks &&
         attempt.plan->total_bytes <= attempt.early_bytes;
}

void ProducerCore::plan_failed(const wire::HandoffId& handoff, std::uint32_t attempt, Error why, Instant now,
                               ProducerActions& out) {
  meet(find(handoff), ProducerEvent::kPlanFailed);
  Entry* entry = find(handoff, attempt);
  if (entry == nullptr || entry->state != ProducerState::kOpened || entry->attempt->plan) return;
  const TerminalKind kind = terminal_kind(why.code);
  end_attempt(*entry, {kind, std::move(why), false, true}, now, out);
}

void ProducerCore::send_plan(Entry& entry, Instant now, ProducerActions& out) {
  wire::Plan offer = entry.attempt->offer;
  offer.address = address_of(entry);
  offer.lease_ms = wire::to_ms(entry.lease_end - now);
  out.push_back(SendFrame{entry.attempt->session, std::move(offer)});
}

void ProducerCore::on_credit(SessionId session, const wire::Credit& credit, Instant now,
                             ProducerActions& out) {
  meet(find(credit.address.handoff), ProducerEvent::kCredit);
  Entry* entry = find(credit.address.handoff, credit.address.attempt);
  const bool live =
      entry != nullptr && (entry->state == ProducerState::kOpened || entry->state == ProducerState::kGrowing);
  if (!live) {
    // The consumer must be able to reuse its memory: nothing of this attempt comes, or comes any more.
    const bool fenced = entry == nullptr ? find(credit.address.handoff) == nullptr : entry->attempt->fenced;
    if (entry != nullptr && entry->state == ProducerState::kSevered) {
      out.push_back(SendFrame{session, wire::Busy{credit.address, 0}});
    } else if (fenced)
      fence_channels(session, credit.address, credit.channels, out);
    return;
  }
  Attempt& attempt = *entry->attempt;
  if (session != attempt.session || credit.address.generation != entry->generation || !attempt.plan) return;
  if (attempt.slots == 0) {
    std::vector<ChannelId> channels =
        attempt.channels;  // One list for all generations, so that one fence covers it.
    if (channels.empty()) {
      for (const std::uint32_t number : credit.channels) channels.push_back({session, number});
    }
    const bool bound =
        std::ranges::all_of(channels, [&](const ChannelId& channel) { return channels_.contains(channel); });
    if (channels.empty() || !bound || credit.slots > options_.limits.slots_max) {
      const Error why{
          Code::kUnavailable,
          fmt::format("CREDIT names {} channels, {}all bound, and {} slots of at most {}", channels.size(),
                      bound ? "" : "not ", credit.slots, options_.limits.slots_max)};
      return sever(*entry, why, now, out);
    }
    attempt.channels = std::move(channels);
    attempt.slots = credit.slots;
  }
  attempt.granted = std::max(attempt.granted, std::min(credit.chunks_granted, attempt.wanted.count()));
  if (entry->state == ProducerState::kOpened) move(*entry, ProducerState::kGrowing, "credit");
  pump(*entry, now, out);
}

void ProducerCore::fence_channels(SessionId session, const wire::Address& address,
                                  const std::vector<std::uint32_t>& numbers, ProducerActions& out) {
  for (const std::uint32_t number : numbers) {
    const ChannelId channel{session, number};
    if (channels_.contains(channel))
      out.push_back(SendFence{channel, wire::fence_token(address.handoff, address.attempt)});
  }
}

void ProducerCore::pump(Entry& entry, Instant now, ProducerActions& out) {
  if (entry.state == ProducerState::kGrowing) {
    Attempt& attempt = *entry.attempt;
    const std::uint32_t partial = mutation(Mutation::kWatermarkInPartialTile) ? 1 : 0;
    const std::uint32_t stable = std::min(
        attempt.wanted.below(attempt.plan->chunks_below(entry.watermark)) + partial, attempt.wanted.count());
    for (const std::uint32_t end = std::min(attempt.granted, stable); attempt.next_chunk < end;
         ++attempt.next_chunk) {
      const std::uint32_t position = attempt.next_chunk;
      const ChannelId channel = attempt.channels[position % attempt.channels.size()];
      const ChunkRef chunk{attempt.handoff, attempt.number, entry.generation, attempt.wanted.at(position)};
      attempt.sending.emplace(chunk, Sending{channel, false});
      out.push_back(SendChunk{chunk, entry.spec.id, channel, position % attempt.slots, attempt.offer.codec});
    }
  }
  maybe_seal(entry, now, out);
}

void ProducerCore::chunk_packed(const ChunkRef& chunk, Instant now, ProducerActions& out) {
  meet(find(chunk.handoff), ProducerEvent::kChunkPacked);
  Entry* entry = find(chunk.handoff);
  if (entry == nullptr || !entry->attempt) return;
  const auto found = entry->attempt->sending.find(chunk);
  if (found == entry->attempt->sending.end()) return;
  found->second.packed = true;
  if (entry->attempt->revoked) entry->attempt->sending.erase(found);
  maybe_seal(*entry, now, out);
  settle(*entry, now, out);
}

void ProducerCore::chunk_sent(const ChunkRef& chunk, Status status, Instant now, ProducerActions& out) {
  meet(find(chunk.handoff), status.ok() ? ProducerEvent::kChunkSent : ProducerEvent::kChunkLost);
  Entry* entry = find(chunk.handoff);
  if (entry == nullptr || !entry->attempt) return;
  const auto found = entry->attempt->sending.find(chunk);
  if (found == entry->attempt->sending.end()) return;
  const bool packed = found->second.packed;
  entry->attempt->sending.erase(found);
  const bool current = chunk.attempt == entry->attempt->number && chunk.generation == entry->generation;
  if (!status.ok() && entry->state == ProducerState::kGrowing && current) {
    const std::string detail = fmt::format("chunk {}: {}", chunk.index, status.error().detail);
    // A lost channel leaves the pages good for another attempt; pages that can't be packed stay so.
    const Code code = status.code();
    if (code == Code::kUnavailable) return sever(*entry, Error{code, detail}, now, out);
    const bool pages_at_fault = !packed && code != Code::kExhausted && code != Code::kAborted;
    return end_attempt(*entry, {terminal_kind(code), Error{code, detail}, pages_at_fault, true}, now, out);
  }
  maybe_seal(*entry, now, out);
  settle(*entry, now, out);
}

void ProducerCore::maybe_seal(Entry& entry, Instant now, ProducerActions& out) {
  const bool open = entry.state == ProducerState::kOpened || entry.state == ProducerState::kGrowing;
  if (!open || !entry.result || !entry.attempt->plan) return;
  if (entry.result->finish != wire::FinishState::kNone) {
    // A process that was stopped may hear this before its tick: the lease's end is the tick's.
    if (now < entry.lease_end || mutation(Mutation::kSealWithoutR5)) send_seal(entry, {}, now, out);
    return;
  }
  Attempt& attempt = *entry.attempt;
  if (attempt.direct) {
    if (now < entry.lease_end) send_seal(entry, {}, now, out);
    return;
  }
  if (entry.state != ProducerState::kGrowing || attempt.seal_asked ||
      attempt.next_chunk < attempt.wanted.count())
    return;
  const bool packed =
      std::ranges::all_of(attempt.sending, [](const auto& each) { return each.second.packed; });
  if (!packed) return;
  attempt.seal_asked = true;
  out.push_back(ComputeSeal{attempt.handoff, attempt.number, entry.generation, entry.spec.id});
}

void ProducerCore::seal_ready(const wire::HandoffId& handoff, std::uint32_t attempt, std::uint32_t generation,
                              Digest128 tile_root, Instant now, ProducerActions& out) {
  meet(find(handoff), ProducerEvent::kSealReady);
  Entry* entry = find(handoff, attempt);
  if (entry == nullptr || entry->state != ProducerState::kGrowing || !entry->attempt->seal_asked) return;
  // After the last read of the pages: were they this generation's, and ours, all the while?
  if (!mutation(Mutation::kSealWithoutR5)) {
    if (generation != entry->generation || !entry->result) return;
    if (now >= entry->lease_end) return on_due(*entry, now, out);
  }
  send_seal(*entry, tile_root, now, out);
}

void ProducerCore::send_seal(Entry& entry, Digest128 tile_root, Instant now, ProducerActions& out) {
  Attempt& attempt = *entry.attempt;
  const bool finished = entry.result->finish != wire::FinishState::kNone;
  wire::Seal seal;
  seal.address = address_of(entry);
  seal.plan = attempt.plan->digest;
  seal.tokens = attempt.offer.tokens;
  seal.token_digest = entry.result->token_digest;
  seal.tile_root = tile_root;
  seal.first_tokens = entry.result->first_tokens;
  seal.finish = entry.result->finish;
  seal.mac = wire::seal_mac(peer(attempt.session)->session_key, seal);
  attempt.seal = seal;
  move(entry, ProducerState::kSealed, finished ? "finished" : "sealed");
  arm(entry);
  settle(entry, now, out);
  out.push_back(SendFrame{attempt.session, std::move(seal)});
}

// --- DONE, CANCEL, ABORT, RENEW

void ProducerCore::on_done(SessionId session, const wire::Done& done, Instant now, ProducerActions& out) {
  meet(find(done.address.handoff), ProducerEvent::kDone);
  Entry* entry = find(done.address.handoff, done.address.attempt);
  if (entry == nullptr && mutation(Mutation::kStaleDoneReleases)) {
    Entry* next = successor_of(done.address.handoff);
    if (next != nullptr && next->state < ProducerState::kQuiescing)
      return end_attempt(*next, {TerminalKind::kDone, ok_status(), true, false, "ended"}, now, out);
  }
  if (entry == nullptr || entry->state == ProducerState::kQuarantined) {
    const Ended* ended = ended_handoffs_.find(done.address.handoff, now);
    const bool released =
        ended != nullptr && (ended->kind == TerminalKind::kDone || ended->kind == TerminalKind::kFinished);
    const auto outcome = released ? wire::ReleaseOutcome::kDone : wire::ReleaseOutcome::kUnknown;
    if (find(done.address.handoff) == nullptr)
      out.push_back(SendFrame{session, wire::Released{done.address, outcome}});
    return;
  }
  if (entry->state != ProducerState::kSealed ||
      done.address.generation != entry->attempt->seal->address.generation) {
    return;
  }
  const bool finished = entry->attempt->seal->finish != wire::FinishState::kNone;
  entry->attempt->reply = wire::ReleaseOutcome::kDone;
  entry->attempt->end_address = done.address;
  end_attempt(*entry,
              {finished ? TerminalKind::kFinished : TerminalKind::kDone, ok_status(),
               !mutation(Mutation::kDoneKeepsReservation), false, "done"},
              now, out);
}

// CANCEL or ABORT of the consumer.
void ProducerCore::on_stop(SessionId session, const wire::Address& address,
                           const std::vector<std::uint32_t>& channels, End end, Instant now,
                           ProducerActions& out) {
  const bool cancels = end.kind == TerminalKind::kCancelled;
  Entry* entry = find(address.handoff);
  meet(entry, cancels ? ProducerEvent::kCancel : ProducerEvent::kAbort);
  if (entry == nullptr || entry->state == ProducerState::kQuarantined) {
    const Ended* ended = ended_handoffs_.find(address.handoff, now);
    fence_channels(session, address, channels, out);
    auto outcome = wire::ReleaseOutcome::kUnknown;
    if (ended != nullptr) {
      outcome = ended->kind == TerminalKind::kDone || ended->kind == TerminalKind::kFinished
                    ? wire::ReleaseOutcome::kLate
                : ended->kind == TerminalKind::kCancelled ? wire::ReleaseOutcome::kCancelled
                                                          : wire::ReleaseOutcome::kAborted;
    } else {
      // It may have overtaken its OPEN.
      ended_handoffs_.put(address.handoff, tombstone(end, address.attempt, now),
                          options_.limits.tombstones_max);
    }
    out.push_back(SendFrame{session, wire::Released{address, outcome}});
    return;
  }
  if (entry->promised) {
    end.ends_reservation = cancels;
    end_promise(*entry, std::move(end), now, out);
    out.push_back(SendFrame{session, wire::Released{address, cancels ? wire::ReleaseOutcome::kCancelled
                                                                     : wire::ReleaseOutcome::kAborted}});
    return;
  }
  Attempt& attempt = *entry->attempt;
  if (address.attempt < attempt.number) return;
  if (entry->state == ProducerState::kQuiescing) {
    const bool done = attempt.end.kind == TerminalKind::kDone || attempt.end.kind == TerminalKind::kFinished;
    if (done) {
      out.push_back(SendFrame{session, wire::Released{address, wire::ReleaseOutcome::kLate}});
    } else if (cancels) {
      end_reservation(*entry, std::move(end), now, out);
    }
    return;
  }
  attempt.reply = cancels ? wire::ReleaseOutcome::kCancelled : wire::ReleaseOutcome::kAborted;
  attempt.end_address = address;
  if (attempt.channels.empty()) {  // CREDIT, if any, is still on its way or was lost.
    for (const std::uint32_t number : channels) attempt.channels.push_back({session, number});
  }
  end_attempt(*entry, std::move(end), now, out);
}

void ProducerCore::on_renew(SessionId session, const wire::Renew& renew, Instant now, ProducerActions& out) {
  wire::Renewed answer;
  for (const wire::Renewal& item : renew.items) {
    if (auto renewed = renew_one(item, session, now, out)) answer.items.push_back(*std::move(renewed));
  }
  if (!answer.items.empty()) out.push_back(SendFrame{session, std::move(answer)});
}

std::optional<wire::Renewed::Item> ProducerCore::renew_one(const wire::Renewal& item, SessionId session,
                                                           Instant now, ProducerActions& out) {
  wire::Renewed::Item answer{item.address, item.number, 0};
  meet(find(item.address.handoff), ProducerEvent::kRenew);
  Entry* entry = find(item.address.handoff, item.address.attempt);
  const bool own = peer(session)->incarnation == item.address.handoff.consumer;
  if (!own || entry == nullptr) return answer;
  if (entry->state == ProducerState::kSevered) {
    out.push_back(SendFrame{session, wire::Busy{item.address, 0}});
    return std::nullopt;
  }
  const bool live = entry->state == ProducerState::kOpened || entry->state == ProducerState::kGrowing;
  if (!live && entry->state != ProducerState::kSealed) return answer;
  Attempt& attempt = *entry->attempt;
  if (live && item.address.generation != 0 && item.address.generation < entry->generation) {
    out.push_back(SendFrame{session, wire::Restart{address_of(*entry)}});
  }
  if (!live) {
    out.push_back(SendFrame{session, *attempt.seal});
  } else {
    if (item.address.generation == entry->generation)
      attempt.placed = std::max(attempt.placed, item.chunks_placed);
    // Without progress the consumer gets no more time, unless it is this side that it waits for.
    const bool ours =
        !attempt.plan || attempt.direct ||
        (entry->state == ProducerState::kGrowing && attempt.sending.empty() &&
         (attempt.granted > attempt.next_chunk || attempt.next_chunk == attempt.wanted.count()));
    const std::uint64_t progress = std::uint64_t{attempt.next_chunk} + attempt.granted + attempt.placed;
    if (ours || progress > attempt.progress_renewed || mutation(Mutation::kRenewWithoutProgress)) {
      attempt.progress_renewed = progress;
      entry->lease_end = lease_until(*entry, now);
      arm(*entry);
    }
  }
  answer.lease_ms = wire::to_ms(entry->lease_end - now);
  return answer;
}

// Stateless: what it says is of this moment, and nothing is different afterwards. A question that isn't the
// consumer's own would have an answer before it asks, and that would pass for one to its first.
void ProducerCore::on_valid(SessionId session, const wire::Valid& valid, Instant now, ProducerActions& out) {
  meet(find(valid.address.handoff), ProducerEvent::kValid);
  const Key& key = peer(session)->session_key;
  if (!equal_constant_time(wire::valid_mac(key, valid), valid.mac)) return;
  Entry* entry = find(valid.address.handoff, valid.address.attempt);
  if (entry == nullptr && mutation(Mutation::kValidIgnoresAttempt))
    entry = successor_of(valid.address.handoff);
  // Of the sealed generation, and the pages are still that one's.
  const bool is_valid = entry != nullptr && entry->state == ProducerState::kSealed &&
                        now < entry->lease_end &&
                        entry->attempt->seal->address.generation == valid.address.generation &&
                        entry->generation == valid.address.generation;
  wire::Validity validity{valid.address, valid.number, is_valid};
  validity.mac = wire::validity_mac(key, validity);
  out.push_back(SendFrame{session, validity});
  if (is_valid && mutation(Mutation::kValidFrees))
    end_attempt(*entry, {TerminalKind::kDone, ok_status(), true, false, "done"}, now, out);
}

SessionId ProducerCore::session_to(const Id128& incarnation, SessionId preferred) const {
  if (sessions_.contains(preferred)) return preferred;
  const auto other = std::ranges::find_if(
      sessions_, [&](const auto& each) { return each.second.incarnation == incarnation; });
  return other == sessions_.end() ? 0 : other->first;
}

}  // namespace isthmus::handoff
