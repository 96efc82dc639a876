// SPDX-License-Identifier: Apache-2.0
// The shell's producer side: reservations, packing, sending.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "handoff/agent/shell.h"
#include "kv/choose.h"

namespace isthmus::handoff {
namespace {

// Chunks packed and not yet let go by the channel: enough that the mover works beside it. What is copied out
// must still be in the cache then, so few; what is shown is held until the peer has placed it.
constexpr std::uint32_t kUnsentMax = 16, kUnsentGatheredMax = 2;

transport::ConstPieces pieces_of(const transform::BodyRuns& runs) {
  return {runs.begin(), runs.end()};
}

}  // namespace

// One chunk between the mover and the socket.
struct Shell::Packing {
  SendChunk send;
  std::shared_ptr<Outgoing> outgoing;
  std::shared_ptr<const engine::ExportedKv> memory;  // Until it is read for the last time.
  transport::PayloadMemory body;                     // Empty if it is sent in place:
  transform::BodyRuns runs;
  StoredBody stored;
  std::vector<Digest128> tiles;
  Status status;
};

Result<Offered> Shell::offer(const Offer& offer, std::function<void(const Ending&)> ended) {
  Reservation spec{.id = random_id(),
                   .nonce = random_id(),
                   .source = descriptor_digest_,
                   .tokens = {0, offer.prompt_tokens},
                   .lease = options_.timings.lease,
                   .deadline = offer.deadline,
                   .policy = options_.policy,
                   .pinned = offer.pinned,
                   .membership = offer.membership};
  Result<std::string> ticket = Error{Code::kInternal, "not asked"};
  Held& held = held_[spec.id];
  held.ended = std::move(ended);
  held.offered_at = now();
  produce([&](ProducerActions& out) {
    ticket = producer_.admitted(spec, now(), out);
    if (ticket.ok() && options_.on_state) options_.on_state(ProducerState::kPinned);
  });
  if (!ticket.ok()) {
    held_.erase(spec.id);
    return ticket.error();
  }
  return Offered{spec.id, *std::move(ticket)};
}

void Shell::publish(Id128 reservation, kv::TokenRange range,
                    std::shared_ptr<const engine::ExportedKv> memory) {
  const auto at = held_.find(reservation);
  if (at == held_.end()) return;
  ISTHMUS_CHECK(memory->bindings().size() == descriptor_.groups.size());
  at->second.memory.emplace_back(range, std::move(memory));
  produce([&](ProducerActions& out) { producer_.grew(reservation, range.end, now(), out); });
}

void Shell::seal(Id128 reservation, SealInfo seal) {
  PrefillResult result{
      .token_digest = seal.token_digest, .first_tokens = std::move(seal.first_tokens), .finish = seal.finish};
  produce([&](ProducerActions& out) { producer_.prefill_done(reservation, std::move(result), now(), out); });
}

void Shell::fail(Id128 reservation, const Error& why) {
  produce([&](ProducerActions& out) { producer_.prefill_failed(reservation, why, now(), out); });
}

void Shell::withdraw(Id128 reservation, const std::string& why) {
  produce([&](ProducerActions& out) { producer_.cancel(reservation, {Code::kCancelled, why}, now(), out); });
}

void Shell::reach(const std::vector<std::string>& endpoints) {
  auto made = std::make_shared<Reach>();
  made->ways = links_->ways(endpoints);
  poster_.post([this, made] { reach(made); });
}

void Shell::reach(const std::shared_ptr<Reach>& reach) {
  while (reach->next_way < reach->ways.size()) {
    const Links::Way& way = reach->ways[reach->next_way++];
    if (way.transport == nullptr) continue;
    return links_->connect(way, "", [this, reach, &way](const Result<SessionId>& session) {
      if (session.ok()) {
        if (reached_.emplace(*session, reach).second) meters_.consumer_reached();
        return;
      }
      meters_.transport_refused(way.transport->name(), session.code());
      reach->refused +=
          fmt::format("{}{}: {}", reach->refused.empty() ? "" : "; ", way.endpoint, session.error().text());
      this->reach(reach);
    });
  }
  ISTHMUS_LOG(kWarn, "consumer not reached", "why=\"{}\"",
              reach->refused.empty() ? "no endpoint of a transport in use here" : reach->refused);
}

// A connection that this side dialled is lost: nobody else can dial it again.
void Shell::reach_again(SessionId session) {
  const auto found = reached_.find(session);
  if (found == reached_.end()) return;
  const auto views = producer_.view(options_.limits.reservations_max);
  // Sealed too: the consumer may not have all that was sent.
  const bool is_needed = std::ranges::any_of(views, [&](const ReservationView& view) {
    const bool is_held = view.state == ProducerState::kSevered || view.state == ProducerState::kSealed;
    return is_held && view.session == session;
  });
  const std::shared_ptr<Reach> again = found->second;
  if (links_->transport(session).empty()) reached_.erase(found);
  if (!is_needed) return;
  again->next_way = 0;
  again->refused.clear();
  poster_.post([this, again] { reach(again); });
}

Result<std::string> Shell::supersede(Id128 reservation) {
  Result<std::string> ticket = Error{Code::kInternal, "not asked"};
  produce([&](ProducerActions& out) { ticket = producer_.supersede(reservation, random_id(), now(), out); });
  return ticket;
}

void Shell::carry_out(ProducerAction& action) {
  std::visit(
      [this](auto& one) {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, MakePlan>) {
          make_plan(one, true);
        } else {
          act(one);
        }
      },
      action);
}

