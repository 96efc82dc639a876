// SPDX-License-Identifier: Apache-2.0
// See members.h.
#include "transform/members.h"

#include <algorithm>

namespace isthmus::transform {
namespace {

void find_holders(const kv::Descriptor& descriptor, const Place& place, std::uint32_t data,
                  std::vector<std::uint32_t>& ranks) {
  ranks.clear();
  for (const kv::RankBox& box : descriptor.partition) {
    if (box.group == place.group && box.layer_begin <= place.layer && place.layer < box.layer_end &&
        box.head_begin <= place.head && place.head < box.head_end && box.data_replica == data &&
        box.has_token(place.position))
      ranks.push_back(box.rank);
  }
  std::sort(ranks.begin(), ranks.end());
}

std::uint32_t data_of(const kv::Descriptor& descriptor, std::uint32_t rank, std::uint32_t group) {
  const auto found = std::ranges::find_if(
      descriptor.partition, [&](const kv::RankBox& box) { return box.rank == rank && box.group == group; });
  return found == descriptor.partition.end() ? 0 : found->data_replica;
}

}  // namespace

bool is_split(const kv::Descriptor& descriptor) {
  return std::ranges::any_of(descriptor.partition, [&](const kv::RankBox& box) {
    return box.rank != descriptor.partition.front().rank;
  });
}

bool has_rank(const kv::Descriptor& descriptor, std::uint32_t rank) {
  return std::ranges::any_of(descriptor.partition, [&](const kv::RankBox& box) { return box.rank == rank; });
}

bool has_heads(const kv::LayerGroup& group) {
  return group.attention != kv::AttentionKind::kMla && group.attention != kv::AttentionKind::kSparseIndexed;
}

std::span<const Route> Members::find(const Place& place, std::uint32_t source_data,
                                     std::uint32_t target_data) {
  find_holders(target_, place, target_data, readers_);
  find_holders(source_, place, source_data, copies_);
  routes_.clear();
  const bool in_turn = has_heads(source_.groups[place.group]);
  for (std::size_t i = 0; i < readers_.size() && !copies_.empty(); ++i)
    routes_.push_back({copies_[in_turn ? i % copies_.size() : 0], readers_[i]});
  return routes_;
}

bool Members::reads(const Route& route, const Place& place) {
  const auto routes = find(place, data_of(source_, route.source_rank, place.group),
                           data_of(target_, route.target_rank, place.group));
  return std::ranges::find(routes, route) != routes.end();
}

std::span<const Route> Members::routes(const Place& place) {
  return find(place, 0, 0);
}

}  // namespace isthmus::transform
