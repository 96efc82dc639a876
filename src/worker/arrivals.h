// SPDX-License-Identifier: Apache-2.0
// Which states have come here before: who has nothing to look up needn't wait for the engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "base/digest.h"
#include "engine/api/block_chain.h"
#include "engine/api/engine.h"

namespace isthmus::worker {

// Loop's thread. What it remembers may be gone from the engine, which alone knows; what it has forgotten
// costs a hit.
class Arrivals {
 public:
  static constexpr std::size_t kRememberedMax = 4096;

  // The engine's.
  Arrivals(const Digest128& descriptor, std::uint64_t block_tokens)
      : descriptor_(descriptor), block_tokens_(block_tokens) {}

  // False: no state that begins with this one's first block has come of its origin. Counts the question.
  bool may_know(const engine::ArrivingState& state);
  // The state is owned; its first `known` tokens were here already.
  void add(const engine::ArrivingState& state, std::uint64_t known);

  std::uint64_t tokens_queried() const { return queried_; }
  std::uint64_t tokens_known() const { return known_; }

 private:
  // None of a prompt without a whole block.
  std::vector<engine::BlockKey> first_key(const engine::ArrivingState& state) const;

  Digest128 descriptor_;
  std::uint64_t block_tokens_ = 0;
  std::set<engine::BlockKey> remembered_;
  std::deque<engine::BlockKey> order_;  // The oldest goes first.
  std::uint64_t queried_ = 0, known_ = 0;
};

}  // namespace isthmus::worker
