// SPDX-License-Identifier: Apache-2.0
// What the producer's frames and chunks do at the consumer, up to owning.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handoff/core/consumer.h"
#include "handoff/core/planted.h"

namespace isthmus::handoff {
namespace {

// Of a frame that is for the consumer, and of one handoff.
ConsumerEvent event_of(const wire::Frame& frame) {
  if (std::holds_alternative<wire::Plan>(frame)) return ConsumerEvent::kPlan;
  if (std::holds_alternative<wire::Reject>(frame)) return ConsumerEvent::kReject;
  if (std::holds_alternative<wire::Promised>(frame)) return ConsumerEvent::kPromised;
  if (std::holds_alternative<wire::Busy>(frame)) return ConsumerEvent::kBusy;
  if (std::holds_alternative<wire::Seal>(frame)) return ConsumerEvent::kSeal;
  if (std::holds_alternative<wire::Released>(frame)) return ConsumerEvent::kReleased;
  if (std::holds_alternative<wire::Cancel>(frame)) return ConsumerEvent::kCancel;
  if (std::holds_alternative<wire::Restart>(frame)) return ConsumerEvent::kRestart;
  if (std::holds_alternative<wire::Validity>(frame)) return ConsumerEvent::kValidity;
  return ConsumerEvent::kAbort;
}

}  // namespace

Status ConsumerCore::frame_in(SessionId session, const wire::Frame& frame, Instant now,
                              ConsumerActions& out) {
  const auto from = sessions_.find(session);
  if (from == sessions_.end()) return Error{Code::kUnavailable, fmt::format("session {} isn't up", session)};
  if (const auto* renewed = std::get_if<wire::Renewed>(&frame)) {
    on_renewed(session, *renewed, now, out);
    return ok_status();
  }
  const wire::Address* address = wire::address_of(frame);
  if (address == nullptr || address->handoff.consumer != options_.incarnation ||
      address->handoff.sequence >= next_sequence_) {
    return Error{Code::kMalformed, fmt::format("{} from '{}' is of no handoff that this agent began",
                                               wire::name(frame), from->second.name)};
  }
  meet(find(address->handoff), event_of(frame));
  Entry* entry = find(address->handoff, address->attempt);
  if (entry == nullptr) return ok_status();  // Over, or of an attempt that is.
  if (entry->producer != from->second.incarnation) {
    return Error{Code::kMalformed,
                 fmt::format("{} of handoff {} came from '{}', which isn't its producer", wire::name(frame),
                             address->handoff.text(), from->second.name)};
  }
  on_handoff_frame(*entry, frame, now, out);
  return ok_status();
}

void ConsumerCore::on_handoff_frame(Entry& entry, const wire::Frame& frame, Instant now,
                                    ConsumerActions& out) {
  const bool opening = entry.state == ConsumerState::kOpening || entry.state == ConsumerState::kPromised;
  if (const auto* plan = std::get_if<wire::Plan>(&frame)) {
    if (opening) on_plan(entry, *plan, now, out);
  } else if (const auto* reject = std::get_if<wire::Reject>(&frame)) {
    if (opening) on_reject(entry, *reject, now, out);
  } else if (const auto* promised = std::get_if<wire::Promised>(&frame)) {
    if (entry.state != ConsumerState::kOpening || entry.plan) return;  // What was planned is admitted.
    const Duration wait = std::min(wire::from_ms(promised->deadline_ms), options_.timings.promise_max);
    move(entry, ConsumerState::kPromised, "promised", now + wait);
    arm(entry);
  } else if (const auto* busy = std::get_if<wire::Busy>(&frame)) {
    const bool moving = entry.state == ConsumerState::kPlanning || entry.state == ConsumerState::kReserving ||
                        (entry.state == ConsumerState::kReceiving && !entry.seal);
    if (moving)
      return lose(entry, Error{Code::kUnavailable, "the producer has lost a data channel"}, now, out);
    if (!opening || entry.busy) return;
    entry.busy = true;
    entry.resend_at =
        now + std::clamp<Duration>(wire::from_ms(busy->retry_after_ms), std::chrono::milliseconds(1),
                                   options_.timings.resend_interval);
    arm(entry);
  } else if (const auto* seal = std::get_if<wire::Seal>(&frame)) {
    on_seal(entry, *seal, now, out);
  } else if (const auto* restart = std::get_if<wire::Restart>(&frame)) {
    on_restart(entry, *restart, now, out);
  } else if (const auto* validity = std::get_if<wire::Validity>(&frame)) {
    on_validity(entry, *validity, now, out);
  } else if (std::holds_alternative<wire::Released>(frame)) {
    if (entry.state == ConsumerState::kOwned) close(entry, "released");
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&frame)) {
    if (entry.state >= ConsumerState::kOwned) return;
    end(entry, TerminalKind::kCancelled,
        Error{Code::kCancelled, fmt::format("cancelled by the producer: {}", cancel->detail)}, Tell::kNothing,
        now, out);
  } else if (const auto* abort = std::get_if<wire::Abort>(&frame)) {
    if (entry.state >= ConsumerState::kOwned || entry.seal) return;  // SEAL can't be taken back.
    end(entry, terminal_kind(abort->code),
        Error{abort->code, fmt::format("aborted by the producer: {}", abort->detail)}, Tell::kNothing, now,
        out);
  }
}

