// SPDX-License-Identifier: Apache-2.0
// A bounded set of first keys.
#include "worker/arrivals.h"

namespace isthmus::worker {

std::vector<engine::BlockKey> Arrivals::first_key(const engine::ArrivingState& state) const {
  return engine::block_keys(engine::BlockChain(descriptor_, state.origin, state.salt), state.prompt,
                            block_tokens_, state.repeated >= block_tokens_ ? 1 : 0);
}

bool Arrivals::may_know(const engine::ArrivingState& state) {
  queried_ += state.prompt.size();
  const auto first = first_key(state);
  return !first.empty() && remembered_.contains(first.front());
}

void Arrivals::add(const engine::ArrivingState& state, std::uint64_t known) {
  known_ += known;
  const auto first = first_key(state);
  if (first.empty() || !remembered_.insert(first.front()).second) return;
  order_.push_back(first.front());
  if (order_.size() <= kRememberedMax) return;
  remembered_.erase(order_.front());
  order_.pop_front();
}

}  // namespace isthmus::worker
