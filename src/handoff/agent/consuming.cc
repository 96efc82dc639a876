// SPDX-License-Identifier: Apache-2.0
// The shell's consumer side: fetches, staging, placing, verifying.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "handoff/agent/placement.h"
#include "handoff/agent/shell.h"
#include "wire/ticket.h"

namespace isthmus::handoff {

Result<FetchId> Shell::fetch(Fetch fetch, FetchEvents events) {
  if (fetch.endpoints.empty() && !fetch.is_pushed)
    return Error{Code::kInvalidArgument, "a ticket needs the endpoints of its producer"};
  if (fetch.is_member && (!events.planned || !events.verified))
    return Error{Code::kInvalidArgument, "a member of a group needs somebody who leads it"};
  if (fetches_.size() >= options_.limits.handoffs_max) {
    return Error{Code::kExhausted, fmt::format("{} fetches are under way", fetches_.size())};
  }
  ISTHMUS_TRY(const wire::SignedTicket ticket, wire::parse_ticket(fetch.ticket));
  if (fetch.is_member != ticket.ticket.membership.has_value()) {
    return Error{Code::kIncompatible, fetch.is_member
                                          ? "the ticket is that of a whole state, not of a group's member"
                                          : "the ticket is that of a group's member, not of a whole state"};
  }
  auto incoming = std::make_shared<Incoming>();
  incoming->id = next_fetch_++;
  incoming->fetch = std::move(fetch);
  incoming->ways = links_->ways(incoming->fetch.endpoints);
  incoming->events = std::move(events);
  incoming->producer = ticket.ticket.producer;
  incoming->source = ticket.ticket.descriptor;
  incoming->begun_at = now();
  fetches_[incoming->id] = incoming;
  poster_.post([this, incoming] { dial(incoming); });
  return incoming->id;
}

void Shell::cancel(FetchId fetch) {
  const auto at = fetches_.find(fetch);
  if (at == fetches_.end()) return;
  const std::shared_ptr<Incoming> incoming = at->second;
  if (incoming->is_begun) {
    consume([&](ConsumerActions& out) {
      consumer_.cancel(incoming->handoff, {Code::kCancelled, "the request is no longer wanted"}, now(), out);
    });
    return;
  }
  stop_unbegun(incoming, {Code::kCancelled, "the request is no longer wanted"});
}

void Shell::decide(FetchId member) {
  const auto at = fetches_.find(member);
  if (at == fetches_.end()) return;
  consume([&](ConsumerActions& out) { consumer_.decide(at->second->handoff, now(), out); });
}

void Shell::abandon(FetchId member, const Error& why) {
  const auto at = fetches_.find(member);
  if (at == fetches_.end()) return;
  const std::shared_ptr<Incoming> incoming = at->second;
  if (!incoming->is_begun) return stop_unbegun(incoming, why);
  consume([&](ConsumerActions& out) { consumer_.abandon(incoming->handoff, why, now(), out); });
}

void Shell::stop_unbegun(const std::shared_ptr<Incoming>& incoming, const Error& why) {
  incoming->is_cancelled = true;
  poster_.post([this, incoming, why] { end_unbegun(incoming, why); });
}

void Shell::free_memory(GrantId grant) {
  if (grant == 0) return;
  ledger_.release(grant);
  consume([&](ConsumerActions& out) { consumer_.memory_freed(out); });
}

void Shell::dial(const std::shared_ptr<Incoming>& incoming) {
  if (incoming->is_cancelled || incoming->is_ended) return;
  if (incoming->fetch.is_pushed) {
    return links_->await(incoming->producer, [this, incoming](const Result<SessionId>& session) {
      if (incoming->is_cancelled || incoming->is_ended) return;
      return session.ok() ? connected(incoming, *session) : unreachable(incoming, session.error());
    });
  }
  const Links::Way& way = incoming->ways.at(incoming->next_way++);
  if (way.transport == nullptr)
    return refused(incoming, way, {Code::kUnsupported, "this worker doesn't use that transport"});
  links_->connect(way, incoming->producer, [this, incoming, &way](const Result<SessionId>& session) {
    if (incoming->is_cancelled || incoming->is_ended) return;
    return session.ok() ? connected(incoming, *session) : refused(incoming, way, session.error());
  });
}

void Shell::connected(const std::shared_ptr<Incoming>& incoming, SessionId session) {
  incoming->transport = links_->transport(session);
  poster_.post([this, incoming] {  // Once OPEN has left.
    meters_.transport_chosen(incoming->transport);
    ISTHMUS_LOG(kInfo, "transport chosen", "producer={} transport={} refused=\"{}\"", incoming->producer,
                incoming->transport, incoming->refused);
  });
  if (!incoming->is_begun) return look_up(incoming, session);
  consume([&](ConsumerActions& out) { consumer_.session_found(incoming->handoff, session, now(), out); });
}

void Shell::refused(const std::shared_ptr<Incoming>& incoming, const Links::Way& way, const Error& why) {
  // A peer's scheme is no label: there could be any number of them.
  meters_.transport_refused(way.transport == nullptr ? "other" : way.transport->name(), why.code);
  incoming->refused +=
      fmt::format("{}{}: {}", incoming->refused.empty() ? "" : "; ", way.endpoint, why.text());
  // A process of this host that is there and silent would be as silent on its other endpoints.
  const bool is_silent = why.code == Code::kDeadlineExceeded && way.transport != nullptr &&
                         way.transport->capabilities().same_host_only;
  if (!is_silent && incoming->next_way < incoming->ways.size()) return dial(incoming);
  unreachable(incoming, {why.code, fmt::format("producer {} can't be reached: {}", incoming->producer,
                                               incoming->refused)});
}

void Shell::unreachable(const std::shared_ptr<Incoming>& incoming, const Error& why) {
  if (!incoming->is_begun) return end_unbegun(incoming, why);
  consume([&](ConsumerActions& out) { consumer_.session_refused(incoming->handoff, why, now(), out); });
}

void Shell::begin(const std::shared_ptr<Incoming>& incoming, SessionId session) {
  Begin begin{.session = session,
              .ticket = incoming->fetch.ticket,
              .target = descriptor_digest_,
              .wanted = {incoming->known, incoming->fetch.prompt.size()},
              .token_digest = incoming->fetch.prompt.digest(),
              .policy = options_.policy,
              .deadline = incoming->fetch.deadline,
              .destination = incoming->fetch.destination - incoming->retained,
              .tag = incoming->id,
              .is_member = incoming->fetch.is_member,
              .retained = incoming->retained};
  Result<wire::HandoffId> handoff = Error{Code::kInternal, "not asked"};
  consume([&](ConsumerActions& out) {
    handoff = consumer_.begin(std::move(begin), now(), out);
    if (!handoff.ok()) return;
    incoming->handoff = *handoff;
    incoming->is_begun = true;
    by_handoff_[*handoff] = incoming->id;
    if (options_.on_state) options_.on_state(ConsumerState::kOpening);
  });
  if (!handoff.ok() && begin_whole(incoming)) return;
  if (!handoff.ok()) return end_unbegun(incoming, handoff.error());
  poster_.post([this, incoming] { plan_ahead(*incoming); });  // Once OPEN has left.
}

void Shell::end_unbegun(const std::shared_ptr<Incoming>& incoming, const Error& why) {
  if (incoming->is_ended || incoming->is_begun) return;
  incoming->is_ended = true;
  incoming->held.reset();
  fetches_.erase(incoming->id);
  const TerminalKind kind = terminal_kind(why.code);
  meters_.ended("consumer", kind);
  incoming->events.ended(nullptr, ending_of(*incoming, kind, why));
}

std::shared_ptr<Shell::Incoming> Shell::find(const wire::HandoffId& handoff) const {
  const auto at = by_handoff_.find(handoff);
  if (at == by_handoff_.end()) return nullptr;
  const auto fetch = fetches_.find(at->second);
  return fetch == fetches_.end() ? nullptr : fetch->second;
}

Ending Shell::ending_of(const Incoming& incoming, TerminalKind kind, const Status& why) const {
  Ending ending;
  ending.kind = kind;
  ending.bytes = incoming.bytes;
  ending.stored_bytes = incoming.stored_bytes;
  ending.transport = incoming.transport;
  if (!why.ok()) ending.error = why.error();
  if (incoming.plan) {
    ending.wire = incoming.wire;
    ending.chunks = static_cast<std::uint32_t>(incoming.plan->chunk_count());
  }
  return ending;
}

void Shell::carry_out(ConsumerAction& action) {
  std::visit(
      [this](auto& one) {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, MakePlan>) {
          if (const auto incoming = find(one.handoff)) {
            incoming->planned_at = now();
            meters_.stage("open", incoming->planned_at - incoming->begun_at);
          }
          make_plan(one, false);
        } else {
          act(one);
        }
      },
      action);
}