Status ConsumerCore::check_plan(const Entry& entry, const wire::Plan& plan) const {
  const auto differs = [](std::string_view what, std::string_view theirs, std::string_view ours) {
    return Error{Code::kIncompatible, fmt::format("PLAN's {} '{}' isn't the own '{}'", what, theirs, ours)};
  };
  if (plan.source != entry.source) return differs("source", plan.source.hex(), entry.source.hex());
  if (plan.verdict != entry.verdict.kind)
    return differs("verdict", kv::name(plan.verdict), kv::name(entry.verdict.kind));
  if (plan.wire_text != entry.verdict.wire.text())
    return differs("wire form", plan.wire_text, entry.verdict.wire.text());
  if (plan.tokens != entry.begin.wanted) {
    return differs("tokens", fmt::format("[{}, {})", plan.tokens.begin, plan.tokens.end),
                   fmt::format("[{}, {})", entry.begin.wanted.begin, entry.begin.wanted.end));
  }
  if (plan.chunk_count == 0 || plan.chunk_count > options_.limits.chunks_max ||
      plan.address.generation == 0) {
    return Error{Code::kIncompatible,
                 fmt::format("PLAN of generation {} has {} chunks, 1 to {} are allowed",
                             plan.address.generation, plan.chunk_count, options_.limits.chunks_max)};
  }
  const bool keeps =
      plan.address.generation == entry.address.generation || mutation(Mutation::kResumeKeepsOldGeneration);
  if (plan.resumed && (entry.placed_count == 0 || !keeps))
    return Error{Code::kIncompatible, "PLAN resumes what this side hasn't begun"};
  const bool is_small = entry.early && plan.chunk_count <= options_.slots &&
                        plan.total_bytes <= options_.limits.early_bytes_max;
  if (plan.early && (!is_small || plan.resumed))
    return Error{Code::kIncompatible, "PLAN has chunks come before CREDIT where OPEN didn't allow it"};
  const bool is_offered = entry.offers_codec && plan.codec == wire::Codec::kZstdPlanes && !plan.early;
  if (plan.codec != wire::Codec::kNone && !is_offered) {
    return Error{Code::kIncompatible, fmt::format("PLAN has codec {} where OPEN doesn't offer it",
                                                  static_cast<std::uint32_t>(plan.codec))};
  }
  return ok_status();
}

