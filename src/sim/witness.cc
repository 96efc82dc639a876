// SPDX-License-Identifier: Apache-2.0
// The books. Only live things are kept, so that the sums are cheap after each event.
#include "sim/witness.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

namespace isthmus::handoff::sim {
namespace {

// Of one kind, for one attempt. OPEN: one a resend interval or busy retry within open_max; DONE: its resends;
// RENEW and its answers: one an interval for the longest request here; CREDIT and SEAL: one a renewal at
// most.
constexpr std::uint32_t kFramesMax = 64;

constexpr Duration kMillisecond = std::chrono::milliseconds(1);  // To which leases are told.

}  // namespace

void Witness::admitted(const Id128& reservation, std::uint64_t pinned_bytes) {
  pinned_[reservation] = pinned_bytes;
}

void Witness::begun(const wire::HandoffId& handoff, std::uint64_t destination_bytes,
                    std::uint64_t retained_bytes) {
  held_[handoff].destination_bytes = destination_bytes;
  held_[handoff].retained_bytes = retained_bytes;
}

void Witness::engine_released(GrantId grant) {
  if (active_.erase(grant) == 0) report_("a grant that isn't the engine's is released");
}

void Witness::count_frame(const wire::Frame& frame) {
  const wire::Address* address = wire::address_of(frame);
  if (address == nullptr) return;
  const std::uint32_t count =
      ++frames_[{{address->handoff, address->attempt}, std::string(wire::name(frame))}];
  if (count == kFramesMax + 1) {
    report_(fmt::format("more than {} {} for {}", kFramesMax, wire::name(frame), address->handoff.text()));
  }
}

// --- Leases: what the producer has told, and whether it had a reason.

void Witness::starts_again(Leased& leased, std::uint32_t generation) const {
  leased.generation = generation;
  leased.sent = leased.granted = leased.placed = 0;
  leased.renewed = 0;
}

bool Witness::sees_frame(const wire::Frame& frame, Instant now) {
  count_frame(frame);
  if (const auto* renewed = std::get_if<wire::Renewed>(&frame)) {
    for (const wire::Renewed::Item& item : renewed->items) grants(item, now);
    return false;
  }
  const wire::Address* address = wire::address_of(frame);
  if (address == nullptr) return false;
  if (const auto* plan = std::get_if<wire::Plan>(&frame)) {
    Leased& leased = leased_[{address->handoff, address->attempt}];
    leased.end = std::max(leased.end, now + wire::from_ms(plan->lease_ms));
    const auto asked = missing_.find({address->handoff, address->attempt});
    leased.chunks = plan->resumed && asked != missing_.end() ? asked->second : plan->chunk_count;
    if (leased.generation != address->generation) starts_again(leased, address->generation);
    if (plan->early) leased.granted = plan->chunk_count;
    if (plan->codec != wire::Codec::kNone)
      codecs_[address->handoff] = {2 * plan->slot_bytes, address->attempt};
  } else if (std::holds_alternative<wire::Restart>(frame)) {
    Leased& leased = leased_[{address->handoff, address->attempt}];
    if (leased.generation != address->generation) starts_again(leased, address->generation);
  } else if (std::holds_alternative<wire::Seal>(frame)) {
    Leased& leased = leased_[{address->handoff, address->attempt}];
    if (std::exchange(leased.sealed, true)) return false;
    if (now > leased.end + kMillisecond) report_("SEAL after the lease");
    return true;
  }
  return false;
}

void Witness::grants(const wire::Renewed::Item& item, Instant now) {
  const auto found = leased_.find({item.address.handoff, item.address.attempt});
  if (found == leased_.end() || item.lease_ms == 0) return;
  Leased& leased = found->second;
  const Instant end = now + wire::from_ms(item.lease_ms);
  if (end <= leased.end + 2 * kMillisecond) return;
  const bool flies = std::ranges::any_of(
      flying_, [&](const ChunkRef& chunk) { return chunk.handoff == item.address.handoff; });
  // It is this side that the consumer waits for: for chunks that it gave credit for, or for the seal.
  const bool owes = direct_.contains({item.address.handoff, item.address.attempt}) ||
                    (!flies && (leased.granted > leased.sent || leased.sent == leased.chunks));
  if (!leased.sealed && !owes && leased.progress() <= leased.renewed)
    report_("a lease is extended though nothing moved");
  leased.renewed = leased.progress();
  leased.end = end;
}

void Witness::hears(const wire::Frame& frame) {
  const auto current = [this](const wire::Address& address) -> Leased* {
    const auto found = leased_.find({address.handoff, address.attempt});
    return found == leased_.end() || found->second.generation != address.generation ? nullptr
                                                                                    : &found->second;
  };
  if (const auto* open = std::get_if<wire::Open>(&frame)) {
    std::uint32_t missing = 0;
    for (const wire::ChunkRange& range : open->missing) missing += range.end - range.begin;
    // The first one counts: a repeat is answered as it was.
    missing_.emplace(AttemptKey{open->address.handoff, open->address.attempt}, missing);
    if (open->direct) direct_.insert({open->address.handoff, open->address.attempt});
  } else if (const auto* plan = std::get_if<wire::Plan>(&frame)) {
    planned_.insert({plan->address.handoff, plan->address.attempt});
  } else if (const auto* credit = std::get_if<wire::Credit>(&frame)) {
    if (Leased* leased = current(credit->address))
      leased->granted = std::max(leased->granted, std::min(credit->chunks_granted, leased->chunks));
  } else if (const auto* renew = std::get_if<wire::Renew>(&frame)) {
    for (const wire::Renewal& item : renew->items) {
      if (Leased* leased = current(item.address))
        leased->placed = std::max(leased->placed, item.chunks_placed);
    }
  }
}

// --- Channels: nothing is owned or free while one that was named is open and unfenced.

void Witness::names(const AttemptKey& key, const std::vector<ChannelId>& channels) {
  Held& held = held_.at(key.first);
  if (held.named >= key.second) return;
  held.named = key.second;
  for (const ChannelId& channel : channels) held.channels[channel] = held.named;
}

void Witness::fenced(ChannelId channel, std::uint64_t token) {
  for (auto& [handoff, held] : held_) {
    if (token >> 16 != handoff.sequence) continue;
    std::uint64_t& fence = held.fences[channel];
    fence = std::max(fence, token & wire::kAttemptMax);
    const auto named = held.channels.find(channel);
    if (named != held.channels.end() && (token & wire::kAttemptMax) >= named->second)
      held.channels.erase(named);
  }
}

void Witness::check_quiet(const wire::HandoffId& handoff, std::string_view what) const {
  for (const auto& [channel, attempt] : held_.at(handoff).channels) {
    if (is_open_(channel)) report_(fmt::format("{} while data channel {} is open", what, channel.number));
  }
}

// --- Actions

bool Witness::sees(const ProducerAction& action, Instant now) {
  if (const auto* send = std::get_if<SendFrame>(&action)) {
    return sees_frame(send->frame, now);
  } else if (const auto* chunk = std::get_if<SendChunk>(&action)) {
    flying_.insert(chunk->chunk);
    Leased& leased = leased_[{chunk->chunk.handoff, chunk->chunk.attempt}];
    ++leased.sent;
  } else if (const auto* plan = std::get_if<MakePlan>(&action)) {
    if (++plans_[{plan->handoff, plan->attempt}] > 1) report_("one attempt is planned twice");
  } else if (const auto* ended = std::get_if<ProducerHandoffEnded>(&action)) {
    if (++producer_ends_[{ended->handoff, ended->attempt}] > 1)
      report_(fmt::format("{} ends twice at its producer", ended->handoff.text()));
    const auto codec = codecs_.find(ended->handoff);
    if (codec != codecs_.end() && codec->second.attempt == ended->attempt) codecs_.erase(codec);
  } else if (const auto* resumes = std::get_if<ResumeAttempt>(&action)) {
    const auto codec = codecs_.find(resumes->handoff);
    if (codec != codecs_.end()) codec->second.attempt = resumes->next;
  } else if (const auto* over = std::get_if<ReservationEnded>(&action)) {
    if (!ended_reservations_.insert(over->reservation).second) report_("a reservation ends twice");
    if (!pinned_.contains(over->reservation)) report_("a reservation ends that wasn't admitted");
  } else if (const auto* pins = std::get_if<ReleasePins>(&action)) {
    if (pinned_.erase(pins->reservation) == 0) report_("pins are released that nobody holds");
    if (!ended_reservations_.contains(pins->reservation))
      report_("pins are released before their reservation ended");
  }
  return false;
}

void Witness::sees(const ConsumerAction& action) {
  if (const auto* send = std::get_if<SendFrame>(&action)) {
    const auto of_session = [&](const std::vector<std::uint32_t>& numbers) {
      std::vector<ChannelId> channels;
      for (const std::uint32_t number : numbers) channels.push_back({send->session, number});
      return channels;
    };
    if (const auto* credit = std::get_if<wire::Credit>(&send->frame))
      names({credit->address.handoff, credit->address.attempt}, of_session(credit->channels));
    if (const auto* open = std::get_if<wire::Open>(&send->frame))
      early_[{open->address.handoff, open->address.attempt}] = of_session(open->early_channels);
    return count_frame(send->frame);
  }
  // From here on what comes early goes into the handoff's memory.
  if (const auto* early = std::get_if<TakeEarly>(&action)) {
    const AttemptKey key{early->handoff, early->attempt};
    std::vector<ChannelId> unfenced = early_.at(key);
    std::erase_if(unfenced, [&](const ChannelId& channel) {
      const auto& fences = held_.at(early->handoff).fences;
      return fences.contains(channel) && fences.at(channel) >= early->attempt;
    });
    return names(key, unfenced);
  }
  if (const auto* reserve = std::get_if<ReserveCapacity>(&action)) {
    Held& held = held_.at(reserve->handoff);
    if (!planned_.contains({reserve->handoff, reserve->attempt}))
      report_("memory is reserved before the producer has planned");
    if (std::exchange(held.reserved, true)) report_("a handoff reserves twice");
    held.staging_bytes = reserve->slots * reserve->slot_bytes + reserve->codec_bytes;
    if (reserve->destination.bytes != held.destination_bytes) report_("another destination is reserved");
  } else if (const auto* own = std::get_if<Own>(&action)) {
    Held& held = held_.at(own->handoff);
    if (!held.reserved || std::exchange(held.owned, true)) report_("owned without a destination, or twice");
    active_[own->destination] = held.destination_bytes + held.retained_bytes;
    check_quiet(own->handoff, "a state is owned");
  } else if (const auto* staging = std::get_if<ReleaseStaging>(&action)) {
    Held& held = held_.at(staging->handoff);
    if (!held.reserved || std::exchange(held.staging_released, true))
      report_("staging is released that nobody holds");
    check_quiet(staging->handoff, "staging is released");
  } else if (const auto* freed = std::get_if<ReleaseDestination>(&action)) {
    Held& held = held_.at(freed->handoff);
    if (!held.reserved || held.owned || std::exchange(held.destination_released, true))
      report_("a destination is released that isn't held");
  } else if (const auto* ended = std::get_if<ConsumerHandoffEnded>(&action)) {
    Held& held = held_.at(ended->handoff);
    if (++held.ends > 1) report_(fmt::format("{} ends twice at its consumer", ended->handoff.text()));
    held.quarantined = ended->destination == Destination::kQuarantined;
    if ((ended->kind == TerminalKind::kOwned) != held.owned) report_("the terminal event and Own disagree");
    const bool free = !held.reserved || held.destination_released;
    if (!held.owned && !held.quarantined && !free) report_("a handoff ends before its destination is free");
  }
}

void Witness::check(const Ledger& ledger) const {
  std::uint64_t pinned = 0, incoming = 0, staging = 0, active = 0, quarantined = 0, retained = 0, grants = 0;
  for (const auto& [id, bytes] : pinned_) pinned += bytes;
  for (const auto& [grant, bytes] : active_) active += bytes;
  for (const auto& [handoff, codec] : codecs_) staging += codec.bytes;
  grants += pinned_.size() + active_.size() + codecs_.size();
  for (const auto& [handoff, held] : held_) {
    if (held.reserved && !held.staging_released) {
      staging += held.staging_bytes;
      ++grants;
    }
    if (held.retains()) {
      retained += held.retained_bytes;
      ++grants;
    }
    if (!held.reserved || held.owned || held.destination_released) continue;
    (held.quarantined ? quarantined : incoming) += held.destination_bytes;
    ++grants;
  }
  const auto equal = [&](std::string_view what, std::uint64_t books, std::uint64_t held) {
    if (books != held)
      report_(fmt::format("ledger: {} is {} by the actions, {} by the ledger", what, books, held));
  };
  // A producer's pages stay counted when they go into quarantine; it tells nobody until they are quiet.
  const std::uint64_t kept = ledger.held(Category::kQuarantine).bytes;
  equal("pinned and quarantined", pinned + quarantined, ledger.held(Category::kPinned).bytes + kept);
  equal("incoming", incoming, ledger.held(Category::kIncoming).bytes);
  equal("staging", staging, ledger.held(Category::kStaging).bytes);
  equal("active", active, ledger.held(Category::kActive).bytes);
  equal("retained", retained, ledger.held(Category::kRetained).bytes);
  equal("live grants", grants, ledger.live());
  equal("granted - released", ledger.granted() - ledger.released(), ledger.live());
  equal("free", ledger.capacity().kv.bytes - pinned - quarantined - incoming - retained - active,
        ledger.free().bytes);
}

void Witness::check_end() const {
  if (!pinned_.empty()) report_(fmt::format("{} reservations hold pages at the end", pinned_.size()));
  if (!active_.empty()) report_(fmt::format("{} owned states at the end", active_.size()));
  for (const auto& [attempt, count] : plans_) {
    if (!producer_ends_.contains(attempt))
      report_(fmt::format("attempt {} of {} was planned and has no terminal event", attempt.second,
                          attempt.first.text()));
  }
  for (const auto& [handoff, held] : held_) {
    if (held.ends != 1) report_(fmt::format("{} has {} terminal events", handoff.text(), held.ends));
    if (held.reserved && !held.staging_released) report_("staging is held at the end");
    if (held.reserved && !held.owned && !held.destination_released)
      report_("a destination is held at the end");
  }
}

}  // namespace isthmus::handoff::sim