// Its inputs are known before PLAN comes: that is for both ends to agree on what each has made by itself.
void Shell::plan_ahead(const Incoming& incoming) {
  const std::optional<MakePlan> coming = consumer_.coming_plan(incoming.handoff);
  // A failure is told when the core asks.
  if (coming) (void)incoming_plan(*coming);
}

Result<std::shared_ptr<const transform::Plan>> Shell::incoming_plan(const MakePlan& action) {
  const auto incoming = find(action.handoff);
  if (!incoming) return Error{Code::kAborted, "the fetch is over"};
  if (incoming->plan) return incoming->plan;
  ISTHMUS_TRY(const kv::Descriptor* source, descriptor_of_peer(action.source));
  if (!incoming->fetch.is_member && (transform::is_split(*source) || transform::is_split(descriptor_)))
    return Error{Code::kIncompatible, "a state on several ranks is for a group of them, not for one alone"};
  if (incoming->events.planned) ISTHMUS_TRY(incoming->events.planned(*source));
  ISTHMUS_TRY(auto plan,
              made_plan(action, *source, descriptor_, {incoming->fetch.source_rank, options_.rank}));
  ISTHMUS_TRY(transform::Placer placer, transform::Placer::make(plan, descriptor_, options_.rank));
  incoming->plan = plan;
  incoming->wire = one_line(plan->wire());
  incoming->moved = meters_.moved("consumer", incoming->wire);
  incoming->placer = std::make_unique<transform::Placer>(std::move(placer));
  incoming->tiles.assign(plan->chunk_count(), {});
  return plan;
}

