// SPDX-License-Identifier: Apache-2.0
// One armed instant per key, in order: what is due is found without looking at the rest.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/time.h"

namespace isthmus::handoff {

template <typename Key>
class Deadlines {
 public:
  // Replaces the key's instant. kFarFuture disarms.
  void arm(const Key& key, Instant at) {
    disarm(key);
    if (at == kFarFuture) return;
    order_.emplace(at, key);
    at_.emplace(key, at);
  }
  void disarm(const Key& key) {
    const auto found = at_.find(key);
    if (found == at_.end()) return;
    order_.erase({found->second, key});
    at_.erase(found);
  }
  bool is_armed(const Key& key) const { return at_.contains(key); }
  Instant next() const { return order_.empty() ? kFarFuture : order_.begin()->first; }
  // Takes one key that is due; ties in key order.
  std::optional<Key> pop_due(Instant now) {
    if (order_.empty() || order_.begin()->first > now) return std::nullopt;
    const Key key = order_.begin()->second;
    disarm(key);
    return key;
  }

 private:
  std::set<std::pair<Instant, Key>> order_;
  std::map<Key, Instant> at_;
};

}  // namespace isthmus::handoff
