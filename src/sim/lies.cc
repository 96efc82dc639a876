// SPDX-License-Identifier: Apache-2.0
// Frames and fences that no core has sent, from peers that hold the session's key and lie; and reports that a
// shell gives late, twice, or of nothing. A lie may cost the handoff that it is about, never another's memory
// or bytes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "sim/world_parts.h"

namespace isthmus::handoff::sim {
namespace {

const Error kLie{Code::kInternal, "nobody asked"};

}  // namespace

void World::start_lies() {
  const auto schedule = [this](double rate, void (World::*one)()) {
    const auto count = static_cast<std::uint32_t>(rate * request_count_);
    for (std::uint32_t i = 0; i < count; ++i) {
      const Duration when = chance(0.8) ? ms(1, 4000) : ms(1, 30000);
      world_at(when, [this, one] { (this->*one)(); });
    }
  };
  schedule(faults_.lies, &World::lie_to_producer);
  schedule(faults_.lies, &World::lie_to_consumer);
  schedule(faults_.strays, &World::stray_at_producer);
  schedule(faults_.strays, &World::stray_at_consumer);
}

std::shared_ptr<World::Link> World::any_link() {
  if (links_.empty()) return nullptr;
  const auto link =
      std::next(links_.begin(), between(0, static_cast<std::int64_t>(links_.size()) - 1))->second;
  return agents_[link->producer]->alive && agents_[link->consumer]->alive ? link : nullptr;
}

// One of the consumer's with the producer; mostly one that lives.
std::optional<HandoffView> World::any_handoff(std::size_t consumer, std::size_t producer) {
  const Agent& agent = *agents_[consumer];
  const bool any_age = chance(0.15), rare = chance(0.5);
  // States that few handoffs are in for long.
  const auto is_rare = [&](const std::optional<HandoffView>& view, const Id128& reservation) {
    const auto held = agents_[producer]->producer->state_of(reservation);
    const auto state = view ? view->state : ConsumerState::kClosed;
    return state == ConsumerState::kPlanning || state == ConsumerState::kResuming ||
           state == ConsumerState::kConfirming || state == ConsumerState::kQuarantined ||
           state == ConsumerState::kQuiescing || held == ProducerState::kQuarantined ||
           held == ProducerState::kQuiescing;
  };
  std::vector<HandoffView> found, rare_ones;
  for (const auto& [sequence, memory] : agent.memory) {
    const wire::HandoffId id{agent.incarnation, sequence};
    const auto view = agent.consumer->find_view(id);
    const Request& request = *requests_[memory->request];
    if (request.producer != producer) continue;
    const HandoffView shown = view.value_or(HandoffView{id, 1, 1, ConsumerState::kClosed, kFarFuture, 0});
    if (rare && is_rare(view, request.reservation)) {
      const bool rarest = view && view->state == ConsumerState::kQuarantined;
      rare_ones.insert(rare_ones.end(), rarest ? 8 : 1, shown);
    }
    if (view || any_age) found.push_back(shown);
  }
  if (!rare_ones.empty()) found = std::move(rare_ones);
  if (found.empty()) return std::nullopt;
  return found[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(found.size()) - 1))];
}

void World::lie_to_producer() {
  const auto link = any_link();
  const auto about = link ? any_handoff(link->consumer, link->producer) : std::nullopt;
  if (!about) return;
  Memory& memory = *agents_[link->consumer]->memory.at(about->handoff.sequence);
  Request& request = *requests_[memory.request];
  memory.lied = request.lied = true;
  wire::Address address{about->handoff, about->attempt, about->generation};
  if (chance(0.3)) ++address.attempt;
  if (chance(0.2)) ++address.generation;
  const auto count = static_cast<std::uint32_t>(between(1, 20));
  wire::Frame frame;
  switch (between(0, 6)) {
    case 6:
      frame = wire::Valid{address, 1};
      break;
    case 0: {
      wire::Open open;
      open.address = address;
      open.ticket = request.ticket;
      const Result<wire::SignedTicket> ticket = wire::parse_ticket(request.ticket);
      if (!ticket.ok()) return;
      open.proof = wire::open_proof(test_key(static_cast<std::uint8_t>(link->id)), ticket->ticket.nonce,
                                    address.handoff, address.attempt);
      open.target = target_descriptor().digest();
      open.wanted = wanted_.at(address.handoff);
      open.deadline_ms = static_cast<std::uint64_t>(between(1, 20000));
      frame = std::move(open);
      break;
    }
    case 1: {
      wire::Credit credit{address, 4, count, {}};
      for (const auto& [number, last] : link->channels) credit.channels.push_back(number);
      frame = std::move(credit);
      break;
    }
    case 2:
      frame = wire::Done{address};
      break;
    case 3:
      frame = wire::Cancel{address, "a lie", {}};
      break;
    case 4:
      frame = wire::Abort{address, Code::kAborted, "a lie", {}};
      break;
    default:
      frame = wire::Renew{{{address, 77, count}}};
  }
  deliver_control(link, false, *wire::encode(frame));
}