void ConsumerCore::on_plan(Entry& entry, const wire::Plan& plan, Instant now, ConsumerActions& out) {
  const Status agreed = check_plan(entry, plan);
  if (!agreed.ok()) return end(entry, TerminalKind::kRejected, agreed.error(), Tell::kAbort, now, out);
  entry.address.generation = plan.address.generation;
  if (!plan.resumed && entry.placed_count > 0) void_chunks(entry, out);
  if (!plan.early) drop_early(entry);
  entry.offered = plan;
  entry.resend_at = kFarFuture;
  // The lease counts from the sending of OPEN. After a promise that is long ago: the first RENEWED tells, and
  // until then the states' own deadlines bound the wait.
  const bool promised = entry.state == ConsumerState::kPromised;
  const Instant asked = mutation(Mutation::kLeaseFromReceipt) ? now : entry.opened_at;
  entry.lease_end =
      promised ? kFarFuture : asked + wire::from_ms(plan.lease_ms) - options_.timings.lease_margin;
  entry.renew_at = promised ? now : now + options_.timings.renew_interval;
  move(entry, ConsumerState::kPlanning, "plan", now + options_.timings.plan_max);
  arm(entry);
  if (entry.plan) return agree(entry, now, out);
  out.push_back(plan_of(entry));
}

MakePlan ConsumerCore::plan_of(const Entry& entry) const {
  return {.handoff = entry.address.handoff,
          .attempt = entry.address.attempt,
          .source = entry.source,
          .target = entry.begin.target,
          .verdict = entry.verdict,
          .tokens = entry.begin.wanted,
          .target_rank = options_.rank};
}

std::optional<MakePlan> ConsumerCore::coming_plan(const wire::HandoffId& handoff) const {
  const auto found = handoffs_.find(handoff.sequence);
  if (handoff.consumer != options_.incarnation || found == handoffs_.end()) return std::nullopt;
  const ConsumerState state = found->second.state;
  const bool opening =
      (state == ConsumerState::kOpening || state == ConsumerState::kPromised) && !found->second.plan;
  return opening ? std::optional(plan_of(found->second)) : std::nullopt;
}

void ConsumerCore::on_reject(Entry& entry, const wire::Reject& reject, Instant now, ConsumerActions& out) {
  std::string detail = fmt::format("rejected by the producer: {}", reject.detail);
  if (reject.fault != wire::TicketFault::kNone)
    detail += fmt::format(" [ticket: {}]", wire::name(reject.fault));
  const TerminalKind kind = reject.code == Code::kExhausted   ? TerminalKind::kExhausted
                            : reject.code == Code::kCancelled ? TerminalKind::kCancelled
                                                              : TerminalKind::kRejected;
  end(entry, kind, Error{reject.code, std::move(detail)}, Tell::kNothing, now, out);
}

void ConsumerCore::on_renewed(SessionId session, const wire::Renewed& renewed, Instant now,
                              ConsumerActions& out) {
  for (const wire::Renewed::Item& item : renewed.items) {
    meet(find(item.address.handoff), ConsumerEvent::kRenewed);
    Entry* entry = find(item.address.handoff, item.address.attempt);
    if (entry == nullptr || item.number != entry->renew_number || entry->seal) continue;
    if (entry->producer != sessions_.at(session).incarnation) continue;
    const bool leased = entry->state == ConsumerState::kPlanning ||
                        entry->state == ConsumerState::kReserving ||
                        entry->state == ConsumerState::kReceiving;
    if (!leased) continue;
    if (item.lease_ms == 0) {
      end(*entry, TerminalKind::kExpired, Error{Code::kAborted, "the producer has no such lease any more"},
          Tell::kAbort, now, out);
      continue;
    }
    const Instant asked = mutation(Mutation::kLeaseFromReceipt) ? now : entry->renew_sent;
    const Instant lease_end = asked + wire::from_ms(item.lease_ms) - options_.timings.lease_margin;
    if (entry->lease_end == kFarFuture && entry->state == ConsumerState::kReceiving)
      entry->state_end = kFarFuture;
    entry->lease_end = entry->lease_end == kFarFuture ? lease_end : std::max(entry->lease_end, lease_end);
    arm(*entry);
  }
}

// --- Receiving

