// SPDX-License-Identifier: Apache-2.0
// See redistribute.h.
#include "transform/redistribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
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

void find_holders(const kv::Descriptor& descriptor, const Chunk& chunk, std::uint32_t data,
                  std::vector<std::uint32_t>& ranks) {
  ranks.clear();
  for (const kv::RankBox& rank : descriptor.partition) {
    if (holds(rank, chunk) && rank.data_replica == data) ranks.push_back(rank.rank);
  }
  std::sort(ranks.begin(), ranks.end());
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

// Lists that are filled for each chunk.
struct RouteLists {
  std::vector<std::uint32_t> readers, copies;
  std::vector<Route> routes;
};

// routes_of() into lists that are kept.
Status find_routes(const Chunk& chunk, const kv::Descriptor& source, const kv::Descriptor& target,
                   const Reading& reading, RouteLists& lists) {
  const auto& [readers, copies, routes] = lists;
  find_holders(target, chunk, reading.target_data, lists.readers);
  find_holders(source, chunk, reading.source_data, lists.copies);
  if (readers.empty() || copies.empty()) {
    return Error{Code::kInvalidArgument, fmt::format("no rank of the {} holds chunk {}",
                                                     copies.empty() ? "source" : "target", chunk.index)};
  }
  if (reading.copy.has_value() && *reading.copy >= copies.size()) {
    return Error{Code::kInvalidArgument, fmt::format("copy {} of chunk {} is to be read, and there are {}",
                                                     *reading.copy, chunk.index, copies.size())};
  }
  const bool in_turn = !reading.copy.has_value() && has_heads(source.groups[chunk.group]);
  lists.routes.clear();
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const std::size_t copy = in_turn ? (chunk.index + i) % copies.size() : reading.copy.value_or(0);
    lists.routes.push_back({copies[copy], readers[i]});
  }
  return ok_status();
}

// Of all threads. Chunks are taken in order, so that when one fails all before it have been taken.
struct Turns {
  explicit Turns(const Plan& plan) : end(plan.chunk_count()) {
    for (const Chunk& chunk : plan.chunks()) {
      first_tile.push_back(tiles.size());
      tiles.resize(tiles.size() + chunk.tile_count());
      tiles_max = std::max(tiles_max, chunk.tile_count());
    }
  }
  void stop_before(std::uint32_t index) {
    std::uint32_t seen = end;
    while (index < seen && !end.compare_exchange_weak(seen, index)) {
    }
  }

  std::atomic<std::uint32_t> next{0}, end;
  std::vector<std::uint64_t> first_tile;  // By chunk, an index into `tiles`.
  std::vector<Digest128> tiles;           // Each chunk's by the thread that moves it.
  std::uint64_t tiles_max = 0;
  std::mutex done;
};

class Mover {
 public:
  Mover(const Redistribution& request, Turns& turns, End<Packer> from, End<Placer> to)
      : request_(request), turns_(turns), from_(std::move(from)), to_(std::move(to)) {
    body_.resize(request.plan->body_bytes_max());
    for (auto* tiles : {&tiles_, &first_tiles_}) tiles->reserve(turns.tiles_max);
    stored_.reserve(3 * turns.tiles_max);  // At most codes, scales and zero points for each wire part.
    for (auto* ranks : {&lists_.readers, &lists_.copies})
      ranks->reserve(std::max(request.source.partition.size(), request.target.partition.size()));
    lists_.routes.reserve(request.target.partition.size());
  }

  void run() {
    while (status_.ok()) {
      const std::uint32_t index = turns_.next++;
      if (index >= turns_.end) return;
      failed_at_ = index;
      status_ = move(request_.plan->chunk(index));
      if (!status_.ok()) return turns_.stop_before(index);
      if (!request_.done) continue;
      const std::lock_guard lock(turns_.done);
      request_.done();
    }
  }
  const Status& status() const { return status_; }
  std::uint32_t failed_at() const { return failed_at_; }  // Of a status that isn't ok.

