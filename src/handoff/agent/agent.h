// SPDX-License-Identifier: Apache-2.0
// The agent beside an engine: offers its states to consumers, fetches states from producers. Sessions,
// channels and memory movement around the pure cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/id.h"
#include "base/mac.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/time.h"
#include "engine/api/engine.h"
#include "handoff/agent/snapshot.h"
#include "handoff/core/ledger.h"
#include "handoff/core/protocol.h"
#include "handoff/core/states.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "kv/prices.h"
#include "net/loop.h"
#include "transport/api/transport.h"
#include "wire/ticket.h"

namespace isthmus::handoff {

struct AgentOptions {
  std::string name;  // Unique in the fleet.
  Key fleet_key{};
  std::string listen = "127.0.0.1:0";  // For transports that reach other hosts; others choose a name.
  kv::Policy policy;
  Timings timings;
  Limits limits;
  Capacity capacity;
  std::uint32_t staging_slots = 24;  // Per handoff: chunks under way while others are placed.
  // What steps and the link to consumers cost, as the operator says; tokens are each range's own. Chunks of
  // what is offered here are compressed where these say that it pays; without, and over shared memory, never.
  std::optional<kv::Prices> prices{};
  std::uint32_t rank = 0;  // Which of the descriptor's ranks it serves: their agents are a group's.
  // engine::EngineInfo's, told to consumers: they may keep what they get for later handoffs.
  bool repeats_states = false;
  // Chunks are packed and placed on a thread beside the loop's. Not where both would share a processor with
  // the peer's and only wake each other.
  bool has_mover_thread = std::thread::hardware_concurrency() > 2;
  // Told of each state that one of our reservations or handoffs enters, before anything of what that causes
  // is carried out. Loop's thread; may block it. For tests.
  std::function<void(std::variant<ProducerState, ConsumerState>)> on_state{};
};

// How a handoff ended, for logs, metrics and the worker's next step.
struct Ending {
  TerminalKind kind = TerminalKind::kFailed;
  Error error;                     // Not read for kOwned, kDone and kFinished.
  std::uint64_t bytes = 0;         // Of chunk bodies that moved.
  std::uint64_t stored_bytes = 0;  // Of these as they crossed: fewer with a codec.
  std::string wire;                // kv::WireForm::text() on one line; "" if no plan was made.
  std::string transport;           // At the consumer, once there was a session.
  std::uint32_t chunks = 0;
  Duration retry_after{0};  // kExhausted, at the consumer: when there may be memory.
};

struct Offer {
  std::uint64_t prompt_tokens = 0;                            // The state will cover [0, prompt_tokens).
  Amount pinned;                                              // What it pins here until it is released.
  Instant deadline;                                           // Of the request.
  std::optional<wire::Membership> membership = std::nullopt;  // Of a group's.
};

struct Offered {
  Id128 reservation;
  std::string ticket;
};

// What is here already of a state that is asked for.
struct KnownState {
  std::shared_ptr<const engine::HeldPrefix> held;  // Null: nothing. The fetch lets it go.
  std::uint64_t unit_tokens = 1;                   // Memory is shared in whole ones of so many tokens,
  Amount unit;                                     // each of which takes this of the destination.
};

// What a consumer's fetch reports and asks for; loop's thread. After owned() or ended() nothing follows.
struct FetchEvents {
  // Open a destination for the state; answer with its memory for `range`, by layer group of the descriptor,
  // from the loop's thread.
  std::function<void(kv::TokenRange range, std::function<void(Result<std::vector<kv::Binding>>)> done)>
      reserve;
  // The destination won't be used and nothing writes it any more: free it. Only after reserve(); never with
  // owned().
  std::function<void()> release;
  // The grant of the destination (kActive) is the receiver's to release.
  std::function<void(const SealInfo&, GrantId destination, const Ending&)> owned;
  // Also for kFinished, whose SealInfo carries the tokens; null otherwise.
  std::function<void(const SealInfo* seal, const Ending&)> ended;
  // The producer's state has this form; an error ends the fetch before anything is asked for. A member must
  // have it.
  std::function<Status(const kv::Descriptor& source)> planned = {};
  // A member's: the state has been read back and may be owned. Repeated until decide() or abandon().
  std::function<void(const SealInfo&)> verified = {};
  // Before anything is asked for, where the producer's states repeat: what is here of this one? Answer once,
  // from the loop's thread. reserve() then is for the range behind what is used of it, which may be less, or
  // nothing. Positions below `repeated` have the same bytes in all states of that origin: they may be kept
  // once the state is owned.
  std::function<void(engine::StateOrigin origin, std::uint64_t repeated,
                     std::function<void(KnownState)> done)>
      known = {};
};

struct Fetch {
  std::string ticket;
  std::vector<std::string> endpoints;  // Of the producer's agent, in any order.
  bool is_pushed = false;              // The producer dials (reach()): its endpoints aren't used.
  kv::TokenChain prompt;               // The producer's must be the same.
  Amount destination;                  // KV memory that the sequence will take here, answer included.
  Instant deadline;
  // Where either end has several ranks: what this one reads from that rank of the producer, as a member of a
  // group. It owns when decide() has said so.
  bool is_member = false;
  std::uint32_t source_rank = 0;
};

using FetchId = std::uint64_t;

class Agent {
 public:
  virtual ~Agent() = default;  // Revokes every channel first.

