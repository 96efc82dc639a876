// SPDX-License-Identifier: Apache-2.0
// The virtual world: time, agents, links, requests. What memory holds is modelled by one number a chunk.
#include "sim/world_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/digest.h"

namespace isthmus::handoff::sim {
namespace {

// A request takes some hundreds; far more means that something retries without end.
constexpr std::uint32_t kEventsMax = 20'000;

}  // namespace

World::World(std::uint64_t seed, Faults faults, std::uint32_t requests, std::vector<std::uint64_t> lengths)
    : rng_(seed), faults_(faults), request_count_(requests), lengths_(std::move(lengths)) {}
World::~World() = default;

// --- Time

void World::at(std::size_t agent, Duration delay, Task task) {
  queue_.push({now_ + delay, ++order_, agent, agent == kNobody ? 0 : agents_[agent]->life,
               std::make_shared<Task>(std::move(task))});
}
void World::world_at(Duration delay, Task task) {
  at(kNobody, delay, std::move(task));
}

Instant World::clock(std::size_t agent) const {
  return Instant{now_ - agents_[agent]->clock_lost};
}

void World::violation(std::string text) {
  if (outcome_.violations.size() < 20)
    outcome_.violations.push_back(fmt::format("{} ms: {}", now_ / std::chrono::milliseconds(1), text));
}

void World::trace(std::string_view what) {
  trace_.add(bytes_of(what));
}

// The producer's lease has run out: no consumer may still count on it. Clocks that stop make leases void, so
// that only what is owned is judged then. Who opens an attempt in the consumer's name has its lease begin
// before the consumer asks.
void World::check_lease(const Id128& reservation) {
  for (std::size_t index = kProducers; index < kAgents; ++index) {
    Agent& agent = *agents_[index];
    if (!agent.alive || agent.clock_lost != Duration::zero()) continue;
    for (const auto& [sequence, memory] : agent.memory) {
      const Request& request = *requests_[memory->request];
      if (memory->ended || request.lied || request.reservation != reservation) continue;
      const auto view = agent.consumer->find_view({agent.incarnation, sequence});
      const bool counts = view && view->state >= ConsumerState::kPlanning &&
                          view->state <= ConsumerState::kVerifying && view->lease_end != kFarFuture;
      if (counts && view->lease_end > clock(index)) violation("a consumer's lease outlives its producer's");
    }
  }
}

// After a tick: whoever waited for a seal beyond its lease has ended.
void World::check_leases_kept(std::size_t index) {
  const Agent& agent = *agents_[index];
  for (const auto& [sequence, memory] : agent.memory) {
    if (memory->ended || memory->sealed) continue;
    const auto view = agent.consumer->find_view({agent.incarnation, sequence});
    const bool waits =
        view && view->state >= ConsumerState::kPlanning && view->state <= ConsumerState::kReceiving;
    if (waits && view->lease_end <= clock(index)) violation("a handoff goes on after its lease");
  }
}

// The first SEAL of an attempt: its pages are this generation's, and the producer's, to this moment.
void World::check_seal(std::size_t index, const wire::Seal& seal) {
  const auto found = requests_of_.find(seal.address.handoff);
  if (found == requests_of_.end()) return;
  const Request& request = *requests_[found->second];
  const auto pages = agents_[index]->pages.find(request.reservation);
  if (pages == agents_[index]->pages.end()) return violation("SEAL of pages that aren't here");
  if (pages->second->ended) violation("SEAL after the reservation's end");
  if (seal.address.generation != request.generation)
    violation(
        fmt::format("SEAL of generation {} in generation {}", seal.address.generation, request.generation));
}

// Nothing sent for the handoff may arrive any more.
void World::check_quiet(const wire::HandoffId& handoff, std::string_view what) {
  if (requests_[requests_of_.at(handoff)]->lied) return;
  std::set<std::uint32_t> opened;
  for (const auto& agent : agents_) {
    const auto memory = agent->memory.find(handoff.sequence);
    if (agent->incarnation != handoff.consumer || memory == agent->memory.end()) continue;
    if (memory->second->lied) return;  // The fence may have been a lie.
    opened = memory->second->opened;
  }
  for (const std::weak_ptr<Flight>& weak : flying_[handoff]) {
    const auto flight = weak.lock();
    if (flight && opened.contains(flight->attempt) && flight->link->channels.contains(flight->channel))
      violation(fmt::format("{} while a chunk of it is on its way", what));
  }
  flying_.erase(handoff);
}

void World::wake(std::size_t index) {
  Agent& agent = *agents_[index];
  agent.wake_at = Duration::zero();
  if (agent.producer) {
    ProducerActions out;
    agent.producer->tick(clock(index), out);
    act(index, std::move(out));
  } else {
    ConsumerActions out;
    agent.consumer->tick(clock(index), out);
    check_leases_kept(index);
    act(index, std::move(out));
    GroupActions groups;
    agent.group->tick(clock(index), groups);
    act(index, std::move(groups));
  }
}

void World::after_event(std::size_t index) {
  Agent& agent = *agents_[index];
  if (!agent.alive) return;
  const Status checked = agent.producer ? agent.producer->check() : agent.consumer->check();
  if (!checked.ok()) violation(checked.error().text());
  agent.witness->check(*agent.ledger);
  const Instant next = agent.producer
                           ? agent.producer->next_deadline()
                           : std::min(agent.consumer->next_deadline(), agent.group->next_deadline());
  if (next == kFarFuture) return;
  const Duration due = std::max(next.since_origin + agent.clock_lost, now_);
  if (agent.wake_at != Duration::zero() && agent.wake_at <= due) return;
  agent.wake_at = due;
  queue_.push(
      {due, ++order_, index, agent.life, std::make_shared<Task>([this, index] { wake(index); }), true});
}

Outcome World::run() {
  for (std::size_t i = 0; i < kAgents; ++i) {
    agents_.push_back(std::make_unique<Agent>());
    agents_[i]->name = fmt::format("{}{}", i < kProducers ? "p" : "d", i);
    start_agent(i);
  }
  for (std::size_t p = 0; p < kProducers; ++p) {
    for (std::size_t d = kProducers; d < kAgents; ++d) connect(p, d);
  }
  for (std::size_t i = 0; i < request_count_; ++i) {
    requests_.push_back(std::make_unique<Request>());
    world_at(ms(1, static_cast<std::int64_t>(request_count_) * 20), [this, i] { start_request(i); });
  }
  start_lies();
  while (!queue_.empty()) {
    if (++outcome_.events > std::uint64_t{kEventsMax} * request_count_) {
      violation(fmt::format("the world doesn't come to rest: {} events wait", queue_.size()));
      break;
    }
    const Scheduled next = queue_.top();
    queue_.pop();
    now_ = next.at;
    const std::uint64_t step[] = {static_cast<std::uint64_t>(now_.count()), next.order};
    trace_.add(bytes_of(std::span<const std::uint64_t>(step)));
    if (next.agent == kNobody) {
      (*next.task)();
      continue;
    }
    Agent& agent = *agents_[next.agent];
    if (!agent.alive || agent.life != next.life) continue;
    if (now_ < agent.paused_until) {
      // A stopped process: everything waits, in order. What has come may be seen before a timer that is over.
      const Duration later = next.is_timer ? ms(0, 2) : Duration(0);
      queue_.push({agent.paused_until + later, next.order, next.agent, next.life, next.task, next.is_timer});
      continue;
    }
    (*next.task)();
    after_event(next.agent);
  }
  finish();
  outcome_.trace = trace_.finish().low;
  return std::move(outcome_);
}

// --- Agents and links

void World::start_agent(std::size_t index) {
  Agent& agent = *agents_[index];
  agent.life = next_life_++;
  agent.incarnation = test_id(7, agent.life);
  agent.alive = true;
  agent.paused_until = agent.wake_at = agent.clock_lost = Duration::zero();
  agent.ledger = std::make_unique<Ledger>(faults_.small_pools ? Capacity{{5000, 0}, 6 * kTestTile * 8}
                                                              : Capacity{{100'000, 0}, 40 * kTestTile * 8});
  agent.memory.clear();
  agent.pages.clear();
  agent.groups.clear();
  agent.witness = std::make_unique<Witness>(
      [this, name = agent.name](const std::string& what) { violation(name + ": " + what); },
      [this](ChannelId channel) { return is_open(channel); });
  if (index < kProducers) {
    agent.producer = std::make_unique<ProducerCore>(
        ProducerOptions{
            agent.name, agent.incarnation, clock(index), test_key(1), {source_descriptor()}, {}, {}},
        agent.ledger.get());
    agent.producer->observe([this](ProducerState from, ProducerState to, std::string_view cause) {
      trace(*outcome_.transitions.insert(fmt::format("P {}>{} {}", name(from), name(to), cause)).first);
    });
    agent.producer->observe_events(
        [this](ProducerState state, ProducerEvent event) { outcome_.coverage.count(state, event); });
  } else {
    constexpr std::uint32_t kSlots = 4;
    Limits limits;
    limits.early_bytes_max = chance(faults_.early) ? agent.ledger->capacity().staging_bytes / kSlots : 0;
    agent.consumer = std::make_unique<ConsumerCore>(
        ConsumerOptions{
            agent.name, agent.incarnation, test_key(1), {target_descriptor()}, kSlots, {}, limits},
        agent.ledger.get());
    agent.group = std::make_unique<GroupCore>(Timings{});
    agent.consumer->observe([this](ConsumerState from, ConsumerState to, std::string_view cause) {
      trace(*outcome_.transitions.insert(fmt::format("C {}>{} {}", name(from), name(to), cause)).first);
    });
    agent.consumer->observe_events(
        [this](ConsumerState state, ConsumerEvent event) { outcome_.coverage.count(state, event); });
  }
}

void World::crash(std::size_t index) {
  Agent& agent = *agents_[index];
  if (!agent.alive) return;
  agent.alive = false;
  // Whoever asked sees the connection break: that is an answer.
  for (const auto& [sequence, memory] : agent.memory) {
    if (!memory->ended) --requests_[memory->request]->legs;
    if (memory->group && !memory->ended) rank_failed(memory->group, memory->rank);
  }
  for (auto& [id, link] : std::map(links_)) {
    if (link->producer == index || link->consumer == index) link_down(link);
  }
  agent.producer.reset();
  agent.consumer.reset();
  world_at(ms(10, 3000), [this, index] {
    start_agent(index);
    for (std::size_t other = 0; other < kAgents; ++other) {
      const bool pair = (other < kProducers) != (index < kProducers);
      if (pair && agents_[other]->alive) connect(std::min(other, index), std::max(other, index));
    }
  });
}

void World::connect(std::size_t producer, std::size_t consumer) {
  auto link = std::make_shared<Link>();
  link->id = next_session_++;
  link->producer = producer;
  link->consumer = consumer;
  link->is_same_host = link->id % 4 == 0;  // By number, not by chance: runs of a seed stay as they are.
  links_[link->id] = link;
  const Key key = test_key(static_cast<std::uint8_t>(link->id));
  at(producer, ms(1, 3), [this, link, key] {
    const Agent& other = *agents_[link->consumer];
    ProducerActions out;
    ISTHMUS_CHECK(
        agents_[link->producer]
            ->producer
            ->session_up(link->id,
                         Peer{other.name, other.incarnation, key, {target_descriptor()}, link->is_same_host},
                         clock(link->producer), out)
            .ok());
    for (std::uint32_t number = 1; number <= kChannels; ++number)
      agents_[link->producer]->producer->channel_up({link->id, number});
    act(link->producer, std::move(out));
  });
  at(consumer, ms(4, 6), [this, link, key] {
    const Agent& other = *agents_[link->producer];
    ConsumerActions out;
    ISTHMUS_CHECK(
        agents_[link->consumer]
            ->consumer
            ->session_up(link->id,
                         Peer{other.name, other.incarnation, key, {source_descriptor()}, link->is_same_host},
                         clock(link->consumer), out)
            .ok());
    act(link->consumer, std::move(out));
    for (std::uint32_t number = 1; number <= kChannels && link->up; ++number) {
      link->channels[number] = now_;
      ISTHMUS_CHECK(agents_[link->consumer]->consumer->channel_up({link->id, number}).ok());
    }
  });
}

void World::link_down(const std::shared_ptr<Link>& link) {
  if (!link->up) return;
  link->up = false;
  link->channels.clear();
  links_.erase(link->id);
  const auto tell = [this, link](std::size_t index) {
    if (!agents_[index]->alive) return;
    at(index, ms(10, 200), [this, link, index] {
      if (agents_[index]->producer) {
        ProducerActions out;
        agents_[index]->producer->session_down(link->id, clock(index), out);
        act(index, std::move(out));
      } else {
        ConsumerActions out;
        agents_[index]->consumer->session_down(link->id, clock(index), out);
        act(index, std::move(out));
      }
    });
  };
  tell(link->producer);
  tell(link->consumer);
}

bool World::is_open(ChannelId channel) const {
  const auto link = links_.find(channel.session);
  return link != links_.end() && link->second->channels.contains(channel.number);
}

// A data channel is gone; the connection is made anew a moment later, as a shell would do.
void World::channel_down(const std::shared_ptr<Link>& link, std::uint32_t number) {
  if (link->channels.erase(number) == 0) return;
  at(link->producer, ms(0, 5), [this, link, number] {
    ProducerActions out;
    agents_[link->producer]->producer->channel_down({link->id, number}, clock(link->producer), out);
    act(link->producer, std::move(out));
  });
  at(link->consumer, ms(0, 5), [this, link, number] {
    ConsumerActions out;
    agents_[link->consumer]->consumer->channel_down({link->id, number}, Error{Code::kUnavailable, "dead"},
                                                    clock(link->consumer), out);
    act(link->consumer, std::move(out));
    if (link->up) channel_again(link, number + kChannels);
  });
}

void World::channel_again(const std::shared_ptr<Link>& link, std::uint32_t fresh) {
  at(link->producer, ms(5, 8),
     [this, link, fresh] { agents_[link->producer]->producer->channel_up({link->id, fresh}); });
  at(link->consumer, ms(9, 12), [this, link, fresh] {
    if (link->up && agents_[link->consumer]->consumer->channel_up({link->id, fresh}).ok())
      link->channels[fresh] = now_;
  });
}

void World::send_control(std::size_t from, SessionId session, const wire::Frame& frame) {
  const auto found = links_.find(session);
  if (found == links_.end()) return;
  const std::shared_ptr<Link> link = found->second;
  const Result<std::vector<std::byte>> bytes = wire::encode(frame);
  if (!bytes.ok())
    return violation(fmt::format("{} can't be encoded: {}", wire::name(frame), bytes.error().text()));
  const bool to_consumer = from == link->producer;
  if (const auto* validity = std::get_if<wire::Validity>(&frame); validity && validity->is_valid) {
    const Request& request = *requests_[requests_of_.at(validity->address.handoff)];
    const auto memory = agents_[link->consumer]->memory.find(validity->address.handoff.sequence);
    if (memory != agents_[link->consumer]->memory.end() && memory->second->epoch != request.epoch &&
        !request.lied)
      violation("a holder that was superseded is told that its pages are valid");
  }
  if (wire::is_for_consumer(frame, agents_[to_consumer ? link->consumer : link->producer]->incarnation) !=
      to_consumer) {
    violation(fmt::format("{} is for the other core", wire::name(frame)));
  }
  if (!chance(faults_.control_lost)) deliver_control(link, to_consumer, *bytes);
  if (chance(faults_.control_repeated)) deliver_control(link, to_consumer, *bytes);
}

void World::deliver_control(const std::shared_ptr<Link>& link, bool to_consumer,
                            std::vector<std::byte> bytes) {
  // Now and then it overtakes, or is overtaken.
  const Duration late = chance(faults_.control_slow) ? ms(400, 4000) : chance(0.1) ? ms(1, 400) : ms(1, 3);
  const Duration still = to_consumer ? link->still_to_consumer : link->still_to_producer;
  const Duration delay = std::max(late, still - now_ + ms(1, 3));
  const std::size_t to = to_consumer ? link->consumer : link->producer;
  at(to, delay, [this, link, to, bytes = std::move(bytes)] {
    if (!link->up) return;
    const Result<wire::Frame> frame = wire::decode(bytes);
    if (!frame.ok()) return violation(frame.error().text());
    Agent& agent = *agents_[to];
    agent.witness->hears(*frame);
    Status status;
    if (agent.producer) {
      ProducerActions out;
      status = agent.producer->frame_in(link->id, *frame, clock(to), out);
      act(to, std::move(out));
    } else {
      if (const auto* seal = std::get_if<wire::Seal>(&*frame)) {
        const auto memory = agent.memory.find(seal->address.handoff.sequence);
        if (memory != agent.memory.end()) memory->second->sealed = true;
      }
      ConsumerActions out;
      status = agent.consumer->frame_in(link->id, *frame, clock(to), out);
      act(to, std::move(out));
    }
    const bool is_lie = status.code() == Code::kMalformed && faults_.lies > 0;  // Of another's handoff.
    if (!status.ok() && status.code() != Code::kUnavailable && !is_lie) violation(status.error().text());
  });
}

// In order within a channel; `deliver` runs at the consumer unless the channel has died by then.
void World::send_data(const std::shared_ptr<Link>& link, std::uint32_t number, Task deliver) {
  Duration& last = link->channels[number];
  last = std::max({last, now_, link->still_to_consumer}) + ms(1, 4);
  at(link->consumer, last - now_, [link, number, deliver = std::move(deliver)] {
    if (link->channels.contains(number)) deliver();
  });
}

// --- Requests

void World::start_request(std::size_t index) {
  Request& request = *requests_[index];
  request.producer = static_cast<std::size_t>(between(0, kProducers - 1));
  Agent& agent = *agents_[request.producer];
  if (!agent.alive) return;
  request.reservation = test_id(9, index + 1);
  request.tokens = {
      0, lengths_.empty() ? static_cast<std::uint64_t>(between(1, 3000)) : lengths_[index % lengths_.size()]};
  request.finishes = chance(faults_.finished);
  request.deadline = now_ + ms(2000, 40000);
  request.direct = chance(faults_.direct);
  request.grouped = chance(faults_.grouped);
  const std::size_t consumer = static_cast<std::size_t>(between(kProducers, kAgents - 1));
  const bool promised = !request.grouped && chance(faults_.promised);
  if (promised) {
    wire::Ticket ticket{agent.name,          agent.incarnation,
                        request.reservation, source_descriptor().digest(),
                        request.tokens,      wire::to_ms(std::chrono::hours(1)),
                        test_id(11, index),  true};
    request.ticket = *wire::mint(ticket, test_key(1));
    at(consumer, ms(1, 50), [this, consumer, index] { begin_at(consumer, index, 2); });
  }
  at(request.producer, promised ? ms(1, 2000) : Duration(0), [this, index] { admit(index); });
  if (request.grouped) {
    at(request.producer, ms(1, 20), [this, index] { join_group(index); });
  } else if (!promised) {
    world_at(ms(1, 300), [this, index, consumer] {
      if (agents_[consumer]->alive)
        at(consumer, Duration(0), [this, index, consumer] { begin_at(consumer, index, 2); });
    });
  }
  if (!request.grouped && chance(faults_.supersede))
    at(request.producer, ms(5, 1500), [this, index] { supersede(index); });
  if (!request.grouped && chance(faults_.second_opener)) {
    const std::size_t other = kProducers + (consumer - kProducers + 1) % kConsumers;
    world_at(ms(1, 300), [this, index, other] {
      if (agents_[other]->alive) at(other, Duration(0), [this, index, other] { begin_at(other, index, 1); });
    });
  }
  trouble(index, consumer);
}

void World::trouble(std::size_t index, std::size_t consumer) {
  const std::size_t producer = requests_[index]->producer;
  const auto one_of_both = [&] { return chance(0.5) ? producer : consumer; };
  if (chance(faults_.crash)) world_at(ms(1, 2000), [this, victim = one_of_both()] { crash(victim); });
  const auto stop = [this](std::size_t victim, bool clock_too) {
    world_at(ms(1, 2000), [this, victim, clock_too] {
      Agent& agent = *agents_[victim];
      const Duration from = std::max(agent.paused_until, now_);
      agent.paused_until = std::max(agent.paused_until, now_ + ms(100, 15000));
      if (clock_too) agent.clock_lost += agent.paused_until - from;
    });
  };
  if (chance(faults_.pause)) stop(one_of_both(), false);
  if (chance(faults_.clock_stops)) stop(one_of_both(), true);
  if (chance(faults_.partition))
    world_at(ms(1, 2000), [this, producer, consumer] { partition(producer, consumer); });
  if (chance(faults_.cut)) {
    world_at(chance(0.7) ? ms(1, 2000) : ms(1, 25000), [this, producer, consumer] {
      for (const auto& [id, link] : std::map(links_)) {
        if (link->producer != producer || link->consumer != consumer) continue;
        link_down(link);
        if (chance(0.5)) connect(producer, consumer);  // Else who needs it does.
        return;
      }
    });
  }
  if (chance(faults_.cancel)) {
    at(producer, ms(1, 1500), [this, index, producer] {
      ProducerActions out;
      agents_[producer]->producer->cancel(requests_[index]->reservation,
                                          Error{Code::kCancelled, "client left"}, clock(producer), out);
      act(producer, std::move(out));
    });
  }
}

// Nothing arrives in one direction for a while; then all of it does. A frame lost for good is another fault.
void World::partition(std::size_t producer, std::size_t consumer) {
  const Duration until = now_ + ms(500, 15000);
  const bool to_consumer = chance(0.5);
  for (const auto& [id, link] : links_) {
    if (link->producer != producer || link->consumer != consumer) continue;
    Duration& still = to_consumer ? link->still_to_consumer : link->still_to_producer;
    still = std::max(still, until);
  }
}

Reservation World::reservation_of(std::size_t index) const {
  const Request& request = *requests_[index];
  const Agent& agent = *agents_[request.producer];
  Reservation spec;
  spec.id = request.reservation;
  spec.nonce = test_id(10, index);
  spec.source = source_descriptor().digest();
  spec.tokens = request.tokens;
  spec.deadline = Instant{request.deadline} - agent.clock_lost;
  spec.pinned = {request.tokens.size(), 0};
  return spec;
}

// A reservation's id is good for one.
void World::admit_again(std::size_t index) {
  const std::size_t producer = requests_[index]->producer;
  ProducerActions out;
  const auto again = agents_[producer]->producer->admitted(reservation_of(index), clock(producer), out);
  if (again.ok() || !out.empty()) violation("a reservation is admitted twice");
}

void World::admit(std::size_t index) {
  Request& request = *requests_[index];
  Agent& agent = *agents_[request.producer];
  // Its ticket may be out already, and somebody waits for it.
  if (chance(faults_.prefill_fails)) {
    request.stillborn = true;
    ProducerActions failed;
    agent.producer->prefill_failed(request.reservation, Error{Code::kInternal, "not to be admitted"},
                                   clock(request.producer), failed);
    return act(request.producer, std::move(failed));
  }
  ProducerActions out;
  const Result<std::string> ticket =
      agent.producer->admitted(reservation_of(index), clock(request.producer), out);
  if (ticket.ok()) {
    auto pages = std::make_unique<Pages>();
    pages->request = index;
    pages->values.assign((request.tokens.size() + kTestTile - 1) / kTestTile, kGarbage);
    agent.pages[request.reservation] = std::move(pages);
    agent.witness->admitted(request.reservation, request.tokens.size());
    request.ticket = *ticket;
    at(request.producer, ms(1, 50), [this, index] { prefill_step(index, 1); });
  } else if (ticket.code() != Code::kExhausted && ticket.code() != Code::kCancelled && !request.stillborn) {
    violation(ticket.error().text());
  }
  act(request.producer, std::move(out));
}

void World::prefill_step(std::size_t index, std::uint64_t generation) {
  Request& request = *requests_[index];
  Agent& agent = *agents_[request.producer];
  const auto found = agent.pages.find(request.reservation);
  if (found == agent.pages.end() || found->second->ended || request.generation != generation) return;
  if (chance(faults_.preempt)) return preempt(index, generation);
  Pages& pages = *found->second;
  const Instant now = clock(request.producer);
  ProducerActions out;
  const bool fails = chance(faults_.prefill_fails);
  if (fails) {
    agent.producer->prefill_failed(request.reservation, Error{Code::kInternal, "step failed"}, now, out);
    return act(request.producer, std::move(out));
  }
  request.computed = std::min<std::uint64_t>(request.computed + static_cast<std::uint64_t>(between(1, 700)),
                                             request.tokens.end);
  for (std::uint32_t chunk = 0; chunk < pages.values.size(); ++chunk) {
    const std::uint64_t end = std::min<std::uint64_t>((chunk + 1) * kTestTile, request.tokens.end);
    if (end <= request.computed) pages.values[chunk] = right_value(index, generation, chunk);
  }
  const bool done = request.computed == request.tokens.end;
  if (done) {
    const auto finish = request.finishes ? wire::FinishState::kStop : wire::FinishState::kNone;
    agent.producer->prefill_done(
        request.reservation,
        {token_digest_of(request.tokens.end), {static_cast<std::int32_t>(generation)}, finish}, now, out);
  } else {
    agent.producer->grew(request.reservation, request.computed, now, out);
  }
  act(request.producer, std::move(out));
  if (!done) {
    at(request.producer, ms(1, 60), [this, index, generation] { prefill_step(index, generation); });
  } else if (chance(faults_.preempt)) {
    at(request.producer, ms(1, 300), [this, index, generation] { preempt(index, generation); });
  }
}

// Prefill starts again from the first token.
void World::preempt(std::size_t index, std::uint64_t generation) {
  Request& request = *requests_[index];
  Agent& agent = *agents_[request.producer];
  const auto found = agent.pages.find(request.reservation);
  if (found == agent.pages.end() || found->second->ended || request.generation != generation) return;
  request.generation = generation + 1;
  request.computed = 0;
  std::ranges::fill(found->second->values, kGarbage);
  ProducerActions out;
  agent.producer->preempted(request.reservation, clock(request.producer), out);
  act(request.producer, std::move(out));
  at(request.producer, ms(1, 60), [this, index, next = generation + 1] { prefill_step(index, next); });
}

// The router gives the slot to some consumer: the holder seems dead, or slow.
void World::supersede(std::size_t index) {
  Request& request = *requests_[index];
  ProducerActions out;
  const Result<std::string> ticket = agents_[request.producer]->producer->supersede(
      request.reservation, test_id(12, ++order_), clock(request.producer), out);
  if (ticket.ok()) {
    request.ticket = *ticket;
    ++request.epoch;
    const auto other = static_cast<std::size_t>(between(kProducers, kAgents - 1));
    if (agents_[other]->alive) at(other, ms(1, 50), [this, index, other] { begin_at(other, index, 1); });
  }
  act(request.producer, std::move(out));
}

// At least the last tile.
kv::TokenRange World::draw_wanted(const Request& request, bool is_grouped) {
  const std::uint64_t tiles = (request.tokens.end - 1) / kTestTile;
  if (request.direct || is_grouped || tiles == 0 || !chance(faults_.known)) return request.tokens;
  return {static_cast<std::uint64_t>(between(1, static_cast<std::int64_t>(tiles))) * kTestTile,
          request.tokens.end};
}

void World::begin_at(std::size_t consumer, std::size_t index, int tries_left,
                     const std::shared_ptr<GroupRun>& group, std::uint32_t rank) {
  Request& request = *requests_[index];
  Agent& agent = *agents_[consumer];
  SessionId session = 0;
  for (const auto& [id, link] : links_) {
    if (link->producer == request.producer && link->consumer == consumer) session = id;
  }
  if (request.ticket.empty() || session == 0 || now_ >= request.deadline) return;
  const bool other_tokens = chance(faults_.other_tokens);
  kv::TokenRange wanted = draw_wanted(request, group != nullptr);
  Begin begin{session,
              request.ticket,
              target_descriptor().digest(),
              wanted,
              token_digest_of(request.tokens.end + (other_tokens ? 1 : 0)),
              {},
              Instant{request.deadline} - agent.clock_lost,
              {wanted.size(), 0},
              index,
              request.direct,
              group != nullptr,
              {wanted.begin, 0}};
  ConsumerActions out;
  Result<wire::HandoffId> handoff = agent.consumer->begin(begin, clock(consumer), out);
  if (handoff.code() == Code::kExhausted && wanted.begin > 0) {  // No memory for it: all is asked for.
    begin.wanted = wanted = request.tokens;
    begin.destination = {wanted.size(), 0};
    begin.retained = {};
    handoff = agent.consumer->begin(std::move(begin), clock(consumer), out);
  }
  if (!handoff.ok()) return;
  ++outcome_.begun;
  requests_of_[*handoff] = index;
  wanted_[*handoff] = wanted;
  agent.witness->begun(*handoff, wanted.size(), wanted.begin);
  ++request.legs;
  auto memory = std::make_unique<Memory>();
  memory->request = index;
  memory->tries_left = tries_left;
  memory->epoch = request.epoch;
  memory->direct = request.direct;
  memory->group = group;
  memory->rank = rank;
  if (group) group->members.at(rank).handoff = *handoff;
  memory->other_tokens = other_tokens;
  memory->slow = chance(faults_.slow_reader);
  memory->first_tile = static_cast<std::uint32_t>(wanted.begin / kTestTile);
  memory->destination.assign((wanted.size() + kTestTile - 1) / kTestTile, kGarbage);
  agent.memory[handoff->sequence] = std::move(memory);
  act(consumer, std::move(out));
  if (chance(faults_.cancel)) {
    at(consumer, ms(1, 1000), [this, consumer, id = *handoff] {
      ConsumerActions actions;
      agents_[consumer]->consumer->cancel(id, Error{Code::kCancelled, "client left"}, clock(consumer),
                                          actions);
      act(consumer, std::move(actions));
    });
  }
}

void World::finish() {
  for (const std::unique_ptr<Agent>& agent : agents_) {
    if (!agent->alive) continue;
    const std::uint64_t live = agent->producer ? agent->producer->live() : agent->consumer->live();
    if (live != 0) violation(fmt::format("{} has {} live entries at the end", agent->name, live));
    if (agent->ledger->live() != 0)
      violation(fmt::format("{}'s ledger has {} live grants at the end", agent->name, agent->ledger->live()));
    agent->witness->check_end();
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i]->legs != 0)
      violation(fmt::format("request {} waits for {} answers", i, requests_[i]->legs));
  }
}

}  // namespace isthmus::handoff::sim