Result<std::shared_ptr<const transform::Plan>> Shell::outgoing_plan(const MakePlan& action) {
  ISTHMUS_TRY(const kv::Descriptor* target, descriptor_of_peer(action.target));
  ISTHMUS_TRY(auto plan, made_plan(action, descriptor_, *target, {options_.rank, action.target_rank}));
  auto outgoing = std::make_shared<Outgoing>(Outgoing{plan, {}, {}, one_line(plan->wire()), {}, 0, {}});
  outgoing->moved = meters_.moved("producer", outgoing->wire);
  poster_.post([this, outgoing] { (void)make_packer(*outgoing); });  // While PLAN is under way.
  outgoing_[{action.handoff, action.attempt}] = std::move(outgoing);
  return plan;
}

// Decided here alone: it is this end's link that chunks take.
wire::Codec Shell::codec_of(const transform::Plan& plan, const MakePlan& action) const {
  if (!action.may_compress || !options_.prices) return wire::Codec::kNone;
  kv::Prices prices = *options_.prices;
  prices.tokens = action.tokens.size();
  return kv::compression_pays(descriptor_, plan.wire(), prices) ? wire::Codec::kZstdPlanes
                                                                : wire::Codec::kNone;
}

Status Shell::make_packer(Outgoing& outgoing) const {
  if (outgoing.packer) return ok_status();
  ISTHMUS_TRY(outgoing.packer, transform::Packer::make(outgoing.plan, descriptor_, options_.rank));
  return ok_status();
}

void Shell::act(SendChunk& action) {
  const auto at = outboxes_.find(action.channel);
  if (at == outboxes_.end())
    return report_lost(action.chunk);  // The channel went while this action was queued.
  at->second.queue.emplace_back(action);
  run_outbox(action.channel);
}

void Shell::act(SendFence& action) {
  const auto at = outboxes_.find(action.channel);
  if (at == outboxes_.end()) return;
  at->second.queue.emplace_back(action);
  run_outbox(action.channel);
}

void Shell::report_lost(const ChunkRef& chunk) {
  produce([&](ProducerActions& out) {
    producer_.chunk_sent(chunk, Error{Code::kUnavailable, "the data channel is gone"}, now(), out);
  });
}

// Starts what may start. A fence waits until every chunk before it has been handed to the channel.
void Shell::run_outbox(ChannelId channel) {
  const auto at = outboxes_.find(channel);
  const transport::Channel* open = links_->data(channel);
  if (at == outboxes_.end() || open == nullptr) return;
  Outbox& box = at->second;
  const std::uint32_t unsent_max = open->gathers() ? kUnsentGatheredMax : kUnsentMax;
  while (!box.queue.empty()) {
    if (const auto* fence = std::get_if<SendFence>(&box.queue.front())) {
      if (box.packing > 0) return;
      const Status sent = links_->data(channel)->send_fence(fence->token);
      box.queue.pop_front();
      if (!sent.ok()) return links_->revoke(channel);
      continue;
    }
    if (box.unsent >= unsent_max) return;
    const SendChunk send = std::get<SendChunk>(box.queue.front());
    box.queue.pop_front();
    ++box.unsent;
    ++box.packing;
    start_packing(channel, send);
  }
}

std::shared_ptr<const engine::ExportedKv> Shell::memory_of(const Held& held,
                                                           const kv::TokenRange& tokens) const {
  const auto at = std::find_if(held.memory.begin(), held.memory.end(),
                               [&](const auto& piece) { return piece.first.contains(tokens); });
  return at == held.memory.end() ? nullptr : at->second;
}

