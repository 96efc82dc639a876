// SPDX-License-Identifier: Apache-2.0
// What the virtual world is made of, for its own files.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/world.h"

namespace isthmus::handoff::sim {

inline constexpr std::size_t kProducers = 2, kConsumers = 2, kAgents = kProducers + kConsumers;
inline constexpr std::size_t kNobody = ~std::size_t{0};
inline constexpr std::uint32_t kChannels = 2;
inline constexpr std::uint64_t kGarbage = 0xdeadbeef;
// What a chunk of a request's state holds once it is computed. Prefill that starts again may round otherwise:
// each generation has values of its own.
inline std::uint64_t right_value(std::size_t request, std::uint64_t generation, std::uint32_t chunk) {
  return generation << 48 | ((request + 1) * 1'000'003 + chunk);
}

// A control channel and its data channels, between one life of each end.
struct World::Link {
  SessionId id = 0;
  std::size_t producer = 0, consumer = 0;
  bool up = true;
  bool is_same_host = false;
  std::map<std::uint32_t, Duration> channels;           // Those that are up: when the last message arrives.
  Duration still_to_producer{0}, still_to_consumer{0};  // Nothing arrives there before.
};

struct World::Agent {
  std::string name;
  std::uint64_t life = 0;
  Id128 incarnation;
  bool alive = false;
  Duration paused_until{0}, wake_at{0};
  Duration clock_lost{0};  // What its clock didn't count.
  std::unique_ptr<Ledger> ledger;
  std::unique_ptr<Witness> witness;
  std::unique_ptr<ProducerCore> producer;
  std::unique_ptr<ConsumerCore> consumer;
  std::unique_ptr<GroupCore> group;  // Consumer: groups that it leads.
  std::map<GroupId, std::shared_ptr<GroupRun>> groups;
  std::map<std::uint64_t, std::unique_ptr<Memory>> memory;  // Consumer: by sequence.
  std::map<Id128, std::unique_ptr<Pages>> pages;            // Producer: by reservation.
  // By handoff and generation: what the chunks of all its attempts held when they were packed.
  std::map<std::pair<wire::HandoffId, std::uint32_t>, std::map<std::uint32_t, std::uint64_t>> packed;
};

struct World::Request {
  std::size_t producer = 0;
  Id128 reservation;
  kv::TokenRange tokens;
  std::string ticket;
  std::uint64_t computed = 0, generation = 1;
  bool finishes = false;
  bool direct = false, grouped = false;
  bool stillborn = false;  // Prefill failed before it was admitted.
  bool lied = false;       // Its producer has heard what no consumer has sent.
  Duration deadline{0};
  std::uint32_t epoch = 0;              // Grows when the slot is given to another.
  std::map<std::uint32_t, int> owners;  // By epoch.
  int legs = 0;                         // Handoffs begun for it that haven't answered.
};

// A reservation's pages: one number a chunk.
struct World::Pages {
  std::size_t request = 0;
  std::vector<std::uint64_t> values;
  bool released = false, ended = false;
};

// A handoff's destination and staging.
struct World::Memory {
  std::size_t request = 0;
  int tries_left = 0;
  std::uint32_t epoch = 0;  // Of the request, when it was begun.
  bool ended = false;
  std::uint32_t first_tile = 0;                              // Those before were here, and don't move.
  std::vector<std::uint64_t> destination, staging, digests;  // Digests: of what landed in a slot, as sent.
  std::set<std::uint32_t> placing;                           // Slots that are being read.
  struct Early {
    ChannelId channel;
    wire::ChunkHeader header;
    std::uint64_t value = 0;
  };
  std::set<std::uint32_t> opened;  // Attempts whose chunks may land here.
  std::vector<Early> early;        // Chunks that came before there were slots.
  std::uint32_t early_taken = 0;   // The attempt whose early chunks have slots.
  bool destination_released = false, staging_released = false, owned = false;
  bool direct = false;
  std::shared_ptr<GroupRun> group;  // Null: none.
  std::uint32_t rank = 0;
  bool lied = false;  // Its frames weren't all its producer's.
  bool damaged = false, other_tokens = false, slow = false, sealed = false;
};

// One handoff of several ranks, as an onlooker sees it.
struct World::GroupRun {
  struct Member {
    std::size_t consumer = 0;
    wire::HandoffId handoff;
  };
  std::size_t lead = 0;
  GroupId id = 0;
  std::vector<std::size_t> requests;  // By rank.
  std::vector<Member> members;
  std::set<std::uint32_t> verified, owned;
  bool ended = false;
};

// A chunk on its way.
struct World::Flight {
  std::shared_ptr<Link> link;
  std::uint32_t channel = 0;
  bool place = false;  // As the consumer has judged its header.
  std::uint64_t sequence = 0;
  std::uint32_t slot = 0;
  std::optional<wire::ChunkHeader> early = {};  // It waits for a slot.
  std::uint32_t attempt = 0;
};

}  // namespace isthmus::handoff::sim
