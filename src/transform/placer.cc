// SPDX-License-Identifier: Apache-2.0
// Wire body -> target memory, and target memory -> tile digests.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "transform/chunk_access.h"
#include "transform/convert.h"
#include "transform/program.h"
#include "transform/scratch.h"
#include "transform/token_runs.h"

namespace isthmus::transform {
namespace {

struct PlaceStep {
  std::size_t wire_parts = 0;
  std::size_t target_parts = 0;
  std::optional<RowConverter> forward;  // Wire -> target; empty: equal forms.
  std::optional<RowConverter> inverse;  // Target -> wire; only if that restores the bits.
};

// One layer and component of a chunk while it is placed or verified.
struct Turn {
  const Chunk& chunk;
  std::uint32_t component = 0;
  std::size_t section = 0;      // First wire section.
  std::uint64_t stored_at = 0;  // First of its target digests.
};

std::uint32_t head_count(const Chunk& chunk) {
  return chunk.box.head_end - chunk.box.head_begin;
}

// Index within the group's list.
std::uint32_t layer_of(const Turn& turn) {
  return turn.chunk.box.layer_begin + turn.chunk.sections[turn.section].layer;
}

Error differs(const Plan& plan, const Chunk& chunk, std::uint64_t tile, std::string_view what, Digest128 seen,
              Digest128 expected) {
  return Error{Code::kCorrupt, fmt::format("chunk {}, {}: {} has digest {}, expected {}", chunk.index,
                                           plan.tile_text(chunk, tile), what, seen.hex(), expected.hex())};
}

}  // namespace

struct Placer::State {
  std::shared_ptr<const Plan> plan;
  ChunkAccess access;
  std::vector<std::vector<PlaceStep>> steps;  // [group][component].
  bool exact = true;
  TileScratch target;         // A tile in the target's form.
  TileScratch wire, target2;  // Verification: the tile led back to the wire's form, and forward again.
  ConversionCounts counts;

