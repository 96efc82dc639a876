// SPDX-License-Identifier: Apache-2.0
// Who reads what from whom, when the ranks of two ends hand a state over among themselves.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/descriptor.h"

namespace isthmus::transform {

// One read and one write.
struct Route {
  std::uint32_t source_rank = 0, target_rank = 0;
  friend auto operator<=>(const Route&, const Route&) = default;
};

// A place that lies whole on a rank or not at all: a piece of a plan, for some tokens.
struct Place {
  std::uint32_t group = 0, layer = 0, head = 0;
  std::uint64_t position = 0;
};

// True if the end's state lies on several ranks.
bool is_split(const kv::Descriptor& descriptor);
bool has_rank(const kv::Descriptor& descriptor, std::uint32_t rank);
// State without heads (MLA, index keys): its copies are alike, and the first one is read.
bool has_heads(const kv::LayerGroup& group);

// Of members: each rank of the target that has a place reads it from one rank of the source. The n-th of
// them, by rank, reads copy n mod copies, or the first copy of a state without heads. Only data-parallel
// ranks of one number at each end take part: those of the route, or number 0.
class Members {
 public:
  // Both outlive it.
  Members(const kv::Descriptor& source, const kv::Descriptor& target) : source_(source), target_(target) {}
  bool reads(const Route& route, const Place& place);
  // Valid until the next call.
  std::span<const Route> routes(const Place& place);

 private:
  std::span<const Route> find(const Place& place, std::uint32_t source_data, std::uint32_t target_data);

  const kv::Descriptor& source_;
  const kv::Descriptor& target_;
  std::vector<std::uint32_t> readers_, copies_;
  std::vector<Route> routes_;
};

}  // namespace isthmus::transform