std::vector<std::uint32_t> ConsumerCore::channels_of(SessionId session) const {
  std::vector<std::uint32_t> numbers;
  for (auto it = channels_.lower_bound({session, 0}); it != channels_.end() && it->session == session; ++it)
    numbers.push_back(it->number);
  return numbers;
}

// Of what comes early OPEN has named the channels, and they count as a CREDIT's from here on.
void ConsumerCore::start_receiving(Entry& entry, Instant now, ConsumerActions& out) {
  const bool is_direct = entry.begin.is_direct;
  if (!entry.early)
    entry.channels = is_direct ? std::vector<std::uint32_t>() : channels_of(entry.begin.session);
  std::vector<ChannelId> named;
  for (const std::uint32_t number : entry.channels) named.push_back({entry.begin.session, number});
  if (!is_direct && named.empty())
    return lose(entry, Error{Code::kUnavailable, "no data channel is left"}, now, out);
  if (!std::ranges::all_of(named, [&](const ChannelId& channel) { return channels_.contains(channel); })) {
    const Error why{Code::kUnavailable, "a data channel was lost before there was memory"};
    return lose(entry, why, now, out);
  }
  entry.unquiet.insert(named.begin(), named.end());
  const bool confirmed = entry.lease_end != kFarFuture;
  move(entry, ConsumerState::kReceiving, "capacity",
       confirmed ? kFarFuture : now + options_.timings.open_max);
  if (is_direct) return arm(entry);
  if (entry.placed.empty()) entry.placed.assign(entry.plan->chunk_count, false);
  entry.granted = 0;
  entry.resend_at = now + options_.timings.resend_interval;
  arm(entry);
  if (!entry.early)  // The channels are to be fenced in any case.
    return grant_credit(entry, entry.wanted.count() == 0, out);
  extend_credit(entry);
  out.push_back(TakeEarly{entry.address.handoff, entry.address.attempt});
}

// The chunk at position i uses slot i % slots: it may come once that at i - slots has left it.
bool ConsumerCore::extend_credit(Entry& entry) const {
  const std::uint32_t before = entry.granted;
  while (entry.granted < entry.wanted.count()) {
    Slot& slot = entry.slots[entry.granted % entry.slots.size()];
    const bool leaving = slot.use == SlotUse::kPlacing && mutation(Mutation::kSlotFreeWhilePlacing);
    if (slot.use != SlotUse::kFree && !leaving) break;
    slot = {SlotUse::kGranted, entry.address.generation, entry.wanted.at(entry.granted), {}};
    ++entry.granted;
  }
  return entry.granted != before;
}

void ConsumerCore::grant_credit(Entry& entry, bool repeat, ConsumerActions& out) {
  const bool has_grown = extend_credit(entry);
  if (entry.begin.is_direct || (!has_grown && !repeat)) return;
  if (entry.granted == 0 && entry.wanted.count() > 0) return;
  send(entry,
       wire::Credit{entry.address, static_cast<std::uint32_t>(entry.slots.size()), entry.granted,
                    entry.channels},
       out);
}

