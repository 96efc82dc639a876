// SPDX-License-Identifier: Apache-2.0
// The shell around both cores: carries out their actions, feeds them events, owns memory that moves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "device/host/buffer.h"
#include "handoff/agent/agent.h"
#include "handoff/agent/compression.h"
#include "handoff/agent/links.h"
#include "handoff/agent/meters.h"
#include "handoff/agent/mover.h"
#include "handoff/core/consumer.h"
#include "handoff/core/producer.h"
#include "net/deadline.h"
#include "net/poster.h"
#include "transform/in_place.h"
#include "transform/plan.h"
#include "transform/program.h"

namespace isthmus::handoff {

// One attempt of one handoff.
using AttemptKey = std::pair<wire::HandoffId, std::uint32_t>;

// kv::WireForm::text() on one line, for metrics, logs and headers.
std::string one_line(const kv::WireForm& wire);

class Shell final : public Agent {
 public:
  Shell(net::Loop& loop, std::vector<transport::Transport*> transports, const kv::Descriptor& descriptor,
        AgentOptions options, MetricsRegistry& metrics);
  ~Shell() override;
  Status start();

  std::vector<std::string> endpoints() const override { return links_->endpoints(); }
  Id128 incarnation() const override { return incarnation_; }
  const Ledger& ledger() const override { return ledger_; }
  AgentSnapshot snapshot(std::size_t count_max) const override;
  Result<GrantId> take_memory(Amount amount, Instant expected_end) override {
    return ledger_.grant(Category::kActive, amount, expected_end);
  }
  Result<GrantId> pin_memory(Amount amount, Instant expected_end) override {
    return ledger_.grant(Category::kPinned, amount, expected_end);
  }
  void free_memory(GrantId grant) override;
  Result<Offered> offer(const Offer& offer, std::function<void(const Ending&)> ended) override;
  void publish(Id128 reservation, kv::TokenRange range,
               std::shared_ptr<const engine::ExportedKv> memory) override;
  void seal(Id128 reservation, SealInfo seal) override;
  void fail(Id128 reservation, const Error& why) override;
  void withdraw(Id128 reservation, const std::string& why) override;
  Result<std::string> supersede(Id128 reservation) override;
  void reach(const std::vector<std::string>& endpoints) override;
  Result<FetchId> fetch(Fetch fetch, FetchEvents events) override;
  void cancel(FetchId fetch) override;
  void decide(FetchId member) override;
  void abandon(FetchId member, const Error& why) override;

 private:
  // Chunks that aren't packed or placed, as they lie in this end's memory.
  struct InPlace {
    std::optional<transform::InPlace> shown;  // The loop's: gives runs to channels.
    std::optional<transform::InPlace> read;   // The mover's, once something is shown.
    std::array<std::byte, transform::kSectionAlign> pads{};
    // As transform::InPlace::runs(); false leaves `runs` empty. False for a small body: it costs less to
    // copy, and fence and SEAL needn't wait until it has been sent.
    Result<bool> show(const std::shared_ptr<const transform::Plan>& plan, const kv::Descriptor& descriptor,
                      std::uint32_t rank, const transform::Chunk& chunk, const kv::Binding& binding,
                      transform::BodyRuns& runs);
  };

  // Processor time of the mover's stages.
  struct BusyCounters {
    Counter pack, encode, decode, place, verify;
  };

  // --- Producer: what a reservation holds, and what an attempt sends.
  struct Held {
    std::vector<std::pair<kv::TokenRange, std::shared_ptr<const engine::ExportedKv>>> memory;
    std::function<void(const Ending&)> ended;
    Ending ending;
    Instant offered_at;
  };
  struct Outgoing {
    std::shared_ptr<const transform::Plan> plan;
    // Made after the plan was told.
    std::optional<transform::Packer> packer;
    InPlace in_place;
    std::string wire;  // one_line() of the plan's.
    Meters::Moved moved;
    std::uint32_t generation = 0;
    std::vector<std::vector<Digest128>> tiles;  // By chunk, of this generation.
  };
  // Chunks and fences of one data channel, in order; few are packed ahead of the socket.
  struct Outbox {
    std::deque<std::variant<SendChunk, SendFence>> queue;
    std::uint32_t packing = 0;
    std::uint32_t unsent = 0;
  };
  struct Packing;
  // A consumer that this side dials.
  struct Reach {
    std::vector<Links::Way> ways;
    std::size_t next_way = 0;
    std::string refused;
  };

