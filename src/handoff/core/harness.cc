// SPDX-License-Identifier: Apache-2.0
// Test only: the virtual world. What an agent's memory holds is modelled by one number a chunk.
#include "handoff/core/harness.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/digest.h"

namespace isthmus::handoff::testing {
namespace {

constexpr std::size_t kProducers = 2, kConsumers = 2, kAgents = kProducers + kConsumers;
constexpr std::size_t kNobody = ~std::size_t{0};
constexpr std::uint32_t kChannels = 2;
constexpr std::uint64_t kGarbage = 0xdeadbeef;

std::uint64_t right_value(std::size_t request, std::uint32_t chunk) {
  return (request + 1) * 1'000'003 + chunk;
}

Digest128 root_of(const std::vector<std::uint64_t>& values) {
  return digest128(bytes_of(std::span<const std::uint64_t>(values)));
}

}  // namespace

// A control channel and its data channels, between one life of each end.
struct World::Link {
  SessionId id = 0;
  std::size_t producer = 0, consumer = 0;
  bool up = true;
  std::map<std::uint32_t, Duration> channels;  // Those that are up: when the last message arrives.
};

struct World::Agent {
  std::string name;
  std::uint64_t life = 0;
  Id128 incarnation;
  bool alive = false;
  Duration paused_until{0}, wake_at{0};
  std::unique_ptr<Ledger> ledger;
  std::unique_ptr<ProducerCore> producer;
  std::unique_ptr<ConsumerCore> consumer;
  std::map<std::uint64_t, std::unique_ptr<Memory>> memory;  // Consumer: by sequence.
  std::map<Id128, std::unique_ptr<Pages>> pages;            // Producer: by reservation.
  std::map<std::tuple<wire::HandoffId, std::uint32_t, std::uint32_t>, std::map<std::uint32_t, std::uint64_t>>
      packed;
  std::map<Id128, int> reservation_ends, pin_releases;
  std::map<std::pair<wire::HandoffId, std::uint32_t>, int> ends;
  std::set<wire::HandoffId> begun;
};

struct World::Request {
  std::size_t producer = 0;
  Id128 reservation;
  kv::TokenRange tokens;
  std::string ticket;
  std::uint64_t computed = 0, generation = 1;
  bool finishes = false;
  Duration deadline{0};
  int owners = 0;
};

// A reservation's pages: one number a chunk.
struct World::Pages {
  std::size_t request = 0;
  std::vector<std::uint64_t> values;
  bool released = false;
};

// A handoff's destination and staging.
struct World::Memory {
  std::size_t request = 0;
  int tries_left = 0;
  std::vector<std::uint64_t> destination, staging;
  bool destination_released = false, staging_released = false;
};

World::World(std::uint64_t seed, Faults faults, std::uint32_t requests)
    : rng_(seed), faults_(faults), request_count_(requests) {}
World::~World() = default;

// --- Time

void World::at(std::size_t agent, Duration delay, Task task) {
  queue_.push({now_ + delay, ++order_, agent, agent == kNobody ? 0 : agents_[agent]->life,
               std::make_shared<Task>(std::move(task))});
}
void World::world_at(Duration delay, Task task) {
  at(kNobody, delay, std::move(task));
}

void World::violation(std::string text) {
  if (outcome_.violations.size() < 20)
    outcome_.violations.push_back(fmt::format("{} ms: {}", now_ / std::chrono::milliseconds(1), text));
}

void World::wake(std::size_t index) {
  Agent& agent = *agents_[index];
  agent.wake_at = Duration::zero();
  if (agent.producer) {
    ProducerActions out;
    agent.producer->tick(now(), out);
    act(index, std::move(out));
  } else {
    ConsumerActions out;
    agent.consumer->tick(now(), out);
    act(index, std::move(out));
  }
}

void World::after_event(std::size_t index) {
  Agent& agent = *agents_[index];
  if (!agent.alive) return;
  const Status checked = agent.producer ? agent.producer->check() : agent.consumer->check();
  if (!checked.ok()) violation(checked.error().text());
  const Instant next = agent.producer ? agent.producer->next_deadline() : agent.consumer->next_deadline();
  if (next == kFarFuture) return;
  const Duration due = std::max(next.since_origin, now_);
  if (agent.wake_at != Duration::zero() && agent.wake_at <= due) return;
  agent.wake_at = due;
  at(index, due - now_, [this, index] { wake(index); });
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
  DigestStream trace;
  while (!queue_.empty()) {
    const Scheduled next = queue_.top();
    queue_.pop();
    now_ = next.at;
    const std::uint64_t step[] = {static_cast<std::uint64_t>(now_.count()), next.order};
    trace.add(bytes_of(std::span<const std::uint64_t>(step)));
    if (next.agent == kNobody) {
      (*next.task)();
      continue;
    }
    Agent& agent = *agents_[next.agent];
    if (!agent.alive || agent.life != next.life) continue;
    if (now_ < agent.paused_until) {  // A stopped process: everything waits, in order.
      queue_.push({agent.paused_until, next.order, next.agent, next.life, next.task});
      continue;
    }
    (*next.task)();
    after_event(next.agent);
  }
  finish();
  outcome_.trace = trace.finish().low;
  return std::move(outcome_);
}

// --- Agents and links

void World::start_agent(std::size_t index) {
  Agent& agent = *agents_[index];
  agent.life = next_life_++;
  agent.incarnation = test_id(7, agent.life);
  agent.alive = true;
  agent.paused_until = agent.wake_at = Duration::zero();
  agent.ledger = std::make_unique<Ledger>(Capacity{{100'000, 0}, 40 * kTestTile * 8});
  agent.memory.clear();
  agent.pages.clear();
  agent.reservation_ends.clear();
  agent.pin_releases.clear();
  agent.ends.clear();
  agent.begun.clear();
  if (index < kProducers) {
    agent.producer = std::make_unique<ProducerCore>(
        ProducerOptions{agent.name, agent.incarnation, now(), test_key(1), {source_descriptor()}, {}, {}},
        agent.ledger.get());
    agent.producer->observe([this](ProducerState from, ProducerState to, std::string_view cause) {
      outcome_.transitions.insert(fmt::format("P {}>{} {}", name(from), name(to), cause));
    });
  } else {
    agent.consumer = std::make_unique<ConsumerCore>(
        ConsumerOptions{agent.name, agent.incarnation, test_key(1), {target_descriptor()}, 4, {}, {}},
        agent.ledger.get());
    agent.consumer->observe([this](ConsumerState from, ConsumerState to, std::string_view cause) {
      outcome_.transitions.insert(fmt::format("C {}>{} {}", name(from), name(to), cause));
    });
  }
}

void World::crash(std::size_t index) {
  Agent& agent = *agents_[index];
  if (!agent.alive) return;
  agent.alive = false;
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
  links_[link->id] = link;
  const Key key = test_key(static_cast<std::uint8_t>(link->id));
  at(producer, ms(1, 3), [this, link, key] {
    const Agent& other = *agents_[link->consumer];
    ProducerActions out;
    ISTHMUS_CHECK(agents_[link->producer]
                      ->producer
                      ->session_up(link->id, Peer{other.name, other.incarnation, key, {target_descriptor()}},
                                   now(), out)
                      .ok());
    for (std::uint32_t number = 1; number <= kChannels; ++number)
      agents_[link->producer]->producer->channel_up({link->id, number});
    act(link->producer, std::move(out));
  });
  at(consumer, ms(4, 6), [this, link, key] {
    const Agent& other = *agents_[link->producer];
    ConsumerActions out;
    ISTHMUS_CHECK(agents_[link->consumer]
                      ->consumer
                      ->session_up(link->id, Peer{other.name, other.incarnation, key, {source_descriptor()}},
                                   now(), out)
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
        agents_[index]->producer->session_down(link->id, now(), out);
        act(index, std::move(out));
      } else {
        ConsumerActions out;
        agents_[index]->consumer->session_down(link->id, now(), out);
        act(index, std::move(out));
      }
    });
  };
  tell(link->producer);
  tell(link->consumer);
}

// A data channel is gone; the connection is made anew a moment later, as a shell would do.
void World::channel_down(const std::shared_ptr<Link>& link, std::uint32_t number) {
  if (link->channels.erase(number) == 0) return;
  at(link->producer, ms(0, 5), [this, link, number] {
    ProducerActions out;
    agents_[link->producer]->producer->channel_down({link->id, number}, now(), out);
    act(link->producer, std::move(out));
  });
  at(link->consumer, ms(0, 5), [this, link, number] {
    ConsumerActions out;
    agents_[link->consumer]->consumer->channel_down({link->id, number}, Error{Code::kUnavailable, "dead"},
                                                    now(), out);
    act(link->consumer, std::move(out));
    if (!link->up) return;
    const std::uint32_t fresh = number + kChannels;
    at(link->producer, ms(5, 8),
       [this, link, fresh] { agents_[link->producer]->producer->channel_up({link->id, fresh}); });
    at(link->consumer, ms(9, 12), [this, link, fresh] {
      if (link->up && agents_[link->consumer]->consumer->channel_up({link->id, fresh}).ok())
        link->channels[fresh] = now_;
    });
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
  if (wire::is_for_consumer(frame, agents_[to_consumer ? link->consumer : link->producer]->incarnation) !=
      to_consumer) {
    violation(fmt::format("{} is for the other core", wire::name(frame)));
  }
  if (!chance(faults_.control_lost)) deliver_control(link, to_consumer, *bytes);
  if (chance(faults_.control_repeated)) deliver_control(link, to_consumer, *bytes);
}

void World::deliver_control(const std::shared_ptr<Link>& link, bool to_consumer,
                            std::vector<std::byte> bytes) {
  const bool faulty = faults_.control_repeated > 0 || faults_.control_lost > 0;
  const Duration delay =
      faulty && chance(0.1) ? ms(1, 400) : ms(1, 3);  // Now and then it overtakes or is overtaken.
  const std::size_t to = to_consumer ? link->consumer : link->producer;
  at(to, delay, [this, link, to, bytes = std::move(bytes)] {
    if (!link->up) return;
    const Result<wire::Frame> frame = wire::decode(bytes);
    if (!frame.ok()) return violation(frame.error().text());
    Status status;
    if (agents_[to]->producer) {
      ProducerActions out;
      status = agents_[to]->producer->frame_in(link->id, *frame, now(), out);
      act(to, std::move(out));
    } else {
      ConsumerActions out;
      status = agents_[to]->consumer->frame_in(link->id, *frame, now(), out);
      act(to, std::move(out));
    }
    if (!status.ok() && status.code() != Code::kUnavailable) violation(status.error().text());
  });
}

// In order within a channel; `deliver` runs at the consumer unless the channel has died by then.
void World::send_data(const std::shared_ptr<Link>& link, std::uint32_t number, Task deliver) {
  Duration& last = link->channels[number];
  last = std::max(last, now_) + ms(1, 4);
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
  request.tokens = {0, static_cast<std::uint64_t>(between(1, 3000))};
  request.finishes = chance(faults_.finished);
  request.deadline = now_ + ms(2000, 40000);
  const std::size_t consumer = static_cast<std::size_t>(between(kProducers, kAgents - 1));
  const bool promised = chance(faults_.promised);
  if (promised) {
    wire::Ticket ticket{agent.name,          agent.incarnation,
                        request.reservation, source_descriptor().digest(),
                        request.tokens,      wire::to_ms(std::chrono::hours(1)),
                        test_id(11, index),  true};
    request.ticket = *wire::mint(ticket, test_key(1));
    at(consumer, ms(1, 50), [this, consumer, index] { begin_at(consumer, index, 2); });
  }
  const std::uint64_t life = agent.life;
  at(request.producer, promised ? ms(1, 2000) : Duration(0), [this, index] { admit(index); });
  if (!promised) {
    world_at(ms(1, 300), [this, index, consumer] {
      if (agents_[consumer]->alive)
        at(consumer, Duration(0), [this, index, consumer] { begin_at(consumer, index, 2); });
    });
  }
  if (chance(faults_.second_opener)) {
    const std::size_t other = kProducers + (consumer - kProducers + 1) % kConsumers;
    world_at(ms(1, 300), [this, index, other] {
      if (agents_[other]->alive) at(other, Duration(0), [this, index, other] { begin_at(other, index, 1); });
    });
  }
  if (chance(faults_.crash)) {
    const std::size_t victim = chance(0.5) ? request.producer : consumer;
    world_at(ms(1, 2000), [this, victim] { crash(victim); });
  }
  if (chance(faults_.pause)) {
    const std::size_t victim = chance(0.5) ? request.producer : consumer;
    world_at(ms(1, 2000), [this, victim] {
      agents_[victim]->paused_until = std::max(agents_[victim]->paused_until, now_ + ms(100, 15000));
    });
  }
  if (chance(faults_.cancel)) {
    at(request.producer, ms(1, 1500), [this, index] {
      ProducerActions out;
      agents_[requests_[index]->producer]->producer->cancel(
          requests_[index]->reservation, Error{Code::kCancelled, "client left"}, now(), out);
      act(requests_[index]->producer, std::move(out));
    });
  }
  (void)life;
}

void World::admit(std::size_t index) {
  Request& request = *requests_[index];
  Agent& agent = *agents_[request.producer];
  Reservation spec;
  spec.id = request.reservation;
  spec.nonce = test_id(10, index);
  spec.source = source_descriptor().digest();
  spec.tokens = request.tokens;
  spec.deadline = Instant{request.deadline};
  spec.pinned = {request.tokens.size(), 0};
  ProducerActions out;
  const Result<std::string> ticket = agent.producer->admitted(spec, now(), out);
  if (ticket.ok()) {
    auto pages = std::make_unique<Pages>();
    pages->request = index;
    pages->values.assign((request.tokens.size() + kTestTile - 1) / kTestTile, kGarbage);
    agent.pages[request.reservation] = std::move(pages);
    request.ticket = *ticket;
    at(request.producer, ms(1, 50), [this, index] { prefill_step(index, 1); });
  } else if (ticket.code() != Code::kExhausted && ticket.code() != Code::kCancelled) {
    violation(ticket.error().text());
  }
  act(request.producer, std::move(out));
}

void World::prefill_step(std::size_t index, std::uint64_t generation) {
  Request& request = *requests_[index];
  Agent& agent = *agents_[request.producer];
  const auto pages = agent.pages.find(request.reservation);
  if (pages == agent.pages.end() || pages->second->released || request.generation != generation ||
      agent.reservation_ends.contains(request.reservation))
    return;
  ProducerActions out;
  if (chance(faults_.preempt)) {
    ++request.generation;
    request.computed = 0;
    std::ranges::fill(pages->second->values, kGarbage);
    agent.producer->preempted(request.reservation, now(), out);
  } else if (chance(faults_.prefill_fails)) {
    agent.producer->prefill_failed(request.reservation, Error{Code::kInternal, "step failed"}, now(), out);
  } else {
    request.computed = std::min<std::uint64_t>(request.computed + static_cast<std::uint64_t>(between(1, 700)),
                                               request.tokens.end);
    for (std::uint32_t chunk = 0; chunk < pages->second->values.size(); ++chunk) {
      const std::uint64_t end = std::min<std::uint64_t>((chunk + 1) * kTestTile, request.tokens.end);
      if (end <= request.computed) pages->second->values[chunk] = right_value(index, chunk);
    }
    if (request.computed == request.tokens.end) {
      const auto finish = request.finishes ? wire::FinishState::kStop : wire::FinishState::kNone;
      agent.producer->prefill_done(request.reservation, {token_digest_of(request.tokens.end), {42}, finish},
                                   now(), out);
    } else {
      agent.producer->grew(request.reservation, request.computed, now(), out);
    }
  }
  const bool more = request.computed < request.tokens.end;
  const std::uint64_t next = request.generation;
  act(request.producer, std::move(out));
  if (more) at(request.producer, ms(1, 60), [this, index, next] { prefill_step(index, next); });
}

void World::begin_at(std::size_t consumer, std::size_t index, int tries_left) {
  Request& request = *requests_[index];
  Agent& agent = *agents_[consumer];
  SessionId session = 0;
  for (const auto& [id, link] : links_) {
    if (link->producer == request.producer && link->consumer == consumer) session = id;
  }
  if (request.ticket.empty() || session == 0 || now_ >= request.deadline) return;
  Begin begin{session,
              request.ticket,
              target_descriptor().digest(),
              request.tokens,
              token_digest_of(request.tokens.end),
              {},
              Instant{request.deadline},
              {request.tokens.size(), 0},
              index};
  ConsumerActions out;
  const Result<wire::HandoffId> handoff = agent.consumer->begin(std::move(begin), now(), out);
  if (!handoff.ok()) return;
  ++outcome_.begun;
  agent.begun.insert(*handoff);
  auto memory = std::make_unique<Memory>();
  memory->request = index;
  memory->tries_left = tries_left;
  memory->destination.assign((request.tokens.size() + kTestTile - 1) / kTestTile, kGarbage);
  agent.memory[handoff->sequence] = std::move(memory);
  act(consumer, std::move(out));
  if (chance(faults_.cancel)) {
    at(consumer, ms(1, 1000), [this, consumer, id = *handoff] {
      ConsumerActions actions;
      agents_[consumer]->consumer->cancel(id, Error{Code::kCancelled, "client left"}, now(), actions);
      act(consumer, std::move(actions));
    });
  }
}

// --- Producer's shell

void World::act(std::size_t index, ProducerActions actions) {
  for (const ProducerAction& action : actions) {
    if (!agents_[index]->alive) return;
    Agent& agent = *agents_[index];
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      send_control(index, send->session, send->frame);
    } else if (const auto* plan = std::get_if<MakePlan>(&action)) {
      at(index, ms(1, 3), [this, index, plan = *plan] {
        ProducerActions out;
        agents_[index]->producer->plan_ready(plan.handoff, plan.attempt, plan_facts(plan.tokens), now(), out);
        act(index, std::move(out));
      });
    } else if (const auto* revoke = std::get_if<RevokeChannel>(&action)) {
      const auto link = links_.find(revoke->channel.session);
      if (link != links_.end()) channel_down(link->second, revoke->channel.number);
    } else if (const auto* chunk = std::get_if<SendChunk>(&action)) {
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
      if (++agent.pin_releases[pins->reservation] > 1) violation("pins are released twice");
      Pages& pages = *agent.pages.at(pins->reservation);
      pages.released = true;
      std::ranges::fill(pages.values, kGarbage);
    } else if (const auto* over = std::get_if<ReservationEnded>(&action)) {
      if (++agent.reservation_ends[over->reservation] > 1) violation("a reservation ends twice");
    } else if (const auto* ended = std::get_if<ProducerHandoffEnded>(&action)) {
      ++outcome_.producer_ends[std::string(name(ended->kind))];
      if (++agent.ends[{ended->handoff, ended->attempt}] > 1)
        violation(fmt::format("attempt {} of {} ends twice at its producer", ended->attempt,
                              ended->handoff.text()));
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
  const bool dies = chance(faults_.channel_dies);
  send_data(link, number, [this, link, number, header, value, dies] {
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
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      send_control(index, send->session, send->frame);
    } else if (const auto* plan = std::get_if<MakePlan>(&action)) {
      at(index, ms(1, 3), [this, index, plan = *plan] {
        ConsumerActions out;
        agents_[index]->consumer->plan_ready(plan.handoff, plan.attempt, plan_facts(plan.tokens), now(), out);
        act(index, std::move(out));
      });
    } else if (const auto* revoke = std::get_if<RevokeChannel>(&action)) {
      const auto link = links_.find(revoke->channel.session);
      if (link != links_.end()) channel_down(link->second, revoke->channel.number);
    } else if (const auto* reserve = std::get_if<ReserveCapacity>(&action)) {
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
      if (std::exchange(memory.staging_released, true)) violation("staging is released twice");
    } else if (const auto* freed = std::get_if<ReleaseDestination>(&action)) {
      Memory& memory = *agent.memory.at(freed->handoff.sequence);
      if (std::exchange(memory.destination_released, true)) violation("a destination is released twice");
    } else if (const auto* ended = std::get_if<ConsumerHandoffEnded>(&action)) {
      consumer_ended(index, *ended);
    }
  }
}

void World::place_chunk(std::size_t index, const PlaceChunk& place) {
  const bool corrupt = chance(faults_.corrupt);
  at(index, chance(faults_.sticks) ? ms(3000, 12000) : ms(1, 3), [this, index, place, corrupt] {
    Memory& memory = *agents_[index]->memory.at(place.handoff.sequence);
    if (memory.destination_released || memory.staging_released) {
      violation("a chunk is placed into released memory");
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
  const Memory& memory = *agent.memory.at(own.handoff.sequence);
  Request& request = *requests_[memory.request];
  ++outcome_.owned;
  if (++request.owners > 1) violation("a slot has two owners");
  for (std::uint32_t chunk = 0; chunk < memory.destination.size(); ++chunk) {
    if (memory.destination[chunk] != right_value(memory.request, chunk))
      violation(fmt::format("wrong bytes are owned, chunk {}", chunk));
  }
  at(index, ms(1, 3000), [this, index, grant = own.destination] {
    agents_[index]->ledger->release(grant);
    ConsumerActions out;
    agents_[index]->consumer->memory_freed(out);
    act(index, std::move(out));
  });
}

void World::consumer_ended(std::size_t index, const ConsumerHandoffEnded& ended) {
  Agent& agent = *agents_[index];
  ++outcome_.consumer_ends[std::string(name(ended.kind))];
  if (++agent.ends[{ended.handoff, 0}] > 1) violation("a consumer's handoff ends twice");
  Memory& memory = *agent.memory.at(ended.handoff.sequence);
  Request& request = *requests_[memory.request];
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

void World::finish() {
  for (const std::unique_ptr<Agent>& agent : agents_) {
    if (!agent->alive) continue;
    const std::uint64_t live = agent->producer ? agent->producer->live() : agent->consumer->live();
    if (live != 0) violation(fmt::format("{} has {} live entries at the end", agent->name, live));
    if (agent->ledger->live() != 0)
      violation(fmt::format("{}'s ledger has {} live grants at the end", agent->name, agent->ledger->live()));
    for (const auto& [id, pages] : agent->pages) {
      if (agent->pin_releases[id] != 1 || agent->reservation_ends[id] != 1)
        violation("a reservation hasn't ended once with its pins released");
    }
    for (const wire::HandoffId& handoff : agent->begun) {
      if (agent->ends[{handoff, 0}] != 1)
        violation(fmt::format("handoff {} has no terminal event", handoff.text()));
    }
  }
}

}  // namespace isthmus::handoff::testing