Result<Judgement> ConsumerCore::judge(ChannelId channel, const wire::ChunkHeader& header, std::uint64_t bytes,
                                      Instant now) {
  (void)now;
  const auto refuse = [](std::string detail) {
    return Error{Code::kMalformed, "chunk: " + std::move(detail)};
  };
  const auto session = sessions_.find(channel.session);
  if (session == sessions_.end() || !channels_.contains(channel) || landing_.contains(channel)) {
    return refuse(fmt::format("channel {} isn't ready for one", channel.number));
  }
  const wire::Address& address = header.address;
  if (header.stored_bytes != bytes)
    return refuse(fmt::format("header says {} bytes, the message has {}", header.stored_bytes, bytes));
  if (address.handoff.consumer != options_.incarnation || address.handoff.sequence == 0 ||
      address.handoff.sequence >= next_sequence_) {
    return refuse(fmt::format("handoff {} isn't one that this agent began", address.handoff.text()));
  }
  Entry* entry = find(address.handoff.sequence);
  meet(entry, ConsumerEvent::kChunk);
  if (entry != nullptr && entry->producer != session->second.incarnation) {
    return refuse(fmt::format("handoff {} isn't with '{}'", address.handoff.text(), session->second.name));
  }
  if (entry != nullptr && may_come_early(*entry, address)) return judge_early(*entry, channel, header);
  const auto is_current = [&](const wire::Address& own) {
    return address.attempt == own.attempt &&
           (address.generation == own.generation || mutation(Mutation::kOldGenerationCounts));
  };
  if (entry != nullptr && entry->state == ConsumerState::kReceiving && is_current(entry->address)) {
    ISTHMUS_TRY(const Judgement judgement, judge_current(*entry, channel, header));
    landing_[channel] = {address.handoff.sequence, judgement.slot, judgement.place};
    return judgement;
  }
  // Sent before the producer knew that it isn't wanted any more.
  if (bytes > options_.limits.discard_bytes_max) return refuse(fmt::format("stale, of {} bytes", bytes));
  landing_[channel] = {};
  return Judgement{false, false, address.handoff, address.attempt, header.index, 0, bytes};
}

Result<Judgement> ConsumerCore::judge_current(Entry& entry, ChannelId channel,
                                              const wire::ChunkHeader& header) {
  const auto refuse = [&](std::string detail) {
    return Error{Code::kMalformed, fmt::format("chunk {} of handoff {}: {}", header.index,
                                               header.address.handoff.text(), detail)};
  };
  if (!entry.unquiet.contains(channel))
    return refuse(fmt::format("it came on channel {} after the fence", channel.number));
  if (header.plan != entry.plan->digest)
    return refuse(fmt::format("plan {} isn't {}", header.plan.hex(), entry.plan->digest.hex()));
  const std::optional<std::uint32_t> position = entry.wanted.position_of(header.index);
  if (!position) return refuse("it isn't wanted");
  if (*position >= entry.granted) return refuse(fmt::format("credit reaches to {}", entry.granted));
  const auto slot_index = static_cast<std::uint32_t>(*position % entry.slots.size());
  if (header.slot != slot_index)
    return refuse(fmt::format("slot {} isn't its slot {}", header.slot, slot_index));
  wire::ChunkGeometry geometry = entry.plan->geometry(header.index);
  geometry.may_have_codec = entry.offered->codec != wire::Codec::kNone;
  ISTHMUS_TRY(wire::equal_geometry(header, geometry));
  Judgement judgement{true,         false,      header.address.handoff, header.address.attempt,
                      header.index, slot_index, header.stored_bytes};
  Slot& slot = entry.slots[slot_index];
  const bool expected =
      slot.use == SlotUse::kGranted && slot.index == header.index &&
      (slot.generation == header.address.generation || mutation(Mutation::kOldGenerationCounts));
  if (!expected) {  // A repeated chunk: the first one counts.
    judgement.place = false;
    return judgement;
  }
  slot.use = SlotUse::kLanding;
  slot.channel = channel;
  return judgement;
}

void ConsumerCore::chunk_arrived(ChannelId channel, Instant now, ConsumerActions& out) {
  const auto found = landing_.find(channel);
  if (found == landing_.end()) return;
  const Landing landing = found->second;
  landing_.erase(found);
  Entry* entry = landing.place ? find(landing.sequence) : nullptr;
  if (!landing.place) return;
  meet(entry, ConsumerEvent::kChunkArrived);
  if (entry == nullptr) return;
  Slot& slot = entry->slots[landing.slot];
  const bool resuming = entry->state == ConsumerState::kResuming;
  const bool moving = resuming || entry->state == ConsumerState::kReceiving;
  if (moving && slot.generation == entry->address.generation) {
    slot.use = SlotUse::kPlacing;
    out.push_back(PlaceChunk{entry->address.handoff, entry->address.attempt, slot.generation, slot.index,
                             landing.slot});
    return;
  }
  slot.use = SlotUse::kFree;
  if (resuming) return maybe_resume(*entry, now, out);
  if (moving) return grant_credit(*entry, false, out);
  settle(*entry, out);
}