void Shell::act(const ReserveCapacity& action) {
  const auto incoming = find(action.handoff);
  if (!incoming) return;
  const auto refuse = [&](const Error& why) {
    consume([&](ConsumerActions& out) {
      consumer_.capacity_refused(action.handoff, action.attempt, why, now(), out);
    });
  };
  // Pages used before: fresh ones cost as much as all chunks that land in them.
  if (spare_staging_.bytes().size() >= action.slots * action.slot_bytes) {
    incoming->staging = std::exchange(spare_staging_, {});
  } else {
    Result<device::HostBuffer> staging = device::HostBuffer::allocate(action.slots * action.slot_bytes);
    if (!staging.ok()) return refuse(staging.error());
    incoming->staging = *std::move(staging);
  }
  incoming->slot_bytes = action.slot_bytes;
  incoming->slots.assign(action.slots, {});
  incoming->wants_destination = true;
  incoming->events.reserve(
      {incoming->known, incoming->fetch.prompt.size()},
      [this, incoming, attempt = action.attempt](Result<std::vector<kv::Binding>> bindings) {
        destination_ready(incoming, attempt, std::move(bindings));
      });
}

void Shell::destination_ready(const std::shared_ptr<Incoming>& incoming, std::uint32_t attempt,
                              Result<std::vector<kv::Binding>> bindings) {
  if (is_closing_) return;
  incoming->held.reset();  // The destination begins with what was known, or won't be used.
  if (!bindings.ok()) {
    incoming->wants_destination = false;
    consume([&](ConsumerActions& out) {
      consumer_.capacity_refused(incoming->handoff, attempt, bindings.error(), now(), out);
    });
    return forget_if_over(*incoming);
  }
  incoming->has_destination = true;
  if (!incoming->wants_destination) {  // ReleaseDestination came first.
    incoming->has_destination = false;
    incoming->events.release();
    return forget_if_over(*incoming);
  }
  if (const Status distinct = check_destination(*bindings); !distinct.ok()) {
    incoming->has_destination = incoming->wants_destination = false;
    incoming->events.release();
    consume([&](ConsumerActions& out) {
      consumer_.capacity_refused(incoming->handoff, attempt, distinct.error(), now(), out);
    });
    return forget_if_over(*incoming);
  }
  incoming->destination = *std::move(bindings);
  incoming->ready_at = now();
  meters_.stage("reserve", incoming->ready_at - incoming->planned_at);
  consume([&](ConsumerActions& out) { consumer_.capacity_ready(incoming->handoff, attempt, now(), out); });
}

