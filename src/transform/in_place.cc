// SPDX-License-Identifier: Apache-2.0
// See in_place.h.
#include "transform/in_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transform/convert.h"

namespace isthmus::transform {
namespace {

// Shorter runs cost more one by one than in a copy; a few do no harm.
constexpr std::uint64_t kRunBytesMin = 2048;
constexpr std::size_t kShortRunsMax = 8;

}  // namespace

Result<InPlace> InPlace::make(std::shared_ptr<const Plan> plan, const kv::Descriptor& descriptor,
                              std::uint32_t rank) {
  ISTHMUS_TRY(ChunkAccess access, ChunkAccess::make(*plan, descriptor, rank));
  InPlace made(std::move(plan), std::move(access));
  for (std::uint32_t g = 0; g < descriptor.groups.size(); ++g) {
    Group& group = made.groups_.emplace_back();
    const std::vector<ComponentStorage>& components = made.access_.components(g);
    group.is_stored_as_it_crosses = !components.empty();
    for (std::size_t c = 0; c < components.size(); ++c) {
      group.first_part.push_back(components[c].first_part);
      group.is_stored_as_it_crosses &=
          same_numbers(components[c].numbers, made.plan_->wire().groups[g].at(c)) &&
          made.access_.has_whole_rows(g, components[c]);
    }
  }
  return made;
}

// Parts follow each other as sections do: the form is the wire's.
std::size_t InPlace::part_of(const Chunk& chunk, std::size_t section) const {
  std::size_t first = section;
  while (first > 0 && chunk.sections[first - 1].component == chunk.sections[section].component &&
         chunk.sections[first - 1].layer == chunk.sections[section].layer)
    --first;
  return groups_[chunk.group].first_part[chunk.sections[section].component] + section - first;
}

Result<bool> InPlace::runs(const Chunk& chunk, const kv::Binding& binding, std::span<std::byte> pads,
                           BodyRuns& runs) {
  runs.clear();
  if (!groups_.at(chunk.group).is_stored_as_it_crosses) return false;
  ISTHMUS_TRY(plan_->check_chunk(chunk));
  ISTHMUS_TRY(access_.bind(chunk, binding));
  const std::size_t runs_max = std::max<std::size_t>(kShortRunsMax, chunk.body_bytes / kRunBytesMin);
  for (std::size_t s = 0; s < chunk.sections.size(); ++s) {
    const Section& section = chunk.sections[s];
    const std::size_t part = part_of(chunk, s);
    for (std::uint32_t head = chunk.box.head_begin; head < chunk.box.head_end; ++head) {
      access_.add_runs(chunk.box.layer_begin + section.layer, part, head, runs);
      if (runs.size() > runs_max) return false;
    }
    const std::uint64_t next =
        s + 1 < chunk.sections.size() ? chunk.sections[s + 1].offset : chunk.body_bytes;
    if (const std::uint64_t pad = next - section.offset - section.bytes; pad != 0)
      runs.push_back(pads.first(pad));
  }
  return true;
}

template <typename Each>
Status InPlace::for_each_digest(const Chunk& chunk, const kv::Binding& binding, Each each) {
  ISTHMUS_TRY(plan_->check_chunk(chunk));
  ISTHMUS_CHECK(groups_[chunk.group].is_stored_as_it_crosses);
  ISTHMUS_TRY(access_.bind(chunk, binding));
  std::uint64_t tile = 0;
  for (std::size_t s = 0; s < chunk.sections.size(); ++s) {
    const std::size_t part = part_of(chunk, s);
    for (std::uint32_t head = chunk.box.head_begin; head < chunk.box.head_end; ++head, ++tile) {
      tile_.clear();
      access_.add_runs(chunk.box.layer_begin + chunk.sections[s].layer, part, head, tile_);
      if (tile_.size() == 1) {
        ISTHMUS_TRY(each(tile, digest128(tile_.front())));
        continue;
      }
      stream_.reset();
      for (const std::span<std::byte> run : tile_) stream_.add(run);
      ISTHMUS_TRY(each(tile, stream_.finish()));
    }
  }
  return ok_status();
}

Status InPlace::digest(const Chunk& chunk, const kv::Binding& binding, std::span<Digest128> tiles) {
  ISTHMUS_CHECK(tiles.size() == chunk.tile_count());
  return for_each_digest(chunk, binding, [&](std::uint64_t tile, Digest128 seen) {
    tiles[tile] = seen;
    return ok_status();
  });
}

Status InPlace::verify(const Chunk& chunk, const kv::Binding& binding, std::span<const Digest128> tiles) {
  ISTHMUS_CHECK(tiles.size() == chunk.tile_count());
  return for_each_digest(chunk, binding, [&](std::uint64_t tile, Digest128 seen) -> Status {
    if (seen == tiles[tile]) return ok_status();
    return Error{Code::kCorrupt,
                 fmt::format("chunk {}, {}: the target's memory has digest {}, expected {}", chunk.index,
                             plan_->tile_text(chunk, tile), seen.hex(), tiles[tile].hex())};
  });
}

}  // namespace isthmus::transform