void ConsumerCore::chunk_placed(const PlaceChunk& chunk, Status status, Instant now, ConsumerActions& out) {
  meet(find(chunk.handoff), status.ok() ? ConsumerEvent::kChunkPlaced : ConsumerEvent::kPlacementFailed);
  Entry* entry = find(chunk.handoff, chunk.attempt);
  if (entry == nullptr || chunk.slot >= entry->slots.size()) return;
  Slot& slot = entry->slots[chunk.slot];
  if (slot.use != SlotUse::kPlacing || slot.index != chunk.index || slot.generation != chunk.generation)
    return;
  slot.use = SlotUse::kFree;
  const bool resuming = entry->state == ConsumerState::kResuming;
  if (entry->state != ConsumerState::kReceiving && !resuming) return settle(*entry, out);
  if (chunk.generation != entry->address.generation) {
    return resuming ? maybe_resume(*entry, now, out) : grant_credit(*entry, false, out);
  }
  if (!status.ok()) {
    const std::string detail = fmt::format("chunk {}: {}", chunk.index, status.error().detail);
    return end(*entry, terminal_kind(status.code()), Error{status.code(), detail}, Tell::kAbort, now, out);
  }
  entry->placed[chunk.index] = true;
  ++entry->placed_count;
  if (resuming) return maybe_resume(*entry, now, out);
  entry->resend_at = now + options_.timings.resend_interval;
  arm(*entry);
  grant_credit(*entry, false, out);
  maybe_verify(*entry, now, out);
}

void ConsumerCore::fence_seen(ChannelId channel, std::uint64_t token, Instant now, ConsumerActions& out) {
  Entry* entry = find(token >> 16);
  meet(entry, ConsumerEvent::kFence);
  if (entry == nullptr || entry->address.attempt != (token & wire::kAttemptMax)) return;
  const auto session = sessions_.find(channel.session);
  if (session == sessions_.end() || session->second.incarnation != entry->producer) return;
  if (may_come_early(*entry, entry->address)) entry->early->fenced.push_back(channel);
  if (entry->unquiet.erase(channel) == 0) return;
  if (entry->state == ConsumerState::kReceiving) return maybe_verify(*entry, now, out);
  settle(*entry, out);
}

void ConsumerCore::on_restart(Entry& entry, const wire::Restart& restart, Instant now, ConsumerActions& out) {
  const bool live = entry.state == ConsumerState::kPlanning || entry.state == ConsumerState::kReserving ||
                    entry.state == ConsumerState::kReceiving;
  if (!live || entry.seal || restart.address.generation <= entry.address.generation) return;
  entry.address.generation = restart.address.generation;
  entry.offered->resumed = false;
  drop_early(entry);
  if (entry.state != ConsumerState::kReceiving || entry.begin.is_direct) {
    if (entry.placed_count > 0) void_chunks(entry, out);
    if (entry.plan) entry.wanted = ChunkSet::all(entry.plan->chunk_count);
    return;
  }
  void_chunks(entry, out);
  entry.wanted = ChunkSet::all(entry.plan->chunk_count);
  entry.granted = 0;
  // Slots that a void chunk still fills stay taken until it has left them.
  for (Slot& slot : entry.slots) {
    if (slot.use == SlotUse::kGranted) slot.use = SlotUse::kFree;
  }
  grant_credit(entry, false, out);
  (void)now;
}

// --- SEAL