  // --- Consumer.
  // A chunk in its slot: in staging, a view of the producer's memory, or in the destination already.
  struct Incoming;
  struct Landed {
    wire::ChunkHeader header;
    transport::Received body;
    bool is_in_place = false;
    std::vector<std::byte> memory = {};  // What `body` views, if it came early.
  };
  // A chunk that came before there was a slot for it.
  struct EarlyChunk {
    ChannelId channel;
    Landed landed;
  };
  // What comes on a channel: for a slot, kept until there is one, or dropped.
  struct Landing {
    std::shared_ptr<Incoming> incoming;
    std::uint32_t slot = 0;
    std::unique_ptr<EarlyChunk> early = nullptr;
  };
  // One fetch, from connecting to its terminal event.
  struct Incoming {
    FetchId id = 0;
    Fetch fetch;
    FetchEvents events;
    std::string producer;
    Digest128 source;              // Descriptor, as the ticket says.
    std::vector<Links::Way> ways;  // To the producer.
    std::size_t next_way = 0;
    std::string refused;      // Ways that led nowhere, and why.
    std::string transport;    // That of the session.
    wire::HandoffId handoff;  // Once begun.
    bool is_begun = false, is_ended = false, is_owned = false;
    bool is_cancelled = false;                       // Before it was begun.
    bool is_whole = false;                           // Nothing is used that is here already.
    std::uint64_t known = 0;                         // Tokens that are here already and aren't asked for,
    Amount retained;                                 // their memory, and who keeps them until
    std::shared_ptr<const engine::HeldPrefix> held;  // the destination does.
    std::shared_ptr<const transform::Plan> plan;     // Made while OPEN is under way.
    std::string wire;                                // one_line() of the plan's.
    Meters::Moved moved;
    std::unique_ptr<transform::Placer> placer;
    InPlace in_place;
    device::HostBuffer staging;
    std::uint64_t slot_bytes = 0;
    std::vector<Landed> slots;
    std::vector<EarlyChunk> early;
    std::uint32_t early_taken = 0;         // The attempt whose early chunks have slots.
    device::HostBuffer copy;               // The mover's: place_body().
    std::vector<kv::Binding> destination;  // By layer group.
    bool has_destination = false, wants_destination = false;
    std::vector<std::vector<Digest128>> tiles;  // By chunk, placed and read back.
    std::uint64_t bytes = 0, stored_bytes = 0;
    Instant begun_at, planned_at, ready_at, verifying_at;
  };

  // Events into the cores; their actions are carried out in order, also those that come meanwhile.
  template <typename Event>
  void produce(Event event) {
    enqueue<ProducerActions>(event);
  }
  template <typename Event>
  void consume(Event event) {
    enqueue<ConsumerActions>(event);
  }
  template <typename Actions, typename Event>
  void enqueue(Event event) {
    if (is_closing_) return;
    Actions out;
    event(out);
    for (auto& action : out) actions_.emplace_back(std::move(action));
    pump();
  }
  void pump();

