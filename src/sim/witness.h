// SPDX-License-Identifier: Apache-2.0
// Keeps its own books of one agent from the actions that its core gives and the frames that reach it, and
// compares. Shares no code with cores or ledger.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "handoff/core/consumer.h"
#include "handoff/core/ledger.h"
#include "handoff/core/producer.h"

namespace isthmus::handoff::sim {

class Witness {
 public:
  using Report = std::function<void(std::string)>;
  using IsOpen = std::function<bool(ChannelId)>;
  Witness(Report report, IsOpen is_open) : report_(std::move(report)), is_open_(std::move(is_open)) {}

  void admitted(const Id128& reservation, std::uint64_t pinned_bytes);
  void begun(const wire::HandoffId& handoff, std::uint64_t destination_bytes, std::uint64_t retained_bytes);
  void engine_released(GrantId grant);
  // True for the first SEAL of an attempt.
  bool sees(const ProducerAction& action, Instant now);
  void sees(const ConsumerAction& action);
  void hears(const wire::Frame& frame);                           // It is about to reach the core.
  void fenced(ChannelId channel, std::uint64_t token);            // So is a fence.
  void reported(const ChunkRef& chunk) { flying_.erase(chunk); }  // chunk_sent().

  // After each event: sums by category, number of grants, free + held = capacity.
  void check(const Ledger& ledger) const;
  // When nothing moves any more: every duty is over, exactly once.
  void check_end() const;

 private:
  using AttemptKey = std::pair<wire::HandoffId, std::uint32_t>;
  // What one handoff of a consumer holds, as its actions say.
  struct Held {
    std::uint64_t destination_bytes = 0, retained_bytes = 0, staging_bytes = 0;
    bool reserved = false, owned = false, quarantined = false;
    bool staging_released = false, destination_released = false;
    std::uint32_t ends = 0;
    // From its beginning to its end, or to that of what may still be written.
    bool retains() const {
      const bool is_over = ends > 0 && !quarantined;
      return retained_bytes > 0 && !owned && !is_over && !destination_released;
    }
    // That the first CREDIT of an attempt named, without those fenced since; and the last attempt that did.
    std::map<ChannelId, std::uint64_t> fences;  // The last attempt whose fence has come there.
    std::map<ChannelId, std::uint32_t> channels;
    std::uint32_t named = 0;
  };
  // What a producer has granted one attempt, and what has moved in it.
  struct Leased {
    Instant end;
    std::uint32_t generation = 0, chunks = 0, sent = 0, granted = 0, placed = 0;
    std::uint64_t renewed = 0;  // Progress at the last extension.
    bool sealed = false;
    std::uint64_t progress() const { return std::uint64_t{sent} + granted + placed; }
  };

  void count_frame(const wire::Frame& frame);
  bool sees_frame(const wire::Frame& frame, Instant now);
  void grants(const wire::Renewed::Item& item, Instant now);
  void starts_again(Leased& leased, std::uint32_t generation) const;
  void names(const AttemptKey& key, const std::vector<ChannelId>& channels);
  void check_quiet(const wire::HandoffId& handoff, std::string_view what) const;

  Report report_;
  IsOpen is_open_;
  std::map<Id128, std::uint64_t> pinned_;
  std::set<Id128> ended_reservations_;
  std::map<AttemptKey, std::uint32_t> plans_, producer_ends_;
  std::map<AttemptKey, Leased> leased_;
  // Staging that a PLAN's codec takes here, and the attempt that has it.
  struct CodecStaging {
    std::uint64_t bytes = 0;
    std::uint32_t attempt = 0;
  };
  std::map<wire::HandoffId, CodecStaging> codecs_;
  std::set<AttemptKey> direct_;                         // Attempts that read by themselves.
  std::map<AttemptKey, std::vector<ChannelId>> early_;  // Channels that an OPEN named.
  std::map<AttemptKey, std::uint32_t> missing_;         // Chunks that the OPEN of a later attempt named.
  std::set<ChunkRef> flying_;                           // SendChunk given, not reported.
  std::set<AttemptKey> planned_;                        // Consumer: PLAN has come.
  std::map<wire::HandoffId, Held> held_;
  std::map<GrantId, std::uint64_t> active_;
  std::map<std::pair<AttemptKey, std::string>, std::uint32_t> frames_;  // By name.
};

}  // namespace isthmus::handoff::sim
