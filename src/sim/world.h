// SPDX-License-Identifier: Apache-2.0
// The production cores of two producers and two consumers under virtual time, over links, memory and clocks
// that fail, with checkers that share no code with the cores. One seed, one run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/digest.h"
#include "handoff/core/consumer.h"
#include "handoff/core/group.h"
#include "handoff/core/ledger.h"
#include "handoff/core/producer.h"
#include "sim/coverage.h"
#include "sim/faults.h"
#include "sim/scene.h"
#include "sim/witness.h"

namespace isthmus::handoff::sim {

// What a run did and every rule that it broke.
struct Outcome {
  std::uint64_t begun = 0, owned = 0, retried = 0, events = 0;
  std::uint64_t compressed = 0;  // Chunks sent under a codec.
  std::uint64_t rests = 0;       // Of those owned, how many had a beginning that didn't move.
  std::map<std::string, std::uint64_t> consumer_ends, producer_ends, group_ends;
  std::set<std::string> transitions;    // "P growing>sealed" of all that happened.
  std::vector<std::string> violations;  // At most 20.
  std::uint64_t trace = 0;              // Digest of the sequence of events.
  Coverage coverage;
};

class World {
 public:
  // Prompts have these lengths in turn, or any.
  World(std::uint64_t seed, Faults faults, std::uint32_t requests, std::vector<std::uint64_t> lengths = {});
  ~World();
  Outcome run();

 private:
  struct Link;
  struct Agent;
  struct Request;
  struct Pages;
  struct Memory;
  struct Flight;
  struct GroupRun;
  using Task = std::function<void()>;
  struct Scheduled {
    Duration at;
    std::uint64_t order;
    std::size_t agent;
    std::uint64_t life;
    std::shared_ptr<Task> task;
    bool is_timer = false;
    bool operator>(const Scheduled& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };

  Instant clock(std::size_t agent) const;  // What the agent reads on its own clock.
  bool chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(rng_) < probability;
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(rng_);
  }
  Duration ms(std::int64_t low, std::int64_t high) {
    return std::chrono::microseconds(between(low * 1000, high * 1000));
  }
  void at(std::size_t agent, Duration delay, Task task);  // Runs unless the agent has died meanwhile.
  void world_at(Duration delay, Task task);
  void violation(std::string text);
  void wake(std::size_t agent);
  void after_event(std::size_t agent);
  void trace(std::string_view what);
  void check_lease(const Id128& reservation);
  void check_leases_kept(std::size_t agent);
  void check_seal(std::size_t agent, const wire::Seal& seal);
  void check_quiet(const wire::HandoffId& handoff, std::string_view what);

  void start_agent(std::size_t index);
  void crash(std::size_t index);
  void connect(std::size_t producer, std::size_t consumer);
  void link_down(const std::shared_ptr<Link>& link);
  void channel_down(const std::shared_ptr<Link>& link, std::uint32_t number);
  void channel_again(const std::shared_ptr<Link>& link, std::uint32_t number);
  bool is_open(ChannelId channel) const;
  void send_control(std::size_t from, SessionId session, const wire::Frame& frame);
  void deliver_control(const std::shared_ptr<Link>& link, bool to_consumer, std::vector<std::byte> bytes);
  void send_data(const std::shared_ptr<Link>& link, std::uint32_t number, Task deliver);

  void start_request(std::size_t index);
  void trouble(std::size_t index, std::size_t consumer);  // What befalls a request's agents.
  void partition(std::size_t producer, std::size_t consumer);
  void admit(std::size_t index);
  void admit_again(std::size_t index);
  Reservation reservation_of(std::size_t index) const;
  void prefill_step(std::size_t index, std::uint64_t generation);
  void preempt(std::size_t index, std::uint64_t generation);
  void supersede(std::size_t index);
  kv::TokenRange draw_wanted(const Request& request, bool is_grouped);
  void begin_at(std::size_t consumer, std::size_t request, int tries_left,
                const std::shared_ptr<GroupRun>& group = nullptr, std::uint32_t rank = 0);
  // Groups of ranks.
  void join_group(std::size_t request);
  void tell_lead(const std::shared_ptr<GroupRun>& run, std::function<void(GroupCore&, GroupActions&)> event);
  bool leads(std::size_t agent, const std::shared_ptr<GroupRun>& run) const;
  void rank_failed(const std::shared_ptr<GroupRun>& run, std::uint32_t rank);
  void act(std::size_t lead, GroupActions actions);
  void read_directly(std::size_t agent, const Verify& verify, std::uint32_t chunk);
  void act(std::size_t agent, ProducerActions actions);
  void act(std::size_t agent, ConsumerActions actions);
  // What both shells do in the same way; false if it is something else.
  template <typename Actions, typename Action>
  bool act_alike(std::size_t agent, const Action& action);
  void send_chunk(std::size_t agent, const SendChunk& send);
  void chunk_message(const std::shared_ptr<Link>& link, std::size_t producer, const SendChunk& send,
                     std::uint64_t value);
  void send_message(const std::shared_ptr<Link>& link, std::uint32_t number, const wire::ChunkHeader& header,
                    std::uint64_t value, std::shared_ptr<Flight> flight);
  void header_comes(Flight& flight, const wire::ChunkHeader& header);
  void body_comes(Flight& flight, std::uint64_t value);
  void land(Memory& memory, std::uint32_t slot, std::uint64_t value);
  void give_early(std::size_t agent, Memory& memory);
  void take_early(std::size_t agent, const TakeEarly& take);
  void send_fence(const SendFence& fence);
  void compute_seal(std::size_t agent, const ComputeSeal& seal);
  void find_session(std::size_t agent, const NeedSession& need, int looks_left);
  void reserve(std::size_t agent, const ReserveCapacity& reserve);
  void place_chunk(std::size_t agent, const PlaceChunk& place);
  void verify(std::size_t agent, const Verify& verify);
  void owned(std::size_t agent, const Own& own);
  void consumer_ended(std::size_t agent, const ConsumerHandoffEnded& ended);
  void finish();
  // Peers that lie, and shells that report what nobody asked for.
  void start_lies();
  void lie_to_producer();
  void lie_to_consumer();
  void stray_at_producer();
  void stray_at_consumer();
  std::shared_ptr<Link> any_link();
  std::optional<HandoffView> any_handoff(std::size_t consumer, std::size_t producer);

  std::mt19937_64 rng_;
  Faults faults_;
  std::uint32_t request_count_;
  std::vector<std::uint64_t> lengths_;
  Duration now_{0};
  std::uint64_t order_ = 0, next_session_ = 1, next_life_ = 1;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> queue_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::map<SessionId, std::shared_ptr<Link>> links_;
  // Chunks handed to a channel and not arrived, by handoff: at most some that died with their channel.
  std::map<wire::HandoffId, std::vector<std::weak_ptr<Flight>>> flying_;
  DigestStream trace_;
  std::vector<std::size_t> pending_ranks_;  // Of a group that isn't complete.
  std::size_t group_ranks_ = 2;
  // Of every handoff ever begun.
  std::map<wire::HandoffId, std::size_t> requests_of_;
  std::map<wire::HandoffId, kv::TokenRange> wanted_;
  Outcome outcome_;
};

}  // namespace isthmus::handoff::sim
