// SPDX-License-Identifier: Apache-2.0
// The capacity ledger: who holds which bytes and blocks, and whether one more handoff fits at its transient
// peak.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/time.h"

namespace isthmus::handoff {

enum class Category : std::uint8_t {
  kActive,      // KV of sequences that the engine decodes.
  kIncoming,    // Destination of a handoff that isn't owned yet.
  kStaging,     // Slots that chunks land in; a memory pool of its own.
  kPinned,      // Source pages that a reservation holds.
  kRetained,    // What is here already of a handoff that isn't owned yet.
  kQuarantine,  // Destinations that may still be written.
};
inline constexpr std::size_t kCategoryCount = 6;
std::string_view name(Category category);

struct Amount {
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
  friend bool operator==(const Amount&, const Amount&) = default;
  friend Amount operator-(Amount a, Amount b) { return {a.bytes - b.bytes, a.blocks - b.blocks}; }
};

struct Capacity {
  Amount kv;  // The pool of KV memory. blocks = 0: the memory has no blocks, bytes count alone.
  std::uint64_t staging_bytes = 0;
};

using GrantId = std::uint64_t;  // 0: none.

// One per agent and memory kind. Not thread-safe; owned by the shell, used by both cores and the worker.
class Ledger {
 public:
  explicit Ledger(Capacity capacity);

  // Take `amount` for `category` until release(). `expected_end` is when it will be free at the latest, for
  // hints. exhausted, saying what is free; unchanged then.
  Result<GrantId> grant(Category category, Amount amount, Instant expected_end = kFarFuture);
  // Destination (kIncoming) and staging together or not at all: a handoff's transient peak.
  struct Peak {
    GrantId destination = 0, staging = 0;
  };
  Result<Peak> grant_peak(Amount destination, std::uint64_t staging_bytes, Instant expected_end);
  // Same memory, other use (incoming → active, incoming → quarantine). Not from or to kStaging.
  void move(GrantId grant, Category category);
  // `grant` takes over what `other` has, which is released: one grant of both. Neither is 0 or kStaging.
  void join(GrantId grant, GrantId other);
  void release(GrantId grant);  // 0 is nothing.

  Amount held(Category category) const;
  Amount free() const;  // Of the KV pool.
  std::uint64_t free_staging() const;
  const Capacity& capacity() const { return capacity_; }
  // When the next grant with a known end will be free; at least a millisecond, at most `limit`.
  Duration retry_hint(Instant now, Duration limit) const;

  std::uint64_t granted() const { return granted_; }
  std::uint64_t released() const { return released_; }
  std::uint64_t live() const { return grants_.size(); }

  // The equations: granted = released + live; each category's sum is its live grants'; free + held =
  // capacity. internal, naming the equation and both sides. Cheap enough for tests after each event, not for
  // each production event.
  Status check() const;

 private:
  struct Grant {
    Category category = Category::kActive;
    Amount amount;
    Instant expected_end;
  };
  Status fits(Amount kv, std::uint64_t staging_bytes) const;
  GrantId put(Category category, Amount amount, Instant expected_end);

  Capacity capacity_;
  std::map<GrantId, Grant> grants_;
  std::multimap<Instant, GrantId> ends_;
  std::array<Amount, kCategoryCount> held_{};
  std::uint64_t granted_ = 0, released_ = 0;
};

}  // namespace isthmus::handoff
