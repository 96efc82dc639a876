// SPDX-License-Identifier: Apache-2.0
// Sums are kept as grants come and go, and can be recomputed from the live grants by check().
#include "handoff/core/ledger.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::handoff {
namespace {

constexpr std::string_view kNames[] = {"active", "incoming", "staging", "pinned", "retained", "quarantine"};
static_assert(std::size(kNames) == kCategoryCount);

std::size_t index(Category category) {
  return static_cast<std::size_t>(category);
}

void add(Amount& sum, Amount amount) {
  sum.bytes += amount.bytes;
  sum.blocks += amount.blocks;
}

}  // namespace

std::string_view name(Category category) {
  return kNames[index(category)];
}

Ledger::Ledger(Capacity capacity) : capacity_(capacity) {}

Amount Ledger::held(Category category) const {
  return held_[index(category)];
}

Amount Ledger::free() const {
  Amount left = capacity_.kv;
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    if (i == index(Category::kStaging)) continue;
    left.bytes -= held_[i].bytes;
    left.blocks -= held_[i].blocks;
  }
  return left;
}

std::uint64_t Ledger::free_staging() const {
  return capacity_.staging_bytes - held(Category::kStaging).bytes;
}

Status Ledger::fits(Amount kv, std::uint64_t staging_bytes) const {
  const Amount left = free();
  if (kv.bytes > left.bytes) {
    return Error{Code::kExhausted, fmt::format("{} KV bytes wanted, {} of {} are free", kv.bytes, left.bytes,
                                               capacity_.kv.bytes)};
  }
  if (kv.blocks > left.blocks) {
    return Error{Code::kExhausted, fmt::format("{} KV blocks wanted, {} of {} are free", kv.blocks,
                                               left.blocks, capacity_.kv.blocks)};
  }
  if (staging_bytes > free_staging()) {
    return Error{Code::kExhausted, fmt::format("{} staging bytes wanted, {} of {} are free", staging_bytes,
                                               free_staging(), capacity_.staging_bytes)};
  }
  return ok_status();
}

GrantId Ledger::put(Category category, Amount amount, Instant expected_end) {
  const GrantId id = ++granted_;
  grants_.emplace(id, Grant{category, amount, expected_end});
  if (expected_end != kFarFuture) ends_.emplace(expected_end, id);
  add(held_[index(category)], amount);
  return id;
}

Result<GrantId> Ledger::grant(Category category, Amount amount, Instant expected_end) {
  if (capacity_.kv.blocks == 0) amount.blocks = 0;
  if (category == Category::kStaging) {
    ISTHMUS_TRY(fits({}, amount.bytes));
    return put(category, {amount.bytes, 0}, expected_end);
  }
  ISTHMUS_TRY(fits(amount, 0));
  return put(category, amount, expected_end);
}

Result<Ledger::Peak> Ledger::grant_peak(Amount destination, std::uint64_t staging_bytes,
                                        Instant expected_end) {
  if (capacity_.kv.blocks == 0) destination.blocks = 0;
  ISTHMUS_TRY(fits(destination, staging_bytes));
  Peak peak;
  peak.destination = put(Category::kIncoming, destination, expected_end);
  peak.staging = put(Category::kStaging, {staging_bytes, 0}, expected_end);
  return peak;
}

void Ledger::move(GrantId grant, Category category) {
  if (grant == 0) return;
  const auto found = grants_.find(grant);
  ISTHMUS_CHECK(found != grants_.end());
  Grant& moved = found->second;
  ISTHMUS_CHECK((moved.category == Category::kStaging) == (category == Category::kStaging));
  held_[index(moved.category)].bytes -= moved.amount.bytes;
  held_[index(moved.category)].blocks -= moved.amount.blocks;
  moved.category = category;
  add(held_[index(category)], moved.amount);
}

void Ledger::join(GrantId grant, GrantId other) {
  const auto found = grants_.find(grant), taken = grants_.find(other);
  ISTHMUS_CHECK(grant != other && found != grants_.end() && taken != grants_.end());
  move(other, found->second.category);
  add(found->second.amount, taken->second.amount);
  // The sum stays as it is: only the grant goes.
  taken->second.amount = {};
  release(other);
}

void Ledger::release(GrantId grant) {
  if (grant == 0) return;
  const auto found = grants_.find(grant);
  ISTHMUS_CHECK(found != grants_.end());
  const Grant& gone = found->second;
  held_[index(gone.category)].bytes -= gone.amount.bytes;
  held_[index(gone.category)].blocks -= gone.amount.blocks;
  const auto [begin, end] = ends_.equal_range(gone.expected_end);
  const auto entry = std::find_if(begin, end, [&](const auto& item) { return item.second == grant; });
  if (entry != end) ends_.erase(entry);
  grants_.erase(found);
  ++released_;
}

Duration Ledger::retry_hint(Instant now, Duration limit) const {
  const auto next = ends_.upper_bound(now);
  const Duration wait = next == ends_.end() ? limit : next->first - now;
  return std::clamp<Duration>(wait, std::chrono::milliseconds(1),
                              std::max<Duration>(limit, std::chrono::milliseconds(1)));
}

Status Ledger::check() const {
  if (granted_ != released_ + grants_.size()) {
    return Error{Code::kInternal, fmt::format("ledger: granted {} != released {} + live {}", granted_,
                                              released_, grants_.size())};
  }
  std::array<Amount, kCategoryCount> sums{};
  for (const auto& [id, grant] : grants_) add(sums[index(grant.category)], grant.amount);
  Amount kv;
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    if (!(sums[i] == held_[i])) {
      return Error{Code::kInternal,
                   fmt::format("ledger: {} holds {} bytes, {} blocks; its grants {} bytes, {} blocks",
                               kNames[i], held_[i].bytes, held_[i].blocks, sums[i].bytes, sums[i].blocks)};
    }
    if (i != index(Category::kStaging)) add(kv, sums[i]);
  }
  if (kv.bytes > capacity_.kv.bytes || kv.blocks > capacity_.kv.blocks ||
      sums[index(Category::kStaging)].bytes > capacity_.staging_bytes) {
    return Error{Code::kInternal, fmt::format("ledger: {} KV bytes and {} blocks are held of {} and {}",
                                              kv.bytes, kv.blocks, capacity_.kv.bytes, capacity_.kv.blocks)};
  }
  return ok_status();
}

}  // namespace isthmus::handoff