  // "tcp://host:port": of each transport that it listens on, in order of preference.
  virtual std::vector<std::string> endpoints() const = 0;
  virtual Id128 incarnation() const = 0;
  virtual const Ledger& ledger() const = 0;
  // At most `count_max` of each kind.
  virtual AgentSnapshot snapshot(std::size_t count_max) const = 0;
  // Memory of sequences that didn't come by a handoff: kActive until free_memory(). exhausted as
  // Ledger::grant().
  virtual Result<GrantId> take_memory(Amount amount, Instant expected_end) = 0;
  // What several reservations of this agent pin together: kPinned until free_memory(). As take_memory().
  virtual Result<GrantId> pin_memory(Amount amount, Instant expected_end) = 0;
  // Gives a grant back, an owned destination's too, and lets handoffs go on that wait for room. 0 is nothing.
  virtual void free_memory(GrantId grant) = 0;

  // Producer. `ended`: once, when the pins may go: nothing reads the exported memory any more.
  virtual Result<Offered> offer(const Offer& offer, std::function<void(const Ending&)> ended) = 0;
  // State of `range` is final and readable; ranges come in order, without gaps, in whole tiles but for the
  // last.
  virtual void publish(Id128 reservation, kv::TokenRange range,
                       std::shared_ptr<const engine::ExportedKv> memory) = 0;
  // All is published. tokens, token_digest, first_tokens and finish of `seal` are the caller's; the tile root
  // is filled here.
  virtual void seal(Id128 reservation, SealInfo seal) = 0;
  virtual void fail(Id128 reservation, const Error& why) = 0;
  virtual void withdraw(Id128 reservation, const std::string& why) = 0;
  // The ticket that alone opens the reservation from now on, whoever has it: another consumer takes over.
  // Errors: not_found (unknown, or over).
  virtual Result<std::string> supersede(Id128 reservation) = 0;
  // Dials the consumer whose endpoints these are, where consumers can't dial producers; and again when the
  // connection is lost under a handoff. A failure is logged and counted: the consumer's fetch ends by itself.
  virtual void reach(const std::vector<std::string>& endpoints) = 0;

  // Consumer. Errors: malformed if the ticket can't be read; incompatible if it is a member's and this fetch
  // isn't, or the other way round; exhausted at a limit.
  virtual Result<FetchId> fetch(Fetch fetch, FetchEvents events) = 0;
  // ended() still comes, with kCancelled, once the destination is quiet.
  virtual void cancel(FetchId fetch) = 0;
  // The group's word on a member; unknown ones and repeats are nothing. abandon() ends it like cancel(), but
  // the producer's reservation lives on.
  virtual void decide(FetchId member) = 0;
  virtual void abandon(FetchId member, const Error& why) = 0;
};

// Transports come in order of preference and outlive the agent; one that this machine doesn't support is left
// out and logged. The descriptor must validate and have the rank. Errors: invalid_argument, unavailable
// (can't listen), unsupported (on none of them).
Result<std::unique_ptr<Agent>> make_agent(net::Loop& loop, std::vector<transport::Transport*> transports,
                                          const kv::Descriptor& descriptor, AgentOptions options,
                                          MetricsRegistry& metrics);

}  // namespace isthmus::handoff
