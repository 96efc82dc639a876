// SPDX-License-Identifier: Apache-2.0
// A small state needs no round trip for CREDIT: OPEN allows its chunks to come right behind PLAN. They wait
// in memory of their own until the handoff has some, so that nothing is reserved before the producer has
// planned.
#include <fmt/format.h>

#include <algorithm>

#include "handoff/core/consumer.h"

namespace isthmus::handoff {

void ConsumerCore::allow_early(Entry& entry, wire::Open& open) {
  const Limits& limits = options_.limits;
  // With a slot for each chunk, whatever their sizes.
  const bool has_room = ledger_->capacity().staging_bytes / options_.slots >= limits.early_bytes_max;
  if (open.resumes || open.direct || limits.early_bytes_max == 0 || !has_room) return;
  if (!entry.early) {
    if (early_ >= limits.early_handoffs_max) return;
    ++early_;
    entry.early = Early{limits.early_bytes_max, options_.slots, {}, {}};
    entry.channels = channels_of(entry.begin.session);
  }
  open.early_bytes = limits.early_bytes_max;
  open.early_chunks = options_.slots;
  open.early_channels = entry.channels;
}

void ConsumerCore::drop_early(Entry& entry) {
  if (!entry.early) return;
  entry.early.reset();
  --early_;
}

bool ConsumerCore::may_come_early(const Entry& entry, const wire::Address& address) {
  const bool waits = entry.state == ConsumerState::kOpening || entry.state == ConsumerState::kPromised ||
                     entry.state == ConsumerState::kPlanning || entry.state == ConsumerState::kReserving;
  return waits && entry.early && address.attempt == entry.address.attempt;
}

// Little is known before PLAN: only how much may come, and where. The rest is judged in early_chunk().
Result<Judgement> ConsumerCore::judge_early(Entry& entry, ChannelId channel,
                                            const wire::ChunkHeader& header) {
  const auto refuse = [&](std::string detail) {
    return Error{Code::kMalformed, fmt::format("early chunk {} of handoff {}: {}", header.index,
                                               header.address.handoff.text(), detail)};
  };
  Early& early = *entry.early;
  const bool is_named = channel.session == entry.begin.session &&
                        std::ranges::find(entry.channels, channel.number) != entry.channels.end();
  if (!is_named) return refuse(fmt::format("OPEN didn't name channel {}", channel.number));
  if (std::ranges::find(early.fenced, channel) != early.fenced.end())
    return refuse(fmt::format("it came on channel {} after the fence", channel.number));
  if (early.chunks_left == 0 || header.stored_bytes > early.bytes_left)
    return refuse(fmt::format("{} bytes, OPEN left {} in {} chunks", header.stored_bytes, early.bytes_left,
                              early.chunks_left));
  --early.chunks_left;
  early.bytes_left -= header.stored_bytes;
  landing_[channel] = {};
  Judgement judgement;
  judgement.early = true;
  judgement.handoff = header.address.handoff;
  judgement.attempt = header.address.attempt;
  judgement.index = header.index;
  judgement.bytes = header.stored_bytes;
  return judgement;
}

Result<Judgement> ConsumerCore::early_chunk(ChannelId channel, const wire::ChunkHeader& header,
                                            ConsumerActions& out) {
  Entry* entry = find(header.address.handoff, header.address.attempt);
  Judgement stale{false, false, header.address.handoff, header.address.attempt, header.index, 0, 0};
  const bool is_current = entry != nullptr && entry->early && entry->state == ConsumerState::kReceiving &&
                          header.address.generation == entry->address.generation;
  if (!is_current) return stale;
  ISTHMUS_TRY(const Judgement judgement, judge_current(*entry, channel, header));
  if (!judgement.place) return judgement;
  meet(entry, ConsumerEvent::kChunkArrived);
  entry->slots[judgement.slot].use = SlotUse::kPlacing;
  out.push_back(PlaceChunk{judgement.handoff, judgement.attempt, header.address.generation, judgement.index,
                           judgement.slot});
  return judgement;
}

// Fences and SEAL that came early are of all that has been given.
void ConsumerCore::early_given(const wire::HandoffId& handoff, std::uint32_t attempt, Instant now,
                               ConsumerActions& out) {
  Entry* entry = find(handoff, attempt);
  if (entry == nullptr || !entry->early || entry->state != ConsumerState::kReceiving) return;
  for (const ChannelId& channel : entry->early->fenced) entry->unquiet.erase(channel);
  if (const std::optional<wire::Seal> seal = std::move(entry->early->seal))
    return on_seal(*entry, *seal, now, out);
  maybe_verify(*entry, now, out);
}

}  // namespace isthmus::handoff