Status Shell::check_destination(const std::vector<kv::Binding>& bindings) const {
  if (bindings.size() != descriptor_.groups.size()) {
    return Error{Code::kInternal, fmt::format("the engine bound {} layer groups of {}", bindings.size(),
                                              descriptor_.groups.size())};
  }
  for (const kv::Binding& binding : bindings) ISTHMUS_TRY(transform::check_blocks(binding));
  return ok_status();
}

Result<transport::Pieces> Shell::judge(ChannelId channel, const transport::Incoming& message) {
  ISTHMUS_TRY(wire::ChunkHeader header, wire::decode_chunk_header(message.immediate));
  ISTHMUS_TRY(const Judgement judgement, consumer_.judge(channel, header, message.bytes, now()));
  const auto incoming = judgement.place || judgement.early ? find(judgement.handoff) : nullptr;
  Landing& landing = landing_[channel] = {incoming, judgement.slot};
  if (incoming && judgement.early) {
    landing.early = std::make_unique<EarlyChunk>(EarlyChunk{channel, {.header = std::move(header)}});
    if (message.is_shared) return transport::Pieces();
    std::vector<std::byte>& memory = landing.early->landed.memory;
    memory.resize(message.bytes);
    return transport::Pieces{memory};
  }
  if (!incoming) {
    if (message.is_shared) return transport::Pieces();
    std::vector<std::byte>& dropped = discarded_[channel];
    dropped.resize(message.bytes);
    return transport::Pieces{dropped};
  }
  // A void chunk that another channel still receives in place would write over this one.
  for (const auto& [other, coming] : landing_) {
    if (other == channel || coming.incoming != incoming || coming.early) continue;
    const Landed& stale = incoming->slots.at(coming.slot);
    if (stale.is_in_place && stale.header.address.generation != header.address.generation)
      return Error{Code::kAborted, "a chunk of an earlier generation is still coming"};
  }
  Landed& landed = incoming->slots.at(judgement.slot);
  landed = {.header = std::move(header), .body = {}, .is_in_place = false};
  if (message.is_shared) return transport::Pieces();
  // Straight to where it belongs, if it can go there: nothing is owned before it has been read back. A
  // binding that is refused is for placing to tell.
  if (landed.header.codec == wire::Codec::kNone) {
    transport::Pieces pieces;
    const transform::Chunk chunk = incoming->plan->chunk(judgement.index);
    const Result<bool> is_shown = incoming->in_place.show(incoming->plan, descriptor_, options_.rank, chunk,
                                                          incoming->destination[chunk.group], pieces);
    landed.is_in_place = is_shown.ok() && *is_shown;
    if (landed.is_in_place) return pieces;
  }
  return transport::Pieces{
      incoming->staging.bytes().subspan(judgement.slot * incoming->slot_bytes, judgement.bytes)};
}

void Shell::arrived(ChannelId channel, transport::Received body) {
  auto node = landing_.extract(channel);
  if (node.empty()) return;
  Landing& landing = node.mapped();
  if (landing.early) {
    landing.early->landed.body = std::move(body);
    landing.incoming->early.push_back(std::move(*landing.early));
    return give_early(*landing.incoming);
  }
  if (landing.incoming) landing.incoming->slots.at(landing.slot).body = std::move(body);
  consume([&](ConsumerActions& out) { consumer_.chunk_arrived(channel, now(), out); });
}