Status ConsumerCore::check_seal(const Entry& entry, const wire::Seal& seal) const {
  if (!equal_constant_time(wire::seal_mac(entry.session_key, seal), seal.mac)) {
    return Error{Code::kCorrupt, "SEAL's MAC is wrong"};
  }
  if (seal.plan != entry.offered->plan) {
    return Error{Code::kCorrupt,
                 fmt::format("SEAL is of plan {}, not {}", seal.plan.hex(), entry.offered->plan.hex())};
  }
  if (seal.tokens != entry.begin.wanted) {
    return Error{Code::kCorrupt,
                 fmt::format("SEAL is of tokens [{}, {}), not [{}, {})", seal.tokens.begin, seal.tokens.end,
                             entry.begin.wanted.begin, entry.begin.wanted.end)};
  }
  if (seal.token_digest != entry.begin.token_digest && !mutation(Mutation::kTokenDigestNotCompared)) {
    return Error{Code::kIncompatible,
                 fmt::format("the sealed state is of other tokens: chain {} isn't the own {}",
                             seal.token_digest.hex(), entry.begin.token_digest.hex())};
  }
  return ok_status();
}

void ConsumerCore::on_seal(Entry& entry, const wire::Seal& seal, Instant now, ConsumerActions& out) {
  const bool planned = entry.state == ConsumerState::kPlanning || entry.state == ConsumerState::kReserving ||
                       entry.state == ConsumerState::kReceiving;
  if (!planned || entry.seal || seal.address.generation != entry.address.generation) return;
  const bool finished = seal.finish != wire::FinishState::kNone;
  if (!finished && may_come_early(entry, seal.address)) entry.early->seal = seal;
  if (!finished && entry.state != ConsumerState::kReceiving) return;
  const Status checked = check_seal(entry, seal);
  if (!checked.ok())
    return end(entry, terminal_kind(checked.code()), checked.error(), Tell::kAbort, now, out);
  entry.seal = SealInfo{seal.tokens, seal.token_digest, seal.tile_root, seal.first_tokens, seal.finish};
  if (finished) return end(entry, TerminalKind::kFinished, ok_status(), Tell::kDone, now, out);
  entry.renew_at = kFarFuture;
  entry.state_end = now + options_.timings.verify_max;
  arm(entry);
  maybe_verify(entry, now, out);
}

// The state may be read back once all has come, and nothing can come any more: sealed, placed, every channel
// fenced.
void ConsumerCore::maybe_verify(Entry& entry, Instant now, ConsumerActions& out) {
  const bool quiet = entry.unquiet.empty() || mutation(Mutation::kOwnWithOpenChannel);
  if (entry.state != ConsumerState::kReceiving || !entry.seal || !quiet || has_work_in_flight(entry)) return;
  if (entry.placed_count < entry.plan->chunk_count && !entry.begin.is_direct) {
    const std::string detail = fmt::format("sealed and fenced with {} of {} chunks here", entry.placed_count,
                                           entry.plan->chunk_count);
    return end(entry, TerminalKind::kCorrupt, Error{Code::kCorrupt, detail}, Tell::kAbort, now, out);
  }
  drop_early(entry);
  move(entry, ConsumerState::kVerifying, "complete", now + options_.timings.verify_max);
  entry.resend_at = kFarFuture;
  entry.verifying = true;
  arm(entry);
  out.push_back(Verify{entry.address.handoff, entry.address.attempt, *entry.seal});
}

void ConsumerCore::verified(const wire::HandoffId& handoff, std::uint32_t attempt, Status status, Instant now,
                            ConsumerActions& out) {
  meet(find(handoff), status.ok() ? ConsumerEvent::kVerified : ConsumerEvent::kVerifyFailed);
  Entry* entry = find(handoff, attempt);
  if (entry == nullptr || !entry->verifying) return;
  entry->verifying = false;
  if (entry->state != ConsumerState::kVerifying) return settle(*entry, out);
  if (!status.ok() && !mutation(Mutation::kRootNotCompared)) {
    const auto kind = terminal_kind(status.code());
    return end(*entry, kind, std::move(status), Tell::kAbort, now, out);
  }
  if (now >= entry->begin.deadline) {
    end_if_late(*entry, now, out);
    return;
  }
  if (entry->begin.is_direct || entry->begin.is_member) return confirm(*entry, now, out);
  own(*entry, now, out);
}

}  // namespace isthmus::handoff
