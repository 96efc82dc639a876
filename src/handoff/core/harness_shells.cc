// SPDX-License-Identifier: Apache-2.0
// Test only: the shells of the virtual world, and what must hold of each action.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "base/bytes.h"
#include "base/digest.h"
#include "handoff/core/harness_parts.h"

namespace isthmus::handoff::testing {
namespace {

Digest128 root_of(const std::vector<std::uint64_t>& values) {
  return digest128(bytes_of(std::span<const std::uint64_t>(values)));
}

}  // namespace

template <typename Actions, typename Action>
bool World::act_alike(std::size_t index, const Action& action) {
  if (const auto* send = std::get_if<SendFrame>(&action)) {
    send_control(index, send->session, send->frame);
  } else if (const auto* plan = std::get_if<MakePlan>(&action)) {
    at(index, ms(1, 3), [this, index, plan = *plan] {
      Actions out;
      const auto ready = [&](auto& core) {
        core.plan_ready(plan.handoff, plan.attempt, plan_facts(plan.tokens), now(), out);
      };
      if constexpr (std::is_same_v<Actions, ProducerActions>) {
        ready(*agents_[index]->producer);
      } else {
        ready(*agents_[index]->consumer);
      }
      act(index, std::move(out));
    });
  } else if (const auto* revoke = std::get_if<RevokeChannel>(&action)) {
    const auto link = links_.find(revoke->channel.session);
    if (link != links_.end()) channel_down(link->second, revoke->channel.number);
  } else {
    return false;
  }
  return true;
}

// --- Producer's shell

void World::act(std::size_t index, ProducerActions actions) {
  for (const ProducerAction& action : actions) {
    if (!agents_[index]->alive) return;
    Agent& agent = *agents_[index];
    agent.witness->sees(action);
    if (act_alike<ProducerActions>(index, action)) continue;
    if (const auto* chunk = std::get_if<SendChunk>(&action)) {
      send_chunk(index, *chunk);
    } else if (const auto* fence = std::get_if<SendFence>(&action)) {
      const auto found = links_.find(fence->channel.session);
      if (found == links_.end() || !found->second->channels.contains(fence->channel.number)) continue;
      send_data(found->second, fence->channel.number, [this, link = found->second, sent = *fence] {
        ConsumerActions out;
        agents_[link->consumer]->consumer->fence_seen(sent.channel, sent.token, now(), out);
        act(link->consumer, std::move(out));
      });
    } else if (const auto* seal = std::get_if<ComputeSeal>(&action)) {
      at(index, ms(1, 2), [this, index, seal = *seal] {
        std::vector<std::uint64_t> values;
        for (const auto& [packed_index, value] :
             agents_[index]->packed[{seal.handoff, seal.attempt, seal.generation}])
          values.push_back(value);
        ProducerActions out;
        agents_[index]->producer->seal_ready(seal.handoff, seal.attempt, seal.generation, root_of(values),
                                             now(), out);
        act(index, std::move(out));
      });
    } else if (const auto* pins = std::get_if<ReleasePins>(&action)) {
      Pages& pages = *agent.pages.at(pins->reservation);
      pages.released = true;
      std::ranges::fill(pages.values, kGarbage);
    } else if (const auto* over = std::get_if<ReservationEnded>(&action)) {
      agent.pages.at(over->reservation)->ended = true;
      if (over->kind == TerminalKind::kExpired) check_lease(over->reservation);
    } else if (const auto* ended = std::get_if<ProducerHandoffEnded>(&action)) {
      ++outcome_.producer_ends[std::string(name(ended->kind))];
    }
  }
}

void World::send_chunk(std::size_t index, const SendChunk& send) {
  at(index, chance(faults_.sticks) ? ms(3000, 12000) : ms(1, 4), [this, index, send] {
    Agent& agent = *agents_[index];
    const Pages& pages = *agent.pages.at(send.reservation);
    if (pages.released) violation("pages are read after their release");
    const std::uint64_t value = pages.values[send.chunk.index];
    agent.packed[{send.chunk.handoff, send.chunk.attempt, send.chunk.generation}][send.chunk.index] = value;
    const auto link = links_.find(send.channel.session);
    ProducerActions out;
    if (link == links_.end() || !link->second->channels.contains(send.channel.number)) {
      agent.producer->chunk_sent(send.chunk, Error{Code::kUnavailable, "channel is down"}, now(), out);
    } else {
      chunk_message(link->second, index, send, value);
      agent.producer->chunk_packed(send.chunk, now(), out);
    }
    act(index, std::move(out));
  });
}

void World::chunk_message(const std::shared_ptr<Link>& link, std::size_t producer, const SendChunk& send,
                          std::uint64_t value) {
  const PlanFacts facts =
      plan_facts(requests_[agents_[producer]->pages.at(send.reservation)->request]->tokens);
  const wire::ChunkGeometry geometry = facts.geometry(send.chunk.index);
  wire::ChunkHeader header{{send.chunk.handoff, send.chunk.attempt, send.chunk.generation},
                           facts.digest,
                           send.chunk.index,
                           send.slot,
                           geometry.group,
                           geometry.box,
                           wire::Codec::kNone,
                           geometry.body_bytes,
                           geometry.body_bytes,
                           value,
                           {Digest128{}}};
  const std::uint32_t number = send.channel.number;
  auto flight = std::make_shared<Flight>(Flight{link, number});
  flying_[send.chunk.handoff].push_back(flight);
  const bool dies = chance(faults_.channel_dies);
  send_data(link, number, [this, link, number, header, value, dies, flight = std::move(flight)] {
    flight->channel = 0;  // It has arrived.
    if (dies) return channel_down(link, number);
    chunk_comes(link, number, *wire::decode_chunk_header(*wire::encode_chunk_header(header)), value);
  });
  // `sent` reports when the peer has taken it, or the channel is gone.
  auto report = std::make_shared<Task>();
  *report = [this, link, number, producer, chunk = send.chunk, weak = std::weak_ptr<Task>(report),
             due = link->channels[number]] {
    const bool up = link->channels.contains(number);
    const bool taken = now_ >= due && now_ >= agents_[link->consumer]->paused_until;
    if (up && !taken) {
      at(producer, std::chrono::milliseconds(20), [self = weak.lock()] { (*self)(); });
      return;
    }
    ProducerActions out;
    const Status status = up ? ok_status() : Status(Error{Code::kUnavailable, "channel is down"});
    agents_[producer]->producer->chunk_sent(chunk, status, now(), out);
    act(producer, std::move(out));
  };
  at(producer, link->channels[number] - now_, [report] { (*report)(); });
}

// --- Consumer's shell

void World::chunk_comes(const std::shared_ptr<Link>& link, std::uint32_t number,
                        const wire::ChunkHeader& header, std::uint64_t value) {
  const std::size_t index = link->consumer;
  const Result<Judgement> judgement =
      agents_[index]->consumer->judge({link->id, number}, header, header.stored_bytes, now());
  if (!judgement.ok()) {
    violation("an honest chunk is refused: " + judgement.error().text());
    return channel_down(link, number);
  }
  // Within the channel, before whatever comes next on it.
  Agent& agent = *agents_[index];
  if (judgement->place) {
    Memory& memory = *agent.memory.at(judgement->handoff.sequence);
    if (memory.staging_released || judgement->slot >= memory.staging.size()) {
      violation("a chunk lands in staging that isn't held");
    } else if (memory.placing.contains(judgement->slot)) {
      violation("a chunk lands in a slot that is being read");
    } else {
      memory.staging[judgement->slot] = value;
    }
  }
  ConsumerActions out;
  agent.consumer->chunk_arrived({link->id, number}, now(), out);
  act(index, std::move(out));
}

void World::act(std::size_t index, ConsumerActions actions) {
  for (const ConsumerAction& action : actions) {
    if (!agents_[index]->alive) return;
    Agent& agent = *agents_[index];
    agent.witness->sees(action);
    if (act_alike<ConsumerActions>(index, action)) continue;
    if (const auto* reserve = std::get_if<ReserveCapacity>(&action)) {
      agent.memory.at(reserve->handoff.sequence)->staging.assign(reserve->slots, kGarbage);
      const bool refuses = chance(faults_.refuses_memory);
      at(index, ms(0, 2), [this, index, refuses, reserve = *reserve] {
        ConsumerActions out;
        if (refuses) {
          agents_[index]->consumer->capacity_refused(reserve.handoff, reserve.attempt,
                                                     Error{Code::kExhausted, "no blocks"}, now(), out);
        } else {
          agents_[index]->consumer->capacity_ready(reserve.handoff, reserve.attempt, now(), out);
        }
        act(index, std::move(out));
      });
    } else if (const auto* place = std::get_if<PlaceChunk>(&action)) {
      place_chunk(index, *place);
    } else if (const auto* check = std::get_if<Verify>(&action)) {
      verify(index, *check);
    } else if (const auto* taken = std::get_if<Own>(&action)) {
      owned(index, *taken);
    } else if (const auto* staging = std::get_if<ReleaseStaging>(&action)) {
      Memory& memory = *agent.memory.at(staging->handoff.sequence);
      memory.staging_released = true;
      if (!memory.placing.empty()) violation("staging is released while it is read");
      check_quiet(staging->handoff, "staging is released");
    } else if (const auto* freed = std::get_if<ReleaseDestination>(&action)) {
      Memory& memory = *agent.memory.at(freed->handoff.sequence);
      memory.destination_released = true;
      if (!memory.placing.empty()) violation("a destination is released while it is written");
    } else if (const auto* ended = std::get_if<ConsumerHandoffEnded>(&action)) {
      consumer_ended(index, *ended);
    }
  }
}

void World::place_chunk(std::size_t index, const PlaceChunk& place) {
  const bool corrupt = chance(faults_.corrupt);
  agents_[index]->memory.at(place.handoff.sequence)->placing.insert(place.slot);
  at(index, chance(faults_.sticks) ? ms(3000, 12000) : ms(1, 3), [this, index, place, corrupt] {
    Memory& memory = *agents_[index]->memory.at(place.handoff.sequence);
    memory.placing.erase(place.slot);
    if (memory.destination_released || memory.staging_released || memory.owned) {
      violation("a chunk is placed into memory that is released or owned");
    } else {
      memory.destination[place.index] = memory.staging[place.slot];
    }
    ConsumerActions out;
    agents_[index]->consumer->chunk_placed(
        place, corrupt ? Status(Error{Code::kCorrupt, "tile"}) : ok_status(), now(), out);
    act(index, std::move(out));
  });
}

void World::verify(std::size_t index, const Verify& check) {
  at(index, ms(1, 4), [this, index, check] {
    const Memory& memory = *agents_[index]->memory.at(check.handoff.sequence);
    if (memory.destination_released) violation("released memory is read back");
    const bool equal = root_of(memory.destination) == check.seal.tile_root && !chance(faults_.corrupt);
    ConsumerActions out;
    agents_[index]->consumer->verified(check.handoff, check.attempt,
                                       equal ? ok_status() : Status(Error{Code::kCorrupt, "root"}), now(),
                                       out);
    act(index, std::move(out));
  });
}

void World::owned(std::size_t index, const Own& own) {
  Agent& agent = *agents_[index];
  Memory& memory = *agent.memory.at(own.handoff.sequence);
  Request& request = *requests_[memory.request];
  ++outcome_.owned;
  memory.owned = true;
  if (!memory.placing.empty()) violation("a state is owned while chunks are being placed");
  check_quiet(own.handoff, "a state is owned");
  if (++request.owners > 1) violation("a slot has two owners");
  for (std::uint32_t chunk = 0; chunk < memory.destination.size(); ++chunk) {
    if (memory.destination[chunk] != right_value(memory.request, chunk))
      violation(fmt::format("wrong bytes are owned, chunk {}", chunk));
  }
  at(index, ms(1, 3000), [this, index, grant = own.destination] {
    agents_[index]->ledger->release(grant);
    agents_[index]->witness->engine_released(grant);
    ConsumerActions out;
    agents_[index]->consumer->memory_freed(out);
    act(index, std::move(out));
  });
}

void World::consumer_ended(std::size_t index, const ConsumerHandoffEnded& ended) {
  Agent& agent = *agents_[index];
  ++outcome_.consumer_ends[std::string(name(ended.kind))];
  Memory& memory = *agent.memory.at(ended.handoff.sequence);
  Request& request = *requests_[memory.request];
  memory.ended = true;
  --request.legs;
  // The answer comes before the deadline, or as soon after it as quiescing takes.
  if (now_ > request.deadline + std::chrono::seconds(5) &&
      now_ > agent.paused_until + std::chrono::seconds(5))
    violation(fmt::format("an answer ({}) comes late: deadline {} ms, {}", name(ended.kind),
                          request.deadline / std::chrono::milliseconds(1),
                          ended.why.ok() ? "" : ended.why.error().text()));
  if (ended.destination == Destination::kFreed && !memory.destination_released)
    violation("a freed destination wasn't released");
  if (ended.kind == TerminalKind::kOwned || ended.kind == TerminalKind::kFinished ||
      ended.kind == TerminalKind::kCancelled)
    return;
  if (memory.tries_left == 0) return;
  ++outcome_.retried;
  at(index, ms(1, 100),
     [this, index, what = memory.request, left = memory.tries_left - 1] { begin_at(index, what, left); });
}

}  // namespace isthmus::handoff::testing
