// SPDX-License-Identifier: Apache-2.0
// Both ends of one group's handoff, apart from each other: what they share is members' tickets and a network.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "groups/crew.h"

namespace isthmus::groups {

// Beyond a tile, so that it crosses in pieces, and with an incomplete one at the end.
inline constexpr std::size_t kPrompt = 300;
inline constexpr std::size_t kTile = 256;
inline constexpr std::uint64_t kPinned = 1000;  // Bytes, on each rank of a producer.

struct Ranks {
  std::uint32_t tensor = 1, pipeline = 1;
};
engine::ReferenceOptions options_of(const std::string& storage, Ranks ranks,
                                    engine::ReferenceAttention attention = engine::ReferenceAttention::kFull,
                                    std::uint32_t kv_heads = 6);
// Short enough that a test may wait for each of them to fire.
handoff::Timings hasty();

// The producer's ranks and the state that they offer. It is computed at once: engine and agents share a
// thread, and leases run meanwhile.
class Producing : public Crew {
 public:
  Producing(net::Loop& loop, const std::string& transport, const engine::ReferenceOptions& options,
            const handoff::Timings& timings);

  Status offer(const kv::Descriptor& target);
  void publish(std::size_t end);  // Up to there, on all ranks.
  void seal(wire::FinishState finish = wire::FinishState::kNone);

  std::shared_ptr<handoff::OfferedGroup> offered;
  std::optional<handoff::TerminalKind> released;  // The offer's end.
  int ends = 0;                                   // How often it was told.

 private:
  Tokens prompt_;
  engine::SequenceId source_ = 0;
  Logits row_;
  std::size_t published_ = 0;
};

// The consumer's ranks, their lead, and what they fetch.
class Consuming : public Crew {
 public:
  Consuming(net::Loop& loop, const std::string& transport, const engine::ReferenceOptions& options,
            const handoff::Timings& timings, std::vector<std::uint32_t> here = {});
  ~Consuming() { lead = nullptr; }

  // The lead is here, and with these the other ranks are elsewhere.
  void take_lead(const handoff::Timings& timings, std::vector<handoff::RemoteSeat> others = {});
  handoff::GroupFetchEvents events();  // Of this process's ranks.
  // What lies in each region of each rank here, one behind the other.
  std::vector<std::byte> memory();

  Status fetch(const std::vector<handoff::MemberTicket>& all);
  // One rank for itself, as a group's member or not.
  Status fetch_one(const handoff::MemberTicket& ticket, bool is_member);
  bool is_moving() const;           // Every member has its memory.
  bool has_of_each_member() const;  // And a chunk in it.
  void give_up_memory();            // What it owns.
  // What follows the state that it owns, or one that it computes itself.
  Logits answer();
  Logits answer_alone();

  std::unique_ptr<handoff::GroupLead> lead;
  handoff::GroupId group = 0;
  engine::SequenceId target = 0;
  std::size_t members = 0;  // Of the ranks here.
  bool is_over = false, is_given_back = false;
  int ends = 0;  // How often one was told.
  handoff::Ending ending;
  handoff::SealInfo sealed;
  std::vector<handoff::GrantId> grants;  // Of a state that it owns.

 private:
  void over(const handoff::Ending& end);

  net::Loop& loop_;
  Tokens prompt_;
};

}  // namespace isthmus::groups