  void add_to(Moved& all) const {
    all.chunks += moved_.chunks;
    all.packed += moved_.packed;
    all.placed += moved_.placed;
    all.wire_bytes += moved_.wire_bytes;
    for (const auto& [rank, end] : from_.ranks) all.conversions += end.second.counts();
    for (const auto& [rank, end] : to_.ranks) all.conversions += end.second.counts();
  }

 private:
  // One packed body serves all targets that read the same rank.
  Status move(const Chunk& chunk) {
    ISTHMUS_TRY(find_routes(chunk, request_.source, request_.target, request_.reading, lists_));
    std::vector<Route>& routes = lists_.routes;
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
    std::copy(first_tiles_.begin(), first_tiles_.end(),
              turns_.tiles.begin() + static_cast<std::ptrdiff_t>(turns_.first_tile[chunk.index]));
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
  Turns& turns_;
  End<Packer> from_;
  End<Placer> to_;
  Moved moved_;  // Without root and conversions.
  Status status_;
  std::uint32_t failed_at_ = 0;
  RouteLists lists_;
  std::vector<std::byte> body_;
  std::vector<Digest128> tiles_, first_tiles_, stored_;
};

// True if two heads or tokens may have elements in one byte, which two threads must not write at once.
bool shares_bytes(const kv::Descriptor& descriptor) {
  for (const kv::RankBox& box : descriptor.partition) {
    const auto layout = descriptor.layout(box.group, box.rank);
    if (!layout.ok()) return true;
    for (const kv::PartLayout& part : layout->parts()) {
      for (const kv::Digit& digit : part.digits) {
        if (digit.axis != kv::Axis::kDim && digit.stride_bits % 8 != 0) return true;
      }
    }
  }
  return false;
}

// The first failure, in the plan's order.
Status first_failure(const std::vector<Mover>& movers) {
  const Mover* first = nullptr;
  for (const Mover& mover : movers) {
    if (!mover.status().ok() && (first == nullptr || mover.failed_at() < first->failed_at())) first = &mover;
  }
  return first == nullptr ? ok_status() : first->status();
}

}  // namespace

Result<std::vector<Route>> routes_of(const Chunk& chunk, const kv::Descriptor& source,
                                     const kv::Descriptor& target, const Reading& reading) {
  RouteLists lists;
  ISTHMUS_TRY(find_routes(chunk, source, target, reading, lists));
  return std::move(lists.routes);
}

Result<Moved> redistribute(const Redistribution& request) {
  const Plan& plan = *request.plan;
  Turns turns(plan);
  const std::uint32_t threads =
      shares_bytes(request.target) ? 1 : std::clamp(request.threads, 1u, std::max(1u, plan.chunk_count()));
  std::vector<Mover> movers;
  movers.reserve(threads);
  for (std::uint32_t i = 0; i < threads; ++i) {
    ISTHMUS_TRY(auto from, End<Packer>::make(request.plan, request.source, request.from));
    ISTHMUS_TRY(auto to, End<Placer>::make(request.plan, request.target, request.to));
    movers.emplace_back(request, turns, std::move(from), std::move(to));
  }
  ISTHMUS_TRY(check_tables(plan, request.source, request.from, false));
  ISTHMUS_TRY(check_tables(plan, request.target, request.to, true));
  {
    std::vector<std::jthread> others;
    for (std::uint32_t i = 1; i < threads; ++i) others.emplace_back([&mover = movers[i]] { mover.run(); });
    movers.front().run();
  }
  ISTHMUS_TRY(first_failure(movers));
  Moved moved;
  for (const Mover& mover : movers) mover.add_to(moved);
  TileRoot root;
  for (const Chunk& chunk : plan.chunks()) {
    for (std::uint64_t i = 0; i < chunk.tile_count(); ++i)
      root.add(plan.tile_key(chunk, i), turns.tiles[turns.first_tile[chunk.index] + i]);
  }
  moved.root = root.root();
  return moved;
}

}  // namespace isthmus::transform