void Shell::start_packing(ChannelId channel, const SendChunk& send) {
  auto packing = std::make_shared<Packing>();
  packing->send = send;
  packing->send.channel = channel;
  const auto outgoing = outgoing_.find({send.chunk.handoff, send.chunk.attempt});
  const auto held = held_.find(send.reservation);
  const auto finish = [this, packing] { packed(packing); };
  if (outgoing == outgoing_.end() || held == held_.end()) {
    packing->status = Error{Code::kAborted, "the attempt or the reservation is gone"};
    return poster_.post(finish);
  }
  packing->outgoing = outgoing->second;
  // A later generation voids the tiles; a late chunk of an earlier one must not.
  if (packing->outgoing->generation < send.chunk.generation) {
    packing->outgoing->generation = send.chunk.generation;
    packing->outgoing->tiles.assign(packing->outgoing->plan->chunk_count(), {});
  }
  const transform::Chunk chunk = packing->outgoing->plan->chunk(send.chunk.index);
  packing->memory = memory_of(held->second, chunk.box.tokens);
  if (packing->memory == nullptr) {
    packing->status =
        Error{Code::kInternal, fmt::format("chunk {} isn't in one published range", send.chunk.index)};
    return poster_.post(finish);
  }
  packing->tiles.resize(chunk.tile_count());
  if (packing->status = take_body(*packing, chunk); !packing->status.ok()) return poster_.post(finish);
  mover_->run(chunk.body_bytes, [this, packing, chunk] { packing->status = pack(*packing, chunk); }, finish);
}

// The mover's.
Status Shell::pack(Packing& packing, const transform::Chunk& chunk) {
  const kv::Binding& binding = packing.memory->bindings()[chunk.group];
  Outgoing& attempt = *packing.outgoing;
  packing.stored = {.bytes = chunk.body_bytes};
  ISTHMUS_TRY(timed(busy_.pack, [&] {
    return packing.runs.empty() ? attempt.packer->pack(chunk, binding, packing.body.bytes, packing.tiles)
                                : attempt.in_place.read->digest(chunk, binding, packing.tiles);
  }));
  if (packing.send.codec == wire::Codec::kNone) return ok_status();
  packing.stored = timed(busy_.encode, [&] { return compression_.shrink(chunk, packing.body.bytes); });
  return ok_status();
}

// The engine's memory itself where the channel can send it as it is, else memory to pack into.
Status Shell::take_body(Packing& packing, const transform::Chunk& chunk) {
  transport::Channel& channel = *links_->data(packing.send.channel);
  Outgoing& outgoing = *packing.outgoing;
  if (channel.gathers() && packing.send.codec == wire::Codec::kNone) {
    ISTHMUS_TRY(const bool is_shown,
                outgoing.in_place.show(outgoing.plan, descriptor_, options_.rank, chunk,
                                       packing.memory->bindings()[chunk.group], packing.runs));
    if (is_shown) return ok_status();
  }
  ISTHMUS_TRY(make_packer(outgoing));
  ISTHMUS_TRY(packing.body, channel.payload_memory(chunk.body_bytes));
  return ok_status();
}

