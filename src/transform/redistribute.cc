// SPDX-License-Identifier: Apache-2.0
// See redistribute.h.
#include "transform/redistribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "transform/program.h"
#include "transform/token_runs.h"

namespace isthmus::transform {
namespace {

bool holds(const kv::RankBox& rank, const Chunk& chunk) {
  const kv::Box& box = chunk.box;
  return rank.group == chunk.group && rank.layer_begin <= box.layer_begin &&
         box.layer_end <= rank.layer_end && rank.head_begin <= box.head_begin &&
         box.head_end <= rank.head_end && rank.has_token(box.tokens.begin);
}

std::vector<std::uint32_t> holders(const kv::Descriptor& descriptor, const Chunk& chunk, std::uint32_t data) {
  std::vector<std::uint32_t> ranks;
  for (const kv::RankBox& rank : descriptor.partition) {
    if (holds(rank, chunk) && rank.data_replica == data) ranks.push_back(rank.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool has_heads(const kv::LayerGroup& group) {
  return group.attention != kv::AttentionKind::kMla && group.attention != kv::AttentionKind::kSparseIndexed;
}

// One end's ranks with what reads or writes them.
template <typename Program>
struct End {
  std::map<std::uint32_t, std::pair<const RankMemory*, Program>> ranks;

  static Result<End> make(const std::shared_ptr<const Plan>& plan, const kv::Descriptor& descriptor,
                          std::span<const RankMemory> memory) {
    End end;
    for (const RankMemory& rank : memory) {
      if (rank.groups.size() != descriptor.groups.size()) {
        return Error{Code::kInvalidArgument,
                     fmt::format("rank {}: {} bindings for {} layer groups", rank.rank, rank.groups.size(),
                                 descriptor.groups.size())};
      }
      ISTHMUS_TRY(Program program, Program::make(plan, descriptor, rank.rank));
      if (!end.ranks.try_emplace(rank.rank, &rank, std::move(program)).second) {
        return Error{Code::kInvalidArgument, fmt::format("rank {} is there twice", rank.rank)};
      }
    }
    return end;
  }

  Result<std::pair<const RankMemory*, Program>*> at(std::uint32_t rank) {
    const auto found = ranks.find(rank);
    if (found != ranks.end()) return &found->second;
    return Error{Code::kInvalidArgument, fmt::format("the memory of rank {} is missing", rank)};
  }
};

Status check_tables(const Plan& plan, const kv::Descriptor& descriptor, std::span<const RankMemory> memory,
                    bool is_written) {
  for (const RankMemory& rank : memory) {
    for (const kv::RankBox& box : descriptor.partition) {
      if (box.rank != rank.rank || box.group >= rank.groups.size()) continue;
      const kv::Binding& binding = rank.groups[box.group];
      const auto table = TokenTable::of(binding, descriptor.representation[box.group].block_tokens, box);
      const kv::TokenRange tokens{box.tokens_below(plan.product().groups[box.group].token_begin),
                                  box.tokens_below(plan.tokens().end)};
      if (tokens.size() == 0) continue;
      Status good = check_table(table, tokens);
      if (good.ok() && is_written) good = check_blocks(binding);
      if (!good.ok())
        return std::move(good).with_context(fmt::format("rank {}, group {}", rank.rank, box.group));
    }
  }
  return ok_status();
}

class Mover {
 public:
  Mover(const Redistribution& request, End<Packer> from, End<Placer> to)
      : request_(request), from_(std::move(from)), to_(std::move(to)) {
    body_.resize(request.plan->body_bytes_max());
  }

  Result<Moved> run() {
    for (const Chunk& chunk : request_.plan->chunks()) {
      ISTHMUS_TRY(move(chunk));
      if (request_.done) request_.done(chunk);
    }
    moved_.root = root_.root();
    return moved_;
  }

 private:
  // One packed body serves all targets that read the same rank.
  Status move(const Chunk& chunk) {
    ISTHMUS_TRY(std::vector<Route> routes,
                routes_of(chunk, request_.source, request_.target, request_.reading));
    std::sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) {
      return std::pair(a.source_rank, a.target_rank) < std::pair(b.source_rank, b.target_rank);
    });
    first_tiles_.clear();
    for (std::size_t i = 0; i < routes.size(); ++i) {
      if (i == 0 || routes[i].source_rank != routes[i - 1].source_rank)
        ISTHMUS_TRY(pack(chunk, routes[i].source_rank));
      Status placed = place(chunk, routes[i].target_rank);
      if (!placed.ok())
        return std::move(placed).with_context(fmt::format("target rank {}", routes[i].target_rank));
    }
    for (std::size_t i = 0; i < first_tiles_.size(); ++i)
      root_.add(request_.plan->tile_key(chunk, i), first_tiles_[i]);
    ++moved_.chunks;
    return ok_status();
  }

  Status pack(const Chunk& chunk, std::uint32_t rank) {
    ISTHMUS_TRY(auto* end, from_.at(rank));
    tiles_.resize(chunk.tile_count());
    Status packed = end->second.pack(chunk, end->first->groups[chunk.group],
                                     std::span(body_).first(chunk.body_bytes), tiles_);
    if (!packed.ok()) return std::move(packed).with_context(fmt::format("source rank {}", rank));
    ++moved_.packed;
    if (first_tiles_.empty()) first_tiles_ = tiles_;
    const auto [first, other] = std::mismatch(first_tiles_.begin(), first_tiles_.end(), tiles_.begin());
    if (first == first_tiles_.end()) return ok_status();
    const auto tile = static_cast<std::uint64_t>(first - first_tiles_.begin());
    return Error{Code::kCorrupt, fmt::format("the copy on source rank {} differs from the one read first: {}",
                                             rank, request_.plan->tile_text(chunk, tile))};
  }

  Status place(const Chunk& chunk, std::uint32_t rank) {
    ISTHMUS_TRY(auto* end, to_.at(rank));
    const kv::Binding& binding = end->first->groups[chunk.group];
    stored_.resize(end->second.stored_count(chunk));
    ISTHMUS_TRY(end->second.place(chunk, std::span(body_).first(chunk.body_bytes), tiles_, binding, stored_));
    ISTHMUS_TRY(
        end->second.verify(chunk, binding, tiles_, stored_, std::span(body_).first(chunk.body_bytes)));
    ++moved_.placed;
    moved_.wire_bytes += chunk.body_bytes;
    return ok_status();
  }

  const Redistribution& request_;
  End<Packer> from_;
  End<Placer> to_;
  Moved moved_;
  TileRoot root_;
  std::vector<std::byte> body_;
  std::vector<Digest128> tiles_, first_tiles_, stored_;
};

}  // namespace

Result<std::vector<Route>> routes_of(const Chunk& chunk, const kv::Descriptor& source,
                                     const kv::Descriptor& target, const Reading& reading) {
  const std::vector<std::uint32_t> readers = holders(target, chunk, reading.target_data);
  const std::vector<std::uint32_t> copies = holders(source, chunk, reading.source_data);
  if (readers.empty() || copies.empty()) {
    return Error{Code::kInvalidArgument, fmt::format("no rank of the {} holds chunk {}",
                                                     copies.empty() ? "source" : "target", chunk.index)};
  }
  if (reading.copy.has_value() && *reading.copy >= copies.size()) {
    return Error{Code::kInvalidArgument, fmt::format("copy {} of chunk {} is to be read, and there are {}",
                                                     *reading.copy, chunk.index, copies.size())};
  }
  const bool in_turn = !reading.copy.has_value() && has_heads(source.groups[chunk.group]);
  std::vector<Route> routes;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const std::size_t copy = in_turn ? (chunk.index + i) % copies.size() : reading.copy.value_or(0);
    routes.push_back({copies[copy], readers[i]});
  }
  return routes;
}

Result<Moved> redistribute(const Redistribution& request) {
  ISTHMUS_TRY(auto from, End<Packer>::make(request.plan, request.source, request.from));
  ISTHMUS_TRY(auto to, End<Placer>::make(request.plan, request.target, request.to));
  ISTHMUS_TRY(check_tables(*request.plan, request.source, request.from, false));
  ISTHMUS_TRY(check_tables(*request.plan, request.target, request.to, true));
  return Mover(request, std::move(from), std::move(to)).run();
}

}  // namespace isthmus::transform