void World::lie_to_consumer() {
  const auto link = any_link();
  const auto about = link ? any_handoff(link->consumer, link->producer) : std::nullopt;
  if (!about) return;
  Memory& memory = *agents_[link->consumer]->memory.at(about->handoff.sequence);
  memory.lied = true;
  wire::Address address{about->handoff, about->attempt, std::max(about->generation, 1u)};
  if (chance(0.3)) ++address.attempt;
  if (chance(0.2)) ++address.generation;
  const std::uint32_t number = link->channels.empty() ? 0 : link->channels.begin()->first;
  const std::int64_t kind = between(0, 13);
  if (kind >= 11 && number == 0) return;
  if (kind == 11) {
    return send_data(link, number, [this, link, number, address] {
      const std::uint64_t token = wire::fence_token(address.handoff, address.attempt);
      ConsumerActions out;
      agents_[link->consumer]->witness->fenced({link->id, number}, token);
      agents_[link->consumer]->consumer->fence_seen({link->id, number}, token, clock(link->consumer), out);
      act(link->consumer, std::move(out));
    });
  }
  if (kind > 11) {
    const PlanFacts facts = plan_facts(wanted_.at(address.handoff));
    const auto index = static_cast<std::uint32_t>(between(0, facts.chunk_count - 1));
    const wire::ChunkHeader header = chunk_header(facts, address, index, index % 4, kGarbage);
    return send_message(link, number, header, kGarbage, std::make_shared<Flight>(Flight{link, number}));
  }
  const wire::Frame frames[] = {
      wire::Plan{address, {}, wanted_.at(address.handoff), {}, "a lie", {}, 1, 1, 1, 1},
      wire::Reject{address, Code::kAborted, "a lie", {}, {}},
      wire::Promised{address, 1000},
      wire::Busy{address, 100},
      wire::Seal{address, {}, wanted_.at(address.handoff), {}, {}, {1}, {}, {}},
      wire::Released{address, wire::ReleaseOutcome::kDone},
      wire::Cancel{address, "a lie", {}},
      wire::Abort{address, Code::kAborted, "a lie", {}},
      wire::Restart{{address.handoff, address.attempt, address.generation + 1}},
      wire::Renewed{{{address, static_cast<std::uint64_t>(between(0, 2)), 0}}},
      wire::Validity{address, 1, chance(0.5)},
  };
  deliver_control(link, true, *wire::encode(frames[kind]));
  // Few handoffs are ever in it, and for long.
  if (about->state == ConsumerState::kQuarantined && chance(0.7)) lie_to_consumer();
}

void World::stray_at_producer() {
  const auto link = any_link();
  const auto about = link ? any_handoff(link->consumer, link->producer) : std::nullopt;
  if (!about) return;
  const std::size_t index = agents_[link->consumer]->memory.at(about->handoff.sequence)->request;
  const Request& request = *requests_[index];
  ProducerCore& core = *agents_[link->producer]->producer;
  const Instant now = clock(link->producer);
  const wire::HandoffId& handoff = about->handoff;
  const std::uint32_t attempt = about->attempt + (chance(0.3) ? 1 : 0);
  const ChunkRef nothing{handoff, attempt, 1, 999'999};
  const auto pages = agents_[link->producer]->pages.find(request.reservation);
  const bool is_held = pages != agents_[link->producer]->pages.end();
  const bool is_over = !is_held || pages->second->ended;
  const bool is_promised = core.state_of(request.reservation) == ProducerState::kPromised;
  const bool is_computed = request.computed == request.tokens.end;
  ProducerActions out;
  switch (between(0, 11)) {
    case 0:
      if (is_held) admit_again(index);
      return;
    case 11:
      supersede(index);
      return after_event(link->producer);
    case 1:
      if (!is_promised) core.grew(request.reservation, request.computed / 2, now, out);
      break;
    case 2:
      if (!is_promised && (is_over || is_computed)) core.prefill_done(request.reservation, {}, now, out);
      break;
    case 3:
      if (is_promised) requests_[index]->stillborn = true;
      if (is_promised || is_over || is_computed) core.prefill_failed(request.reservation, kLie, now, out);
      break;
    case 4:
      if (!is_promised && is_over) core.preempted(request.reservation, now, out);
      break;
    case 5:
      if (is_promised || is_over) core.cancel(request.reservation, kLie, now, out);
      break;
    case 6:
      core.plan_ready(handoff, attempt, plan_facts(wanted_.at(handoff)), now, out);
      break;
    case 7:
      core.plan_failed(handoff, attempt, kLie, now, out);
      break;
    case 8:
      core.chunk_packed(nothing, now, out);
      break;
    case 9:
      core.chunk_sent(nothing, chance(0.5) ? ok_status() : Status(kLie), now, out);
      break;
    default:
      core.seal_ready(handoff, attempt, 0, {}, now, out);
  }
  act(link->producer, std::move(out));
  after_event(link->producer);
}

void World::stray_at_consumer() {
  const auto link = any_link();
  const auto about = link ? any_handoff(link->consumer, link->producer) : std::nullopt;
  if (!about) return;
  const Memory& memory = *agents_[link->consumer]->memory.at(about->handoff.sequence);
  ConsumerCore& core = *agents_[link->consumer]->consumer;
  const Instant now = clock(link->consumer);
  const std::uint32_t attempt = about->attempt + (chance(0.3) ? 1 : 0);
  ConsumerActions out;
  switch (between(0, 8)) {
    case 7:
      if (!memory.group || memory.ended) core.decide(about->handoff, now, out);
      break;
    case 8:
      if (memory.ended || chance(0.3)) core.abandon(about->handoff, kLie, now, out);
      break;
    case 0:
      if (memory.ended || chance(0.3)) core.cancel(about->handoff, kLie, now, out);
      break;
    case 1:
      core.plan_ready(about->handoff, attempt, plan_facts(wanted_.at(about->handoff)), now, out);
      break;
    case 2:
      core.plan_failed(about->handoff, attempt, kLie, now, out);
      break;
    case 3:
      core.session_refused(about->handoff, kLie, now, out);
      break;
    case 4:
      core.session_found(about->handoff, link->id, now, out);
      break;
    case 5:
      core.capacity_ready(about->handoff, attempt, now, out);
      break;
    default:
      core.capacity_refused(about->handoff, attempt, kLie, now, out);
  }
  act(link->consumer, std::move(out));
  after_event(link->consumer);
}

}  // namespace isthmus::handoff::sim
