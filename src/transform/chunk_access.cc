// SPDX-License-Identifier: Apache-2.0
// See chunk_access.h.
#include "transform/chunk_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "transform/tile_copy.h"

namespace isthmus::transform {
namespace {

constexpr std::uint64_t kStale = std::numeric_limits<std::uint64_t>::max();

Result<kv::RankBox> rank_box(const kv::Descriptor& descriptor, std::uint32_t group, std::uint32_t rank) {
  const kv::RankBox* found = nullptr;
  for (const kv::RankBox& box : descriptor.partition) {
    if (box.group != group || box.rank != rank) continue;
    if (found != nullptr) {
      return Error{Code::kUnsupported,
                   fmt::format("rank {} stores more than one box of layer group {}", rank, group)};
    }
    found = &box;
  }
  if (found == nullptr) {
    return Error{Code::kNotFound, fmt::format("rank {} stores nothing of layer group {}", rank, group)};
  }
  return *found;
}

}  // namespace

Result<ChunkAccess::Group> ChunkAccess::make_group(const kv::Descriptor& descriptor, std::uint32_t group,
                                                   std::uint32_t rank) {
  Group made;
  ISTHMUS_TRY(made.box, rank_box(descriptor, group, rank));
  ISTHMUS_TRY(const kv::Layout layout, descriptor.layout(group, rank));
  made.has_token_axis = descriptor.groups[group].attention != kv::AttentionKind::kRecurrent;
  made.block_tokens = layout.extents().block_tokens;
  const std::vector<kv::Component>& components = descriptor.groups[group].components;
  const std::vector<kv::DecodeForm>& forms = descriptor.representation[group].forms;
  if (forms.size() != components.size()) {
    return Error{Code::kInvalidArgument, fmt::format("group {}: {} decode forms for {} components", group,
                                                     forms.size(), components.size())};
  }
  for (std::size_t c = 0; c < components.size(); ++c) {
    ComponentStorage storage{
        {forms[c], components[c].value_transforms}, components[c].dim, {}, made.parts.size()};
    ISTHMUS_TRY(storage.parts, form_parts(forms[c], components[c].dim));
    for (const FormPart& part : storage.parts) {
      ISTHMUS_TRY(PartAddress address, PartAddress::make(layout, part));
      made.granule_tokens = std::max(made.granule_tokens, part.granule_tokens);
      made.parts.push_back(std::move(address));
    }
    made.components.push_back(std::move(storage));
  }
  made.tabulated.assign(made.parts.size(), kStale);
  return made;
}

Result<ChunkAccess> ChunkAccess::make(const Plan& plan, const kv::Descriptor& descriptor,
                                      std::uint32_t rank) {
  ChunkAccess access;
  access.rank_ = rank;
  if (descriptor.representation.size() != descriptor.groups.size() ||
      plan.wire().groups.size() != descriptor.groups.size()) {
    return Error{
        Code::kInvalidArgument,
        fmt::format("descriptor has {} groups and {} representations, the plan {} groups",
                    descriptor.groups.size(), descriptor.representation.size(), plan.wire().groups.size())};
  }
  bool holds_any = false;
  for (std::uint32_t group = 0; group < descriptor.groups.size(); ++group) {
    auto made = make_group(descriptor, group, rank);
    if (made.ok()) {
      holds_any = true;
      access.groups_.push_back(*std::move(made));
    } else if (made.code() == Code::kNotFound) {
      access.groups_.emplace_back();  // Its box is empty: no chunk is on it.
    } else {
      return made.error();
    }
  }
  if (!holds_any) return Error{Code::kNotFound, fmt::format("rank {} stores nothing", rank)};
  std::size_t places = 0;
  for (std::uint32_t group = 0; group < access.groups_.size(); ++group) {
    places = std::max(places, plan.chunk_layers_max(group) * access.groups_[group].parts.size());
  }
  access.places_.reserve(places);
  for (auto* tokens : {&access.blocks_, &access.slots_, &access.sorted_blocks_}) tokens->reserve(kTileTokens);
  access.rows_.reserve(kTileTokens);
  return access;
}

Status ChunkAccess::bind(const Chunk& chunk, const kv::Binding& binding) {
  ISTHMUS_TRY(check_chunk(chunk, binding));
  group_ = chunk.group;
  box_ = chunk.box;
  Group& group = groups_[group_];
  ISTHMUS_TRY(place_tokens(group, chunk, binding));
  std::fill(group.tabulated.begin(), group.tabulated.end(), kStale);
  places_.clear();
  for (std::uint32_t layer = box_.layer_begin; layer < box_.layer_end; ++layer) {
    for (std::size_t part = 0; part < group.parts.size(); ++part) {
      ISTHMUS_TRY(bind_part(group, part, layer, binding));
    }
  }
  return ok_status();
}

Status ChunkAccess::check_chunk(const Chunk& chunk, const kv::Binding& binding) const {
  ISTHMUS_CHECK(chunk.group < groups_.size());
  const kv::RankBox& rank = groups_[chunk.group].box;
  const kv::Box& box = chunk.box;
  if (box.layer_begin < rank.layer_begin || box.layer_end > rank.layer_end ||
      box.head_begin < rank.head_begin || box.head_end > rank.head_end) {
    return Error{Code::kInvalidArgument,
                 fmt::format("chunk {} (layers [{}, {}), heads [{}, {})) isn't on rank {}", chunk.index,
                             box.layer_begin, box.layer_end, box.head_begin, box.head_end, rank.rank)};
  }
  if (!rank.has_token(box.tokens.begin)) {
    return Error{Code::kInvalidArgument, fmt::format("chunk {} (tokens from {} on) isn't on rank {} ({})",
                                                     chunk.index, box.tokens.begin, rank.rank, rank.text())};
  }
  if (!groups_[chunk.group].has_token_axis && binding.valid != box.tokens) {
    return Error{Code::kInvalidArgument,
                 fmt::format("chunk {} is the state after {} tokens exactly; bound is the one after {}",
                             chunk.index, box.tokens.end, binding.valid.end)};
  }
  if (!binding.valid.contains(box.tokens) || box.tokens.begin < binding.first_position) {
    return Error{Code::kInvalidArgument,
                 fmt::format("chunk {} needs tokens [{}, {}), the binding holds [{}, {}) from position {}",
                             chunk.index, box.tokens.begin, box.tokens.end, binding.valid.begin,
                             binding.valid.end, binding.first_position)};
  }
  return ok_status();
}

Status ChunkAccess::place_tokens(const Group& group, const Chunk& chunk, const kv::Binding& binding) {
  const std::uint64_t before = group.box.tokens_below(binding.first_position);
  blocks_.clear();
  slots_.clear();
  rows_.clear();
  sorted_blocks_.clear();
  last_entry_ = std::numeric_limits<std::uint64_t>::max();
  token_count_ = chunk.token_count;
  const bool paged =
      std::any_of(group.parts.begin(), group.parts.end(), [](const auto& part) { return part.paged(); });
  // The rank's numbers of a run's tokens follow each other.
  for (const kv::TokenRange& run : chunk.runs) {
    const std::uint64_t position = chunk.box.tokens.begin + run.begin;
    const std::uint64_t first = group.box.tokens_below(position) - before;
    if (paged) {
      ISTHMUS_TRY(place_in_blocks(group, first, run.size(), binding));
      continue;
    }
    if (binding.first_row > std::numeric_limits<std::uint64_t>::max() - first - kTileTokens) {
      return Error{Code::kInvalidArgument, fmt::format("first row {} is out of range", binding.first_row)};
    }
    for (std::uint64_t token = 0; token < run.size(); ++token)
      rows_.push_back(binding.first_row + first + token);
  }
  if (!paged) return ok_status();
  // Scales that span tokens belong to whole groups of slots.
  if (slots_.front() % group.granule_tokens != 0) {
    return Error{Code::kInvalidArgument,
                 fmt::format("position {} is slot {} of its block and doesn't begin a group of {} tokens",
                             chunk.box.tokens.begin, slots_.front(), group.granule_tokens)};
  }
  return check_distinct_blocks();
}

// `first` counts from the rank's token that the table begins with.
Status ChunkAccess::place_in_blocks(const Group& group, std::uint64_t first, std::uint64_t count,
                                    const kv::Binding& binding) {
  if ((first + count - 1) / group.block_tokens >= binding.blocks.size()) {
    const std::uint64_t held = binding.blocks.size() * std::uint64_t{group.block_tokens};
    const std::uint64_t begin = group.box.tokens_below(binding.first_position);
    return Error{Code::kInvalidArgument,
                 fmt::format("position {} needs block table entry {}, the table has {}",
                             group.box.token_at(begin + std::max(first, held)),
                             std::max(first, held) / group.block_tokens, binding.blocks.size())};
  }
  std::uint64_t entry = first / group.block_tokens;
  auto slot = static_cast<std::uint32_t>(first % group.block_tokens);
  for (std::uint64_t token = 0; token < count; ++token) {
    if (entry != last_entry_) sorted_blocks_.push_back(binding.blocks[entry]);
    last_entry_ = entry;
    blocks_.push_back(binding.blocks[entry]);
    slots_.push_back(slot);
    if (++slot < group.block_tokens) continue;
    slot = 0;
    ++entry;
  }
  return ok_status();
}

Status ChunkAccess::check_distinct_blocks() {
  std::sort(sorted_blocks_.begin(), sorted_blocks_.end());
  const auto twice = std::adjacent_find(sorted_blocks_.begin(), sorted_blocks_.end());
  if (twice == sorted_blocks_.end()) return ok_status();
  return Error{Code::kInvalidArgument, fmt::format("the block table names block {} twice", *twice)};
}

Status ChunkAccess::bind_part(Group& group, std::size_t part, std::uint32_t layer,
                              const kv::Binding& binding) {
  const PartAddress& address = group.parts[part];
  const std::uint32_t local_layer = layer - group.box.layer_begin;
  const std::uint32_t memory_layer = address.per_layer() ? local_layer : 0;
  const auto memory = std::find_if(
      binding.memory.begin(), binding.memory.end(),
      [&](const kv::RegionMemory& at) { return at.layer == memory_layer && at.region == address.region(); });
  if (memory == binding.memory.end() || memory->base == nullptr) {
    return Error{Code::kInvalidArgument, fmt::format("rank {}: no memory is bound for region {}, layer {}",
                                                     rank_, address.region(), memory_layer)};
  }
  const auto refuse = [&](std::string_view why) {
    return Error{Code::kInvalidArgument, fmt::format("rank {}, region {}, layer {}, part {}: {}", rank_,
                                                     address.region(), memory_layer, address.part(), why)};
  };
  if (memory->open_extent > address.open_extent_max()) {
    return refuse(
        fmt::format("{} blocks or rows; at most {}", memory->open_extent, address.open_extent_max()));
  }
  ISTHMUS_TRY(check_tokens(address, *memory));
  tabulate(group, part, memory->open_extent);
  const auto reach = address.reach(local_layer, box_.head_begin - group.box.head_begin,
                                   box_.head_end - group.box.head_begin);
  if (reach.lowest < 0 || (static_cast<std::uint64_t>(reach.end) + 7) / 8 > memory->bytes) {
    return refuse(fmt::format("the chunk reaches bits [{}, {}) of a memory of {} bytes", reach.lowest,
                              reach.end, memory->bytes));
  }
  places_.push_back({memory->base, memory->open_extent});
  return ok_status();
}

Status ChunkAccess::check_tokens(const PartAddress& part, const kv::RegionMemory& memory) const {
  const std::uint64_t extent = memory.open_extent;
  if (part.paged()) {
    const std::uint32_t highest = sorted_blocks_.back();
    if (highest < extent) return ok_status();
    return Error{Code::kInvalidArgument, fmt::format("block {} isn't among the {} blocks of region {}",
                                                     highest, extent, memory.region)};
  }
  const std::uint64_t last = rows_.back();
  if (last < extent) return ok_status();
  return Error{Code::kInvalidArgument,
               fmt::format("row {} isn't among the {} rows of region {}", last, extent, memory.region)};
}

TokenPlaces ChunkAccess::places() const {
  return {blocks_, slots_, rows_, token_count_};
}

void ChunkAccess::tabulate(Group& group, std::size_t part, std::uint64_t open_extent) {
  if (group.tabulated[part] == open_extent) return;
  group.parts[part].tabulate(places(), open_extent);
  group.tabulated[part] = open_extent;
}

TileView ChunkAccess::view(std::uint32_t layer, std::size_t part, std::uint32_t head) {
  Group& group = groups_[group_];
  ISTHMUS_CHECK(layer >= box_.layer_begin && layer < box_.layer_end && part < group.parts.size());
  ISTHMUS_CHECK(head >= box_.head_begin && head < box_.head_end);
  const Place& place = places_[(layer - box_.layer_begin) * group.parts.size() + part];
  tabulate(group, part, place.open_extent);
  const PartAddress& address = group.parts[part];
  return {.base = place.base,
          .origin_bits = address.origin_bits(layer - group.box.layer_begin, head - group.box.head_begin),
          .token_bits = address.token_bits(),
          .unit_bits = address.unit_bits(),
          .element_bits = address.element_bits(),
          .whole_rows = address.whole_rows()};
}

void ChunkAccess::gather(std::uint32_t layer, std::size_t part, std::uint32_t head, std::byte* canonical) {
  transform::gather(view(layer, part, head), canonical);
}

void ChunkAccess::scatter(std::uint32_t layer, std::size_t part, std::uint32_t head,
                          const std::byte* canonical) {
  transform::scatter(view(layer, part, head), canonical);
}

bool ChunkAccess::has_whole_rows(std::uint32_t group, const ComponentStorage& component) const {
  const auto first = groups_[group].parts.begin() + static_cast<std::ptrdiff_t>(component.first_part);
  return std::all_of(first, first + static_cast<std::ptrdiff_t>(component.parts.size()),
                     [](const PartAddress& part) { return part.whole_rows(); });
}

void ChunkAccess::add_runs(std::uint32_t layer, std::size_t part, std::uint32_t head,
                           std::vector<std::span<std::byte>>& runs) {
  const TileView tile = view(layer, part, head);
  ISTHMUS_CHECK(tile.whole_rows);
  const std::size_t row_bytes = tile.unit_bits.size() * tile.element_bits / 8;
  for (const std::int64_t token : tile.token_bits) {
    std::byte* const row = tile.base + (tile.origin_bits + tile.unit_bits[0] + token) / 8;
    if (!runs.empty() && runs.back().data() + runs.back().size() == row) {
      runs.back() = {runs.back().data(), runs.back().size() + row_bytes};
    } else {
      runs.emplace_back(row, row_bytes);
    }
  }
}

}  // namespace isthmus::transform