  Status add_step(std::vector<PlaceStep>& group_steps, const ComponentStorage& storage,
                  const kv::WireComponent& from, const ComponentShape& shape);
  Status check_body(const Chunk& chunk, std::span<const std::byte> body,
                    std::span<const Digest128> tiles) const;
  template <typename Each>
  Status for_each_component(const Chunk& chunk, Each each);
  Status place_component(const Turn& turn, std::span<const std::byte> body, std::span<const Digest128> tiles,
                         std::span<Digest128> stored);
  Status verify_exact(const Turn& turn, std::span<const Digest128> tiles);
  Status verify_stored(const Turn& turn, std::span<const Digest128> stored);
  std::span<const std::byte> read(const Turn& turn, std::size_t part, std::uint32_t h);
};

Placer::Placer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Placer::~Placer() = default;
Placer::Placer(Placer&&) noexcept = default;
Placer& Placer::operator=(Placer&&) noexcept = default;

Result<Placer> Placer::make(std::shared_ptr<const Plan> plan, const kv::Descriptor& target,
                            std::uint32_t rank) {
  ISTHMUS_TRY(ChunkAccess access, ChunkAccess::make(*plan, target, rank));
  auto state = std::make_unique<State>(State{std::move(plan), std::move(access), {}, true, {}, {}, {}, {}});
  for (std::uint32_t group = 0; group < target.groups.size(); ++group) {
    std::vector<PlaceStep>& steps = state->steps.emplace_back();
    const std::vector<ComponentStorage>& components = state->access.components(group);
    for (std::size_t c = 0; c < components.size(); ++c) {
      ISTHMUS_TRY(state->add_step(steps, components[c], state->plan->wire().groups[group].at(c),
                                  ComponentShape::of(target.groups[group], c)));
    }
  }
  return Placer(std::move(state));
}

Status Placer::State::add_step(std::vector<PlaceStep>& group_steps, const ComponentStorage& storage,
                               const kv::WireComponent& from, const ComponentShape& shape) {
  PlaceStep& step = group_steps.emplace_back();
  ISTHMUS_TRY(const auto wire_parts, form_parts(from.form, storage.dim));
  step.wire_parts = wire_parts.size();
  step.target_parts = storage.parts.size();
  target.fit(storage.parts);
  if (same_numbers(from, storage.numbers)) return ok_status();
  ISTHMUS_TRY(step.forward, RowConverter::make(from, storage.numbers, shape));
  if (!is_invertible(from, storage.numbers)) {
    exact = false;
    return ok_status();
  }
  ISTHMUS_TRY(step.inverse, RowConverter::make(storage.numbers, from, shape));
  wire.fit(wire_parts);
  target2.fit(storage.parts);
  return ok_status();
}

const ConversionCounts& Placer::counts() const {
  return state_->counts;
}

bool Placer::exact() const {
  return state_->exact;
}

std::uint64_t Placer::stored_count(const Chunk& chunk) const {
  if (state_->exact) return 0;
  std::uint64_t parts = 0;
  for (const PlaceStep& step : state_->steps.at(chunk.group)) parts += step.target_parts;
  return parts * (chunk.box.layer_end - chunk.box.layer_begin) * head_count(chunk);
}

Status Placer::place(const Chunk& chunk, std::span<const std::byte> body, std::span<const Digest128> tiles,
                     const kv::Binding& target, std::span<Digest128> stored) {
  State& state = *state_;
  ISTHMUS_TRY(state.plan->check_chunk(chunk));
  if (body.size() != chunk.body_bytes || tiles.size() != chunk.tile_count() ||
      stored.size() != stored_count(chunk)) {
    return Error{
        Code::kInvalidArgument,
        fmt::format("chunk {}: body of {} bytes, {} tiles, {} stored digests; the plan has {}, {}, {}",
                    chunk.index, body.size(), tiles.size(), stored.size(), chunk.body_bytes,
                    chunk.tile_count(), stored_count(chunk))};
  }
  ISTHMUS_TRY(state.access.bind(chunk, target));
  if (!state.exact) ISTHMUS_TRY(state.check_body(chunk, body, tiles));
  return state.for_each_component(
      chunk, [&](const Turn& turn) { return state.place_component(turn, body, tiles, stored); });
}

Status Placer::verify(const Chunk& chunk, const kv::Binding& target, std::span<const Digest128> tiles,
                      std::span<const Digest128> stored, std::span<const std::byte> body) {
  State& state = *state_;
  ISTHMUS_TRY(state.plan->check_chunk(chunk));
  const bool enough = state.exact ? tiles.size() == chunk.tile_count() : stored.size() == stored_count(chunk);
  if (!enough) {
    return Error{Code::kInvalidArgument,
                 fmt::format("chunk {}: {} tiles and {} stored digests, the plan has {} and {}", chunk.index,
                             tiles.size(), stored.size(), chunk.tile_count(), stored_count(chunk))};
  }
  ISTHMUS_TRY(state.access.bind(chunk, target));
  Status verified = state.for_each_component(chunk, [&](const Turn& turn) {
    return state.exact ? state.verify_exact(turn, tiles) : state.verify_stored(turn, stored);
  });
  if (!verified.ok() && !body.empty()) ISTHMUS_TRY(state.check_body(chunk, body, tiles));
  return verified;
}

Status Placer::State::check_body(const Chunk& chunk, std::span<const std::byte> body,
                                 std::span<const Digest128> tiles) const {
  std::uint64_t tile = 0;
  for (const Section& section : chunk.sections) {
    for (std::uint32_t h = 0; h < head_count(chunk); ++h, ++tile) {
      const Digest128 seen =
          digest128(body.subspan(section.offset + h * section.head_bytes, section.head_bytes));
      if (seen != tiles[tile]) return differs(*plan, chunk, tile, "the body", seen, tiles[tile]);
    }
  }
  return ok_status();
}

template <typename Each>
Status Placer::State::for_each_component(const Chunk& chunk, Each each) {
  Turn turn{chunk};
  while (turn.section < chunk.sections.size()) {
    turn.component = chunk.sections[turn.section].component;
    ISTHMUS_TRY(each(turn));
    const PlaceStep& step = steps[chunk.group][turn.component];
    turn.section += step.wire_parts;
    turn.stored_at += step.target_parts * head_count(chunk);
  }
  return ok_status();
}

Status Placer::State::place_component(const Turn& turn, std::span<const std::byte> body,
                                      std::span<const Digest128> tiles, std::span<Digest128> stored) {
  const Chunk& chunk = turn.chunk;
  PlaceStep& step = steps[chunk.group][turn.component];
  const ComponentStorage& storage = access.components(chunk.group)[turn.component];
  const std::span<const Section> sections = chunk.sections.subspan(turn.section, step.wire_parts);
  const std::uint32_t heads = head_count(chunk);
  for (std::uint32_t h = 0; h < heads; ++h) {
    const auto tile_at = [&](std::size_t part) {
      return body.data() + sections[part].offset + h * sections[part].head_bytes;
    };
    if (step.forward) {
      Status done = step.forward->convert(chunk.token_count,
                                          {tile_at(0), sections.size() > 1 ? tile_at(1) : nullptr,
                                           sections.size() > 2 ? tile_at(2) : nullptr},
                                          target.rows(step.target_parts),
                                          {layer_of(turn), chunk.box.head_begin + h}, counts);
      if (!done.ok()) return std::move(done).with_context(plan->tile_text(chunk, turn.section * heads + h));
    }
    for (std::size_t part = 0; part < step.target_parts; ++part) {
      const std::byte* tile = step.forward ? target.part(part) : tile_at(part);
      const std::uint64_t bytes = storage.parts[part].tile_bytes(chunk.token_count);
      if (!exact) {
        stored[turn.stored_at + part * heads + h] = step.forward
                                                        ? digest128(std::span<const std::byte>(tile, bytes))
                                                        : tiles[(turn.section + part) * heads + h];
      }
      access.scatter(layer_of(turn), storage.first_part + part, chunk.box.head_begin + h, tile);
    }
  }
  return ok_status();
}

Status check_blocks(const kv::Binding& binding) {
  std::uint64_t pool = 0;
  for (const kv::RegionMemory& memory : binding.memory) pool = std::max(pool, memory.open_extent);
  return check_distinct(TokenTable::of(binding, 1), pool);
}

// One head's tile of one part as it lies in the target's memory now.
std::span<const std::byte> Placer::State::read(const Turn& turn, std::size_t part, std::uint32_t h) {
  const ComponentStorage& storage = access.components(turn.chunk.group)[turn.component];
  access.gather(layer_of(turn), storage.first_part + part, turn.chunk.box.head_begin + h, target.part(part));
  return {target.part(part), storage.parts[part].tile_bytes(turn.chunk.token_count)};
}

Status Placer::State::verify_exact(const Turn& turn, std::span<const Digest128> tiles) {
  const Chunk& chunk = turn.chunk;
  PlaceStep& step = steps[chunk.group][turn.component];
  const std::uint32_t heads = head_count(chunk);
  for (std::uint32_t h = 0; h < heads; ++h) {
    std::uint64_t bytes = 0;
    for (std::size_t part = 0; part < step.target_parts; ++part) bytes = read(turn, part, h).size();
    const std::uint64_t first_tile = turn.section * heads + h;
    if (step.inverse) {
      // An exact embedding has codes only. A value that isn't one of the wire's would be rounded to a
      // neighbour on the way back, so the tile is led forward again and must come out the same.
      const std::uint64_t rows = chunk.token_count;
      const TileOwner owner{layer_of(turn), chunk.box.head_begin + h};
      ConversionCounts again;  // Was counted when it was placed.
      Status back = step.inverse->convert(rows, target.rows(1), wire.rows(1), owner, again);
      if (back.ok()) back = step.forward->convert(rows, wire.rows(1), target2.rows(1), owner, again);
      if (!back.ok()) return std::move(back).with_context(plan->tile_text(chunk, first_tile));
      if (std::memcmp(target.part(0), target2.part(0), bytes) != 0) {
        return Error{Code::kCorrupt,
                     fmt::format("chunk {}, {}: the target's memory holds a value that didn't cross",
                                 chunk.index, plan->tile_text(chunk, first_tile))};
      }
    }
    for (std::size_t part = 0; part < step.wire_parts; ++part) {
      const std::uint64_t tile = first_tile + part * heads;
      const std::byte* at = step.inverse ? wire.part(part) : target.part(part);
      const Digest128 seen = digest128(std::span(at, chunk.sections[turn.section + part].head_bytes));
      if (seen != tiles[tile]) return differs(*plan, chunk, tile, "the target's memory", seen, tiles[tile]);
    }
  }
  return ok_status();
}

Status Placer::State::verify_stored(const Turn& turn, std::span<const Digest128> stored) {
  const Chunk& chunk = turn.chunk;
  const PlaceStep& step = steps[chunk.group][turn.component];
  const std::uint32_t heads = head_count(chunk);
  for (std::uint32_t h = 0; h < heads; ++h) {
    for (std::size_t part = 0; part < step.target_parts; ++part) {
      const Digest128 seen = digest128(read(turn, part, h));
      const Digest128 expected = stored[turn.stored_at + part * heads + h];
      if (seen == expected) continue;
      // Named by the codes' tile, as the wire may have no tile for a scale.
      return differs(*plan, chunk, turn.section * heads + h,
                     fmt::format("part {} in the target's memory",
                                 access.components(chunk.group)[turn.component].parts[part].part),
                     seen, expected);
    }
  }
  return ok_status();
}

}  // namespace isthmus::transform