// Places what isn't in its place, and reads it back at once, while it is still in the cache; nobody else
// writes here before the state is owned. The mover's.
Status Shell::place(Incoming& incoming, const transform::Chunk& chunk, const Landed& landed,
                    std::span<Digest128> stored) {
  const std::vector<Digest128>& tiles = landed.header.tiles;
  const kv::Binding& destination = incoming.destination[chunk.group];
  if (landed.is_in_place) {
    return timed(busy_.verify, [&] { return incoming.in_place.read->verify(chunk, destination, tiles); });
  }
  transform::Placer& placer = *incoming.placer;
  transport::Received restored;
  const transport::Received* body = &landed.body;
  if (landed.header.codec != wire::Codec::kNone) {
    if (body->view != nullptr) return Error{Code::kMalformed, "a body under a codec, shown where it lies"};
    ISTHMUS_TRY(restored.bytes, timed(busy_.decode, [&] {
                  return compression_.restore(chunk, landed.header, landed.body.bytes);
                }));
    body = &restored;
  }
  ISTHMUS_TRY(timed(busy_.place, [&] {
    return place_body(placer, {chunk, *body, tiles}, destination, stored, incoming.copy);
  }));
  return timed(busy_.verify, [&] { return placer.verify(chunk, destination, tiles, stored, body->bytes); });
}

void Shell::act(const PlaceChunk& action) {
  const auto incoming = find(action.handoff);
  ISTHMUS_CHECK(incoming != nullptr);
  struct Placing {
    Landed landed;
    std::vector<Digest128> stored;
    Status status;
  };
  auto placing = std::make_shared<Placing>();
  placing->landed = std::exchange(incoming->slots.at(action.slot), {});
  const transform::Chunk chunk = incoming->plan->chunk(action.index);
  placing->stored.resize(incoming->placer->stored_count(chunk));
  mover_->run(
      chunk.body_bytes,
      [this, incoming, placing, chunk] {
        placing->status = place(*incoming, chunk, placing->landed, placing->stored);
      },
      [this, incoming, placing, action, bytes = chunk.body_bytes] {
        placing->landed.body = {};  // A view: its memory is the producer's again.
        if (is_closing_) return;
        if (placing->status.ok()) {
          const std::uint64_t stored_bytes = placing->landed.header.stored_bytes;
          incoming->tiles.at(action.index) = std::move(placing->landed.header.tiles);
          incoming->bytes += bytes;
          incoming->stored_bytes += stored_bytes;
          incoming->moved.add(bytes, stored_bytes);
        }
        consume([&](ConsumerActions& out) { consumer_.chunk_placed(action, placing->status, now(), out); });
      });
}

void Shell::act(const Verify& action) {
  const auto incoming = find(action.handoff);
  ISTHMUS_CHECK(incoming != nullptr);
  incoming->verifying_at = now();
  meters_.stage("receive", incoming->verifying_at - incoming->ready_at);
  auto status = std::make_shared<Status>();
  mover_->run(
      incoming->plan->chunk_count() * sizeof(transform::TileKey),
      [incoming, status, root = action.seal.tile_root] {
        transform::TileRoot sum;
        for (const transform::Chunk& chunk : incoming->plan->chunks()) {
          const auto& tiles = incoming->tiles[chunk.index];
          for (std::size_t i = 0; i < tiles.size(); ++i)
            sum.add(incoming->plan->tile_key(chunk, i), tiles[i]);
        }
        if (sum.root() != root) {
          *status = Error{Code::kCorrupt, "the tiles received aren't those that the producer sealed"};
        }
      },
      [this, incoming, status, action] {
        if (is_closing_) return;
        meters_.stage("verify", now() - incoming->verifying_at);
        consume([&](ConsumerActions& out) {
          consumer_.verified(action.handoff, action.attempt, *status, now(), out);
        });
      });
}

void Shell::act(const VoidChunks& action) {
  const auto incoming = find(action.handoff);
  if (!incoming || !incoming->plan) return;
  incoming->tiles.assign(incoming->plan->chunk_count(), {});
}

void Shell::act(const TakeEarly& action) {
  const auto incoming = find(action.handoff);
  if (!incoming) return;
  incoming->early_taken = action.attempt;
  give_early(*incoming);
  consume([&](ConsumerActions& out) { consumer_.early_given(action.handoff, action.attempt, now(), out); });
}