void Shell::packed(const std::shared_ptr<Packing>& packing) {
  const ChunkRef ref = packing->send.chunk;
  const ChannelId channel = packing->send.channel;
  const bool is_in_place = !packing->runs.empty();
  if (!is_in_place) packing->memory = nullptr;
  const auto report = [this, ref](const Status& status) {
    produce([&](ProducerActions& out) { producer_.chunk_sent(ref, status, now(), out); });
  };
  const auto at = outboxes_.find(channel);
  transport::Channel* open = links_->data(channel);
  if (at == outboxes_.end() || open == nullptr)
    return report(Error{Code::kUnavailable, "the data channel is gone"});
  --at->second.packing;
  if (!packing->status.ok()) {
    --at->second.unsent;
    report(packing->status);
    return run_outbox(channel);
  }
  const transform::Chunk chunk = packing->outgoing->plan->chunk(ref.index);
  Result<std::vector<std::byte>> header =
      wire::encode_chunk_header({.address = {ref.handoff, ref.attempt, ref.generation},
                                 .plan = packing->outgoing->plan->digest(),
                                 .index = ref.index,
                                 .slot = packing->send.slot,
                                 .group = chunk.group,
                                 .box = chunk.box,
                                 .codec = packing->stored.codec,
                                 .raw_bytes = chunk.body_bytes,
                                 .stored_bytes = packing->stored.bytes,
                                 .body_checksum = packing->stored.checksum,
                                 .tiles = packing->tiles});
  Status sent = header.status();
  if (sent.ok()) {
    if (packing->outgoing->generation == ref.generation)
      packing->outgoing->tiles.at(ref.index) = packing->tiles;
    transport::ConstPieces pieces =
        is_in_place ? pieces_of(packing->runs)
                    : transport::ConstPieces{packing->body.bytes.first(packing->stored.bytes)};
    sent = open->send_data(*header, std::move(pieces),
                           [this, packing, report, channel, bytes = chunk.body_bytes](Status status) {
                             packing->body = {};
                             packing->memory = nullptr;
                             if (is_closing_) return;
                             if (const auto box = outboxes_.find(channel); box != outboxes_.end())
                               --box->second.unsent;
                             if (status.ok()) {
                               packing->outgoing->moved.add(bytes, packing->stored.bytes);
                               if (const auto held = held_.find(packing->send.reservation);
                                   held != held_.end()) {
                                 held->second.ending.bytes += bytes;
                                 held->second.ending.stored_bytes += packing->stored.bytes;
                                 ++held->second.ending.chunks;
                               }
                             } else {
                               // The pages are as good as they were, whatever became of the channel.
                               status = Error{Code::kUnavailable, status.error().detail};
                             }
                             report(status);
                             run_outbox(channel);
                           });
  }
  if (!sent.ok()) {
    --at->second.unsent;
    report(sent);
  } else if (!is_in_place) {  // Else the pages are read until it is sent.
    produce([&](ProducerActions& out) { producer_.chunk_packed(ref, now(), out); });
  }
  run_outbox(channel);
}

// The channel is gone: what was queued is reported lost; what is being packed reports itself.
void Shell::close_outbox(ChannelId channel) {
  auto node = outboxes_.extract(channel);
  if (node.empty()) return;
  for (const auto& item : node.mapped().queue) {
    if (const auto* send = std::get_if<SendChunk>(&item)) report_lost(send->chunk);
  }
}

void Shell::act(const ComputeSeal& action) {
  const auto at = outgoing_.find({action.handoff, action.attempt});
  if (at == outgoing_.end() || at->second->generation != action.generation) return;
  const Outgoing& outgoing = *at->second;
  transform::TileRoot root;
  for (const transform::Chunk& chunk : outgoing.plan->chunks()) {
    const auto& tiles = outgoing.tiles.at(chunk.index);
    ISTHMUS_CHECK(tiles.size() == chunk.tile_count());
    for (std::size_t i = 0; i < tiles.size(); ++i) root.add(outgoing.plan->tile_key(chunk, i), tiles[i]);
  }
  const Digest128 digest = root.root();
  produce([&](ProducerActions& out) {
    producer_.seal_ready(action.handoff, action.attempt, action.generation, digest, now(), out);
  });
}

void Shell::act(const ResumeAttempt& action) {
  const auto at = outgoing_.find({action.handoff, action.attempt});
  if (at != outgoing_.end()) outgoing_[{action.handoff, action.next}] = at->second;
}

void Shell::act(const ProducerHandoffEnded& action) {
  const auto at = outgoing_.find({action.handoff, action.attempt});
  if (at != outgoing_.end()) {
    if (const auto held = held_.find(action.reservation); held != held_.end()) {
      held->second.ending.wire = at->second->wire;
    }
    outgoing_.erase(at);
  }
  meters_.ended("producer", action.kind);
  if (action.fault != wire::TicketFault::kNone) {
    meters_.ticket_refused(wire::name(action.fault));
  }
  if (!action.why.ok()) {
    ISTHMUS_LOG(kInfo, "handoff ended", "side=producer handoff={} outcome={} why=\"{}\"",
                action.handoff.text(), name(action.kind), action.why.error().text());
  }
}

void Shell::act(const ReservationEnded& action) {
  const auto at = held_.find(action.reservation);
  if (at == held_.end()) return;
  at->second.ending.kind = action.kind;
  if (!action.why.ok()) at->second.ending.error = action.why.error();
}

void Shell::act(const ReleasePins& action) {
  auto node = held_.extract(action.reservation);
  if (node.empty()) return;
  node.mapped().memory.clear();
  if (node.mapped().ended) node.mapped().ended(node.mapped().ending);
}

}  // namespace isthmus::handoff
