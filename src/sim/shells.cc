// SPDX-License-Identifier: Apache-2.0
// The shells of the virtual world, and what must hold of each action.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "base/bytes.h"
#include "base/digest.h"
#include "handoff/core/planted.h"
#include "sim/world_parts.h"

namespace isthmus::handoff::sim {
namespace {

Digest128 root_of(const std::vector<std::uint64_t>& values) {
  return digest128(bytes_of(std::span<const std::uint64_t>(values)));
}

void flip(std::uint64_t& memory, bool& damaged) {
  memory ^= std::uint64_t{1} << 40;
  damaged = true;
}

}  // namespace

template <typename Actions, typename Action>
bool World::act_alike(std::size_t index, const Action& action) {
  if (const auto* send = std::get_if<SendFrame>(&action)) {
    send_control(index, send->session, send->frame);
  } else if (const auto* plan = std::get_if<MakePlan>(&action)) {
    const bool fails = chance(faults_.plan_fails);
    // A plan takes milliseconds, or longer than either side waits.
    const Duration takes = chance(faults_.sticks / 5) ? ms(4000, 6000) : ms(1, 3);
    at(index, takes, [this, index, plan = *plan, fails] {
      Actions out;
      const auto ready = [&](auto& core) {
        if (fails)
          return core.plan_failed(plan.handoff, plan.attempt, Error{Code::kInternal, "no plan"}, clock(index),
                                  out);
        PlanFacts facts = plan_facts(plan.tokens);
        if (plan.may_compress && plan.handoff.sequence % 3 != 0) facts.codec = wire::Codec::kZstdPlanes;
        core.plan_ready(plan.handoff, plan.attempt, std::move(facts), clock(index), out);
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
    const bool seals = agent.witness->sees(action, clock(index));
    if (seals) check_seal(index, std::get<wire::Seal>(std::get<SendFrame>(action).frame));
    if (act_alike<ProducerActions>(index, action)) continue;
    if (const auto* chunk = std::get_if<SendChunk>(&action)) {
      send_chunk(index, *chunk);
    } else if (const auto* fence = std::get_if<SendFence>(&action)) {
      send_fence(*fence);
    } else if (const auto* seal = std::get_if<ComputeSeal>(&action)) {
      compute_seal(index, *seal);
    } else if (const auto* pins = std::get_if<ReleasePins>(&action)) {
      Pages& pages = *agent.pages.at(pins->reservation);
      pages.released = true;
      std::ranges::fill(pages.values, kGarbage);
    } else if (const auto* over = std::get_if<ReservationEnded>(&action)) {
      agent.pages.at(over->reservation)->ended = true;
      if (over->kind == TerminalKind::kExpired) check_lease(over->reservation);
      Request& request = *requests_[agent.pages.at(over->reservation)->request];
      if (over->kind == TerminalKind::kDone && request.owners[request.epoch] == 0 && !request.lied)
        violation("a reservation is done, and who holds its slot owns nothing");
    } else if (const auto* ended = std::get_if<ProducerHandoffEnded>(&action)) {
      ++outcome_.producer_ends[std::string(name(ended->kind))];
    }
  }
}

void World::send_fence(const SendFence& fence) {
  const auto found = links_.find(fence.channel.session);
  if (found == links_.end() || !found->second->channels.contains(fence.channel.number)) return;
  const std::size_t consumer = found->second->consumer;
  const auto arrives = [this, consumer, fence] {
    ConsumerActions out;
    agents_[consumer]->witness->fenced(fence.channel, fence.token);
    agents_[consumer]->consumer->fence_seen(fence.channel, fence.token, clock(consumer), out);
    act(consumer, std::move(out));
  };
  if (mutation(Mutation::kFenceOnControl)) return at(consumer, ms(1, 3), arrives);
  send_data(found->second, fence.channel.number, arrives);
}

void World::compute_seal(std::size_t index, const ComputeSeal& seal) {
  at(index, chance(faults_.sticks * 10) ? ms(20, 3000) : ms(1, 2), [this, index, seal] {
    std::vector<std::uint64_t> values;
    for (const auto& [chunk, value] : agents_[index]->packed[{seal.handoff, seal.generation}])
      values.push_back(value);
    ProducerActions out;
    agents_[index]->producer->seal_ready(seal.handoff, seal.attempt, seal.generation, root_of(values),
                                         clock(index), out);
    act(index, std::move(out));
  });
}

void World::send_chunk(std::size_t index, const SendChunk& send) {
  at(index, chance(faults_.sticks * 2) ? ms(3000, 30000) : ms(1, 4), [this, index, send] {
    Agent& agent = *agents_[index];
    const Pages& pages = *agent.pages.at(send.reservation);
    if (pages.released) violation("pages are read after their release");
    const std::uint64_t first = wanted_.at(send.chunk.handoff).begin / kTestTile;
    const std::uint64_t value = pages.values[first + send.chunk.index];
    agent.packed[{send.chunk.handoff, send.chunk.generation}][send.chunk.index] = value;
    const auto link = links_.find(send.channel.session);
    ProducerActions out;
    if (link == links_.end() || !link->second->channels.contains(send.channel.number)) {
      agent.witness->reported(send.chunk);
      agent.producer->chunk_sent(send.chunk, Error{Code::kUnavailable, "channel is down"}, clock(index), out);
    } else {
      chunk_message(link->second, index, send, value);
      agent.producer->chunk_packed(send.chunk, clock(index), out);
    }
    act(index, std::move(out));
  });
}

void World::chunk_message(const std::shared_ptr<Link>& link, std::size_t producer, const SendChunk& send,
                          std::uint64_t value) {
  const PlanFacts facts = plan_facts(wanted_.at(send.chunk.handoff));
  wire::ChunkHeader header =
      chunk_header(facts, {send.chunk.handoff, send.chunk.attempt, send.chunk.generation}, send.chunk.index,
                   send.slot, value);
  if (send.codec != wire::Codec::kNone && send.chunk.index % 4 != 3) {  // Some don't get smaller.
    header.codec = send.codec;
    ++outcome_.compressed;
    header.stored_bytes = header.raw_bytes / 2;
  }
  const std::uint32_t number = send.channel.number;
  auto flight = std::make_shared<Flight>(Flight{.link = link, .channel = number});
  flight->attempt = send.chunk.attempt;
  flying_[send.chunk.handoff].push_back(flight);
  send_message(link, number, *wire::decode_chunk_header(*wire::encode_chunk_header(header)), value,
               std::move(flight));
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
    agents_[producer]->witness->reported(chunk);
    agents_[producer]->producer->chunk_sent(chunk, status, clock(producer), out);
    act(producer, std::move(out));
  };
  at(producer, link->channels[number] - now_, [report] { (*report)(); });
}

// --- Consumer's shell

// Header and body in this order; the channel may die between them.
void World::send_message(const std::shared_ptr<Link>& link, std::uint32_t number,
                         const wire::ChunkHeader& header, std::uint64_t value,
                         std::shared_ptr<Flight> flight) {
  send_data(link, number, [this, flight, header] { header_comes(*flight, header); });
  const bool dies = chance(faults_.channel_dies);
  send_data(link, number, [this, link, number, value, dies, flight = std::move(flight)] {
    if (dies) {
      flight->channel = 0;
      return channel_down(link, number);
    }
    body_comes(*flight, value);
  });
}

void World::header_comes(Flight& flight, const wire::ChunkHeader& header) {
  const std::size_t index = flight.link->consumer;
  const Result<Judgement> judgement = agents_[index]->consumer->judge(
      {flight.link->id, flight.channel}, header, header.stored_bytes, clock(index));
  if (!judgement.ok()) {
    const auto memory = agents_[index]->memory.find(header.address.handoff.sequence);
    const bool lied = memory != agents_[index]->memory.end() &&
                      (memory->second->lied || requests_[memory->second->request]->lied);
    if (!lied) violation("an honest chunk is refused: " + judgement.error().text());
    return channel_down(flight.link, flight.channel);
  }
  flight.place = judgement->place;
  flight.sequence = judgement->handoff.sequence;
  flight.slot = judgement->slot;
  if (judgement->early) flight.early = header;
}

void World::body_comes(Flight& flight, std::uint64_t value) {
  const std::size_t index = flight.link->consumer;
  const ChannelId channel{flight.link->id, std::exchange(flight.channel, 0)};
  Agent& agent = *agents_[index];
  if (flight.place) land(*agent.memory.at(flight.sequence), flight.slot, value);
  ConsumerActions out;
  agent.consumer->chunk_arrived(channel, clock(index), out);
  act(index, std::move(out));
  if (!flight.early) return;
  Memory& memory = *agent.memory.at(flight.sequence);
  memory.early.push_back({channel, *flight.early, value});
  give_early(index, memory);
}

void World::land(Memory& memory, std::uint32_t slot, std::uint64_t value) {
  if (memory.staging_released || slot >= memory.staging.size())
    return violation("a chunk lands in staging that isn't held");
  if (memory.placing.contains(slot)) return violation("a chunk lands in a slot that is being read");
  memory.digests[slot] = value;
  memory.staging[slot] = value;
  if (chance(faults_.flips_in_staging)) flip(memory.staging[slot], memory.damaged);
}

// Those of the attempt that has slots. What is older is dropped, what is newer waits.
void World::give_early(std::size_t index, Memory& memory) {
  for (const Memory::Early& chunk : std::exchange(memory.early, {})) {
    if (chunk.header.address.attempt > memory.early_taken) memory.early.push_back(chunk);
    if (chunk.header.address.attempt != memory.early_taken) continue;
    ConsumerActions out;
    const Result<Judgement> judged = agents_[index]->consumer->early_chunk(chunk.channel, chunk.header, out);
    if (!judged.ok()) {
      const bool lied = memory.lied || requests_[memory.request]->lied;
      if (!lied) violation("an honest early chunk is refused: " + judged.error().text());
      const auto link = links_.find(chunk.channel.session);
      if (link != links_.end()) channel_down(link->second, chunk.channel.number);
    } else if (judged->place) {
      land(memory, judged->slot, chunk.value);
    }
    act(index, std::move(out));
  }
}

void World::take_early(std::size_t index, const TakeEarly& take) {
  Memory& memory = *agents_[index]->memory.at(take.handoff.sequence);
  memory.early_taken = take.attempt;
  memory.opened.insert(take.attempt);
  give_early(index, memory);
  ConsumerActions out;
  agents_[index]->consumer->early_given(take.handoff, take.attempt, clock(index), out);
  act(index, std::move(out));
}

void World::act(std::size_t index, ConsumerActions actions) {
  for (const ConsumerAction& action : actions) {
    if (!agents_[index]->alive) return;
    Agent& agent = *agents_[index];
    agent.witness->sees(action);
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      const auto* credit = std::get_if<wire::Credit>(&send->frame);
      if (credit != nullptr)
        agent.memory.at(credit->address.handoff.sequence)->opened.insert(credit->address.attempt);
    }
    if (act_alike<ConsumerActions>(index, action)) continue;
    if (const auto* reserve = std::get_if<ReserveCapacity>(&action)) {
      this->reserve(index, *reserve);
    } else if (const auto* place = std::get_if<PlaceChunk>(&action)) {
      place_chunk(index, *place);
    } else if (const auto* read = std::get_if<Verified>(&action)) {
      const Memory& memory = *agent.memory.at(read->handoff.sequence);
      memory.group->verified.insert(memory.rank);
      tell_lead(memory.group,
                [this, run = memory.group, rank = memory.rank](GroupCore& core, GroupActions& out) {
                  core.verified(run->id, rank, clock(run->lead), out);
                });
    } else if (const auto* early = std::get_if<TakeEarly>(&action)) {
      take_early(index, *early);
    } else if (const auto* need = std::get_if<NeedSession>(&action)) {
      find_session(index, *need, 5);
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

// Dials again; now and then the way is blocked for good.
void World::find_session(std::size_t index, const NeedSession& need, int looks_left) {
  at(index, ms(5, 300), [this, index, need, looks_left] {
    const std::size_t producer =
        requests_[agents_[index]->memory.at(need.handoff.sequence)->request]->producer;
    std::shared_ptr<Link> link;
    for (const auto& [id, each] : links_) {
      if (each->producer == producer && each->consumer == index) link = each;
    }
    ConsumerActions out;
    ConsumerCore& core = *agents_[index]->consumer;
    if (!agents_[producer]->alive || looks_left == 0 || chance(faults_.cut)) {
      core.session_refused(need.handoff, Error{Code::kUnavailable, "nobody answers"}, clock(index), out);
    } else if (link && !link->channels.empty()) {
      core.session_found(need.handoff, link->id, clock(index), out);
    } else {
      if (!link) connect(producer, index);
      find_session(index, need, looks_left - 1);
    }
    act(index, std::move(out));
  });
}

void World::reserve(std::size_t index, const ReserveCapacity& wanted) {
  Memory& memory = *agents_[index]->memory.at(wanted.handoff.sequence);
  memory.staging.assign(wanted.slots, kGarbage);
  memory.digests.assign(wanted.slots, kGarbage);
  at(index, ms(0, 2), [this, index, wanted, refuses = chance(faults_.refuses_memory)] {
    ConsumerActions out;
    ConsumerCore& core = *agents_[index]->consumer;
    if (refuses) {
      core.capacity_refused(wanted.handoff, wanted.attempt, Error{Code::kExhausted, "no blocks"},
                            clock(index), out);
    } else {
      core.capacity_ready(wanted.handoff, wanted.attempt, clock(index), out);
    }
    act(index, std::move(out));
  });
}

void World::place_chunk(std::size_t index, const PlaceChunk& place) {
  Memory& placed = *agents_[index]->memory.at(place.handoff.sequence);
  placed.placing.insert(place.slot);
  const bool sticks = chance(faults_.sticks), fails = sticks && chance(0.3);
  const Duration takes = sticks ? ms(3000, 30000) : placed.slow ? ms(200, 1500) : ms(1, 3);
  at(index, takes, [this, index, place, fails] {
    Memory& memory = *agents_[index]->memory.at(place.handoff.sequence);
    memory.placing.erase(place.slot);
    Status status;
    if (memory.destination_released || memory.staging_released || memory.owned) {
      violation("a chunk is placed into memory that is released or owned");
    } else if (memory.staging[place.slot] != memory.digests[place.slot]) {
      status = Error{Code::kCorrupt, "tile"};
    } else if (fails) {
      status = Error{Code::kInternal, "can't be placed"};
    } else {
      memory.destination[place.index] = memory.staging[place.slot];
      if (chance(faults_.flips_when_placed)) flip(memory.destination[place.index], memory.damaged);
    }
    ConsumerActions out;
    agents_[index]->consumer->chunk_placed(place, status, clock(index), out);
    act(index, std::move(out));
  });
}

void World::verify(std::size_t index, const Verify& check) {
  if (agents_[index]->memory.at(check.handoff.sequence)->direct) return read_directly(index, check, 0);
  const bool sticks = chance(faults_.sticks * 5), fails = sticks && chance(0.3);
  at(index, sticks ? ms(3000, 30000) : ms(1, 4), [this, index, check, fails] {
    const Memory& memory = *agents_[index]->memory.at(check.handoff.sequence);
    if (memory.destination_released) violation("released memory is read back");
    const bool equal = root_of(memory.destination) == check.seal.tile_root;
    const Status status = fails   ? Status(Error{Code::kInternal, "can't be read back"})
                          : equal ? ok_status()
                                  : Status(Error{Code::kCorrupt, "root"});
    ConsumerActions out;
    agents_[index]->consumer->verified(check.handoff, check.attempt, status, clock(index), out);
    act(index, std::move(out));
  });
}

void World::owned(std::size_t index, const Own& own) {
  Agent& agent = *agents_[index];
  Memory& memory = *agent.memory.at(own.handoff.sequence);
  Request& request = *requests_[memory.request];
  ++outcome_.owned;
  outcome_.rests += memory.first_tile > 0 ? 1 : 0;
  memory.owned = true;
  if (!memory.placing.empty()) violation("a state is owned while chunks are being placed");
  check_quiet(own.handoff, "a state is owned");
  // A consumer that says ABORT and owns nevertheless has given its slot away.
  if (++request.owners[memory.epoch] > 1 && !request.lied) violation("a slot has two owners");
  if (memory.other_tokens) violation("the state of other tokens is owned");
  const auto generation = static_cast<std::uint64_t>(own.seal.first_tokens.at(0));
  for (std::uint32_t chunk = 0; chunk < memory.destination.size(); ++chunk) {
    if (memory.destination[chunk] != right_value(memory.request, generation, memory.first_tile + chunk))
      violation(fmt::format("wrong bytes are owned, chunk {}", chunk));
  }
  if (memory.group) {
    if (memory.group->verified.size() < memory.group->members.size())
      violation("a rank owns before all ranks have verified");
    memory.group->owned.insert(memory.rank);
    for (int copy = 0; copy < 2; ++copy) {  // The engine repeats it.
      tell_lead(memory.group,
                [this, run = memory.group, rank = memory.rank](GroupCore& core, GroupActions& out) {
                  core.owned(run->id, rank, clock(run->lead), out);
                });
    }
  }
  // Its DONE may be under way, or lost, when the router gives up on it.
  if (!request.grouped && chance(faults_.supersede)) {
    world_at(ms(0, 1500), [this, what = memory.request] {
      if (agents_[requests_[what]->producer]->alive) {
        supersede(what);
        after_event(requests_[what]->producer);
      }
    });
  }
  // The worst moment to die: it has answered, and its DONE may not have left.
  if (chance(faults_.crash)) world_at(ms(0, 3), [this, index] { crash(index); });
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
  if (memory.group && ended.kind != TerminalKind::kOwned) rank_failed(memory.group, memory.rank);
  // The answer comes before the deadline, or as soon after it as quiescing takes.
  if (now_ > request.deadline + agent.clock_lost + std::chrono::seconds(5) &&
      now_ > agent.paused_until + std::chrono::seconds(5))
    violation(fmt::format("an answer ({}) comes late: deadline {} ms, {}", name(ended.kind),
                          request.deadline / std::chrono::milliseconds(1),
                          ended.why.ok() ? "" : ended.why.error().text()));
  if (ended.kind == TerminalKind::kCorrupt && !memory.damaged && !memory.lied && !request.lied)
    violation("a state is called corrupt that nothing has damaged: " + ended.why.error().detail);
  if (ended.kind == TerminalKind::kFinished && memory.other_tokens)
    violation("the answer to other tokens is taken");
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

}  // namespace isthmus::handoff::sim