// Those of the attempt that has slots. What is older is dropped, what is newer waits.
void Shell::give_early(Incoming& incoming) {
  for (EarlyChunk& chunk : std::exchange(incoming.early, {})) {
    const std::uint32_t attempt = chunk.landed.header.address.attempt;
    if (attempt < incoming.early_taken) continue;
    if (attempt > incoming.early_taken) {
      incoming.early.push_back(std::move(chunk));
      continue;
    }
    const ChannelId channel = chunk.channel;
    Status right;
    consume([&, landed = &chunk.landed](ConsumerActions& out) {
      const Result<Judgement> judged = consumer_.early_chunk(channel, landed->header, out);
      right = judged.status();
      if (judged.ok() && judged->place) incoming.slots.at(judged->slot) = std::move(*landed);
    });
    if (right.ok()) continue;
    ISTHMUS_LOG(kWarn, "data channel closed", "session={} channel={} why=\"{}\"", channel.session,
                channel.number, right.error().text());
    links_->revoke(channel);
  }
}

// Every way is tried again: the one that broke may be the only one that works.
void Shell::act(const NeedSession& action) {
  const auto incoming = find(action.handoff);
  if (!incoming) return;
  incoming->next_way = 0;
  incoming->refused.clear();
  poster_.post([this, incoming] { dial(incoming); });
}

void Shell::act(const Verified& action) {
  if (const auto incoming = find(action.handoff)) incoming->events.verified(action.seal);
}

void Shell::act(Own& action) {
  const auto incoming = find(action.handoff);
  ISTHMUS_CHECK(incoming != nullptr);
  incoming->is_owned = true;
  meters_.stage("total", now() - incoming->begun_at);
  incoming->events.owned(action.seal, action.destination,
                         ending_of(*incoming, TerminalKind::kOwned, ok_status()));
}

void Shell::act(const ReleaseStaging& action) {
  const auto incoming = find(action.handoff);
  if (!incoming) return;
  if (incoming->staging.bytes().size() > spare_staging_.bytes().size()) {
    spare_staging_ = std::exchange(incoming->staging, {});
  }
  incoming->staging = {};
  incoming->copy = {};
  incoming->slots.clear();  // And views with them.
}

void Shell::act(const ReleaseDestination& action) {
  const auto incoming = find(action.handoff);
  if (!incoming) return;
  incoming->wants_destination = false;
  if (!std::exchange(incoming->has_destination, false)) return;  // destination_ready() will give it back.
  incoming->events.release();
  forget_if_over(*incoming);
}

void Shell::act(const ConsumerHandoffEnded& action) {
  const auto incoming = find(action.handoff);
  if (!incoming || incoming->is_ended) return;
  const bool was_refused_memory =
      action.kind == TerminalKind::kExhausted && action.destination == Destination::kNone;
  if (was_refused_memory && begin_whole(incoming)) return;
  incoming->is_ended = true;
  incoming->held.reset();
  incoming->early.clear();
  meters_.ended("consumer", action.kind);
  Ending ending = ending_of(*incoming, action.kind, action.why);
  ending.retry_after = action.retry_after;
  ISTHMUS_LOG(kInfo, "handoff ended",
              "side=consumer handoff={} outcome={} bytes={} stored={} chunks={} ms={:.1f}{}",
              action.handoff.text(), name(action.kind), ending.bytes, ending.stored_bytes, ending.chunks,
              std::chrono::duration<double, std::milli>(now() - incoming->begun_at).count(),
              action.why.ok() ? "" : fmt::format(" why=\"{}\"", action.why.error().text()));
  if (action.destination == Destination::kQuarantined) {
    meters_.quarantined();
  }
  forget_if_over(*incoming);
  if (action.kind == TerminalKind::kOwned) return;  // Told by Own.
  incoming->events.ended(action.seal ? &*action.seal : nullptr, ending);
}

// A destination that is still out keeps its fetch, so that it can be given back.
void Shell::forget_if_over(const Incoming& incoming) {
  if (!incoming.is_ended) return;
  if (!incoming.is_owned && (incoming.has_destination || incoming.wants_destination)) return;
  const FetchId id = incoming.id;
  by_handoff_.erase(incoming.handoff);
  fetches_.erase(id);
}

}  // namespace isthmus::handoff