  void act(SendFrame& action);
  void act(RevokeChannel& action);
  void make_plan(const MakePlan& action, bool is_producer);
  // The other end's descriptor, out of its HELLO.
  Result<const kv::Descriptor*> descriptor_of_peer(Digest128 digest) const;
  static Result<std::shared_ptr<const transform::Plan>> made_plan(const MakePlan& action,
                                                                  const kv::Descriptor& source,
                                                                  const kv::Descriptor& target,
                                                                  const transform::Route& route);
  Result<std::shared_ptr<const transform::Plan>> outgoing_plan(const MakePlan& action);
  Status make_packer(Outgoing& outgoing) const;
  wire::Codec codec_of(const transform::Plan& plan, const MakePlan& action) const;
  Result<std::shared_ptr<const transform::Plan>> incoming_plan(const MakePlan& action);
  static PlanFacts facts_of(const std::shared_ptr<const transform::Plan>& plan);
  // Producer's.
  void carry_out(ProducerAction& action);
  void act(SendChunk& action);
  void act(SendFence& action);
  void act(const ComputeSeal& action);
  void act(const ResumeAttempt& action);
  void act(const ReleasePins& action);
  void act(const ProducerHandoffEnded& action);
  void act(const ReservationEnded& action);
  void run_outbox(ChannelId channel);
  void start_packing(ChannelId channel, const SendChunk& send);
  Status pack(Packing& packing, const transform::Chunk& chunk);
  Status take_body(Packing& packing, const transform::Chunk& chunk);
  void packed(const std::shared_ptr<Packing>& packing);
  void close_outbox(ChannelId channel);
  void reach(const std::shared_ptr<Reach>& reach);
  void reach_again(SessionId session);
  void report_lost(const ChunkRef& chunk);
  // The published piece that holds `tokens`; null if none does.
  std::shared_ptr<const engine::ExportedKv> memory_of(const Held& held, const kv::TokenRange& tokens) const;
  // Consumer's.
  void carry_out(ConsumerAction& action);
  void act(const ReserveCapacity& action);
  void act(const PlaceChunk& action);
  void act(const Verify& action);
  void act(const VoidChunks& action);
  void act(const TakeEarly& action);
  void give_early(Incoming& incoming);
  void act(const NeedSession& action);
  void act(const Verified& action);
  void act(Own& action);
  void act(const ReleaseStaging& action);
  void act(const ReleaseDestination& action);
  void act(const ConsumerHandoffEnded& action);
  void dial(const std::shared_ptr<Incoming>& incoming);
  void connected(const std::shared_ptr<Incoming>& incoming, SessionId session);
  void refused(const std::shared_ptr<Incoming>& incoming, const Links::Way& way, const Error& why);
  void unreachable(const std::shared_ptr<Incoming>& incoming, const Error& why);
  void look_up(const std::shared_ptr<Incoming>& incoming, SessionId session);
  void use_known(Incoming& incoming, const kv::Descriptor& source, KnownState known) const;
  bool begin_whole(const std::shared_ptr<Incoming>& incoming);
  void begin(const std::shared_ptr<Incoming>& incoming, SessionId session);
  void plan_ahead(const Incoming& incoming);
  void end_unbegun(const std::shared_ptr<Incoming>& incoming, const Error& why);
  void stop_unbegun(const std::shared_ptr<Incoming>& incoming, const Error& why);
  void destination_ready(const std::shared_ptr<Incoming>& incoming, std::uint32_t attempt,
                         Result<std::vector<kv::Binding>> bindings);
  Status check_destination(const std::vector<kv::Binding>& bindings) const;
  void arrived(ChannelId channel, transport::Received body);
  Result<transport::Pieces> judge(ChannelId channel, const transport::Incoming& incoming);
  Status place(Incoming& incoming, const transform::Chunk& chunk, const Landed& landed,
               std::span<Digest128> stored);
  std::shared_ptr<Incoming> find(const wire::HandoffId& handoff) const;
  Ending ending_of(const Incoming& incoming, TerminalKind kind, const Status& why) const;
  void forget_if_over(const Incoming& incoming);
  HandoffSnapshot snapshot_of(const ReservationView& view, Instant at) const;
  HandoffSnapshot snapshot_of(const Incoming& incoming, Instant at) const;

  LinkEvents link_events();

  net::Loop& loop_;
  net::Poster poster_;
  kv::Descriptor descriptor_;
  Digest128 descriptor_digest_;
  AgentOptions options_;
  Meters meters_;
  BusyCounters busy_;
  Compression compression_;  // The mover's.
  Id128 incarnation_;
  Instant started_;
  Ledger ledger_;
  ProducerCore producer_;
  ConsumerCore consumer_;
  Verdicts verdicts_;  // Of fetches, before they are begun.

  std::map<SessionId, Peer> peers_;
  std::map<Id128, Held> held_;
  std::map<AttemptKey, std::shared_ptr<Outgoing>> outgoing_;
  std::map<ChannelId, Outbox> outboxes_;
  std::map<SessionId, std::shared_ptr<Reach>> reached_;
  std::map<FetchId, std::shared_ptr<Incoming>> fetches_;
  std::map<wire::HandoffId, FetchId> by_handoff_;
  std::map<ChannelId, std::vector<std::byte>> discarded_;
  device::HostBuffer spare_staging_;  // The largest that a fetch has given back.
  std::map<ChannelId, Landing> landing_;
  FetchId next_fetch_ = 1;

  std::deque<std::variant<ProducerAction, ConsumerAction>> actions_;
  bool is_pumping_ = false;
  bool is_closing_ = false;
  net::Deadline next_tick_;

  std::unique_ptr<Links> links_;
  std::unique_ptr<Mover> mover_;  // Destroyed first: its jobs point into the rest.
};

}  // namespace isthmus::handoff
