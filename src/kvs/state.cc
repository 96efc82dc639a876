// SPDX-License-Identifier: Apache-2.0
// See state.h.
#include "kvs/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "transform/program.h"

namespace isthmus::kvs {
namespace {

constexpr std::uint64_t kSmallBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kBlowUpMax = 16;

// Blocks (or rows) that hold the tokens, from the block's first one on.
struct Table {
  std::uint64_t first_number = 0, entries = 0;
};

Table table_of(kv::TokenRange tokens, std::uint32_t block_tokens) {
  if (block_tokens == 0) return {tokens.begin, tokens.size()};
  const std::uint64_t first = tokens.begin / block_tokens;
  return {first * block_tokens, (tokens.end + block_tokens - 1) / block_tokens - first};
}

// One rank's memory of one group.
Status bind(const kv::Descriptor& descriptor, const kv::RankBox& box, kv::TokenRange tokens,
            std::uint64_t& left, State& state, kv::Binding& binding) {
  ISTHMUS_TRY(const kv::Layout layout, descriptor.layout(box.group, box.rank));
  const std::uint32_t block_tokens = layout.extents().block_tokens;
  // In the rank's own numbers of its positions.
  const Table table = table_of({box.tokens_below(tokens.begin), box.tokens_below(tokens.end)}, block_tokens);
  binding.first_position = box.token_at(table.first_number);
  binding.valid = tokens;
  if (block_tokens != 0) {
    binding.blocks.resize(table.entries);
    std::iota(binding.blocks.begin(), binding.blocks.end(), 0u);
  }
  for (const kv::RegionLayout& region : layout.regions()) {
    const std::uint32_t layers = region.per_layer ? box.layer_end - box.layer_begin : 1;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::uint64_t bytes = layout.region_bytes(region.name, table.entries);  // Saturates.
      if (bytes > left) {
        return Error{Code::kExhausted,
                     fmt::format("rank {}, region {}: {} bytes are more than this state may take", box.rank,
                                 region.name, bytes)};
      }
      left -= bytes;
      auto& memory = state.bytes.emplace_back(bytes);
      binding.memory.push_back({region.name, layer, memory.data(), memory.size(), table.entries});
    }
  }
  return ok_status();
}

template <typename Program>
Result<std::map<std::uint32_t, Program>> programs(const std::shared_ptr<const transform::Plan>& plan,
                                                  const State& state) {
  std::map<std::uint32_t, Program> made;
  for (const transform::RankMemory& rank : state.ranks) {
    ISTHMUS_TRY(Program program, Program::make(plan, state.manifest.descriptor, rank.rank));
    made.emplace(rank.rank, std::move(program));
  }
  return made;
}

const transform::RankMemory& memory_of(const State& state, std::uint32_t rank) {
  return *std::find_if(state.ranks.begin(), state.ranks.end(),
                       [&](const transform::RankMemory& one) { return one.rank == rank; });
}

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// Low bits of one stored element: of floats the exponent stays in the middle of the range.
std::uint32_t element_of(std::uint64_t hash, kv::Format format, bool is_code) {
  const float magnitude = static_cast<float>((hash >> 8 & 0xffff) + 1) / (is_code ? 4096.0f : 16777216.0f);
  const float value = is_code && (hash & 1) != 0 ? -magnitude : magnitude;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  switch (format) {
    case kv::Format::kF32:
      return bits;
    case kv::Format::kBf16:
      return bits >> 16;
    case kv::Format::kF16:
      return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
    case kv::Format::kE4m3fn:  // Not the NaN.
      return static_cast<std::uint32_t>(hash & 0xff) % 0x7f | static_cast<std::uint32_t>(hash >> 8 & 0x80);
    case kv::Format::kE8m0:
      return static_cast<std::uint32_t>(118 + hash % 8);
    default:
      return static_cast<std::uint32_t>(hash);
  }
}

// A number for each token group of a section, the same whichever ranks share the tile's tokens out.
std::vector<std::uint64_t> tokens_of(const transform::Plan& plan, const transform::Chunk& chunk,
                                     const transform::Section& section) {
  const kv::DecodeForm& form = plan.wire().groups[chunk.group][section.component].form;
  const std::uint64_t span = section.part == form.component ? 1 : form.granule_tokens;
  const std::uint64_t begin = chunk.box.tokens.begin;
  const std::uint64_t first =
      std::max(plan.product().groups[chunk.group].token_begin, begin - begin % transform::kTileTokens);
  std::vector<std::uint64_t> tokens;
  for (const kv::TokenRange& run : chunk.runs) {
    for (std::uint64_t at = run.begin; at < run.end; at += span)
      tokens.push_back(first + (begin + at - first) / span);
  }
  return tokens;
}

void put_element(std::span<std::byte> tile, std::uint64_t index, std::uint32_t bits, std::uint32_t value) {
  if (bits == 4) {
    tile[index / 2] |= std::byte{static_cast<unsigned char>((value & 0xf) << (index % 2 * 4))};
  } else {
    std::memcpy(&tile[index * bits / 8], &value, bits / 8);
  }
}

// Elements depend on part, layer, head, position and seed alone: not on ranks or chunks.
void fill_body(const transform::Plan& plan, const transform::Chunk& chunk, std::uint64_t seed,
               std::span<std::byte> body, std::vector<Digest128>& tiles) {
  const std::uint64_t heads = chunk.box.head_end - chunk.box.head_begin;
  for (std::size_t s = 0; s < chunk.sections.size(); ++s) {
    const transform::Section& section = chunk.sections[s];
    const bool is_code = section.part.find('.') == std::string::npos;
    const std::uint32_t bits = kv::bits(section.format);
    for (std::uint64_t h = 0; h < heads; ++h) {
      const transform::TileKey key = plan.tile_key(chunk, s * heads + h);
      const std::uint64_t part = digest64(bytes_of(key.part));
      const std::uint64_t row = mix(mix(mix(seed + part) + key.group * 4096 + key.layer) + key.head);
      const auto tile = body.subspan(section.offset + h * section.head_bytes, section.head_bytes);
      std::uint64_t i = 0;
      for (const std::uint64_t token : tokens_of(plan, chunk, section)) {
        for (std::uint32_t unit = 0; unit < section.units; ++unit, ++i) {
          const std::uint64_t random = mix(row + token * section.units + unit);
          put_element(tile, i, bits, element_of(random, section.format, is_code));
        }
      }
      tiles.push_back(digest128(std::span<const std::byte>(tile)));
    }
  }
}

// Of codes that mean the same numbers at the storage only if they have the same scales there.
void add_own_scales(const kv::GroupRepresentation& group, const kv::Storage& storage,
                    kv::StaticScales& scales) {
  for (const kv::DecodeForm& own : group.forms) {
    const auto form = std::ranges::find(storage.forms, own.component, &kv::DecodeForm::component);
    if (form == storage.forms.end() || own.static_scales.empty() || form->codes != own.codes) continue;
    scales.emplace(own.component, own.static_scales);
  }
}

std::uint64_t memory_max(const transform::Plan& plan) {
  return kSmallBytes + kBlowUpMax * plan.total_bytes();
}

}  // namespace

Result<State> allocate(Manifest manifest, std::uint64_t bytes_max) {
  ISTHMUS_TRY(const auto plan, plan_of(manifest));
  State state;
  state.manifest = std::move(manifest);
  const kv::Descriptor& descriptor = state.manifest.descriptor;
  std::uint64_t left = bytes_max;
  for (const kv::RankBox& box : descriptor.partition) {
    auto rank = std::find_if(state.ranks.begin(), state.ranks.end(),
                             [&](const transform::RankMemory& one) { return one.rank == box.rank; });
    if (rank == state.ranks.end()) {
      state.ranks.push_back({box.rank, std::vector<kv::Binding>(descriptor.groups.size())});
      rank = state.ranks.end() - 1;
    }
    const kv::TokenRange tokens{plan->product().groups[box.group].token_begin, state.manifest.tokens.end};
    ISTHMUS_TRY(bind(descriptor, box, tokens, left, state, rank->groups[box.group]));
  }
  return state;
}

Result<State> load(Reader& reader, const Progress& progress) {
  const std::shared_ptr<const transform::Plan>& plan = reader.plan();
  ISTHMUS_TRY(State state, allocate(reader.manifest(), memory_max(*plan)));
  const kv::Descriptor& descriptor = state.manifest.descriptor;
  ISTHMUS_TRY(auto placers, programs<transform::Placer>(plan, state));
  while (reader.next_index() < plan->chunk_count()) {
    ISTHMUS_TRY(const ReadChunk read, reader.next());
    ISTHMUS_TRY(const auto routes, transform::routes_of(read.chunk, descriptor, descriptor));
    for (const transform::Route& route : routes) {
      transform::Placer& placer = placers.at(route.target_rank);
      const kv::Binding& binding = memory_of(state, route.target_rank).groups[read.chunk.group];
      ISTHMUS_TRY(placer.place(read.chunk, read.body, read.tiles, binding, {}));
      ISTHMUS_TRY(placer.verify(read.chunk, binding, read.tiles, {}));
    }
    if (progress) progress(reader.next_index(), plan->chunk_count());
  }
  ISTHMUS_TRY(reader.finish());
  return state;
}

Result<Digest128> save(const State& state, WriteAll write, Compression compression,
                       const Progress& progress) {
  const kv::Descriptor& descriptor = state.manifest.descriptor;
  ISTHMUS_TRY(Writer writer, Writer::make(std::move(write), state.manifest, compression));
  const std::shared_ptr<const transform::Plan>& plan = writer.plan();
  ISTHMUS_TRY(auto packers, programs<transform::Packer>(plan, state));
  std::vector<std::byte> body(plan->body_bytes_max());
  std::vector<Digest128> tiles;
  for (const transform::Chunk& chunk : plan->chunks()) {
    ISTHMUS_TRY(const auto routes, transform::routes_of(chunk, descriptor, descriptor, {.copy = 0}));
    const std::uint32_t rank = routes.front().source_rank;
    const std::span<std::byte> packed = std::span(body).first(chunk.body_bytes);
    tiles.resize(chunk.tile_count());
    ISTHMUS_TRY(packers.at(rank).pack(chunk, memory_of(state, rank).groups[chunk.group], packed, tiles));
    ISTHMUS_TRY(writer.add(chunk, packed, tiles));
    if (progress) progress(chunk.index + 1, plan->chunk_count());
  }
  return writer.finish();
}

Result<kv::Descriptor> stored_as(const kv::Descriptor& descriptor, const kv::Storage& storage,
                                 std::uint32_t block_tokens, transform::Degrees degrees,
                                 const kv::StaticScales& scales) {
  kv::Descriptor made = descriptor;
  const auto keeps = [&](const kv::LayerGroup& group) {
    return std::ranges::all_of(group.components, [&](const kv::Component& component) {
      return std::ranges::find(storage.forms, component.name, &kv::DecodeForm::component) !=
             storage.forms.end();
    });
  };
  const bool keeps_any = std::ranges::any_of(made.groups, keeps);
  for (std::size_t g = 0; g < made.groups.size(); ++g) {
    if (keeps_any && !keeps(made.groups[g])) continue;
    for (kv::Component& component : made.groups[g].components) {
      std::erase_if(component.value_transforms,
                    [](const std::string& one) { return !one.starts_with("rope:"); });
    }
    kv::StaticScales known = scales;
    add_own_scales(made.representation[g], storage, known);
    ISTHMUS_TRY(kv::StoredGroup stored, kv::represent(storage, made.groups[g], known));
    if (block_tokens != 0 && stored.representation.block_tokens != 0)
      stored.representation.block_tokens = block_tokens;
    made.groups[g] = std::move(stored.group);
    made.representation[g] = std::move(stored.representation);
  }
  ISTHMUS_TRY(transform::split_ranks(made, degrees));
  ISTHMUS_TRY(made.validate());
  return made;
}

Result<Converted> convert(const State& from, const kv::Descriptor& to, const kv::Policy& policy,
                          std::uint32_t threads, const Progress& progress) {
  const kv::Descriptor& source = from.manifest.descriptor;
  const kv::Verdict verdict = kv::negotiate(source, to, policy);
  ISTHMUS_TRY(transform::Plan made, transform::Plan::make(source, to, verdict, from.manifest.tokens));
  const auto plan = std::make_shared<const transform::Plan>(std::move(made));
  Manifest manifest = from.manifest;
  manifest.descriptor = to;
  ISTHMUS_TRY(State state, allocate(std::move(manifest), memory_max(*plan)));
  std::uint32_t chunks = 0;
  ISTHMUS_TRY(const auto moved, transform::redistribute({.plan = plan,
                                                         .source = source,
                                                         .target = to,
                                                         .from = from.ranks,
                                                         .to = state.ranks,
                                                         .reading = {},
                                                         .done =
                                                             [&] {
                                                               if (progress)
                                                                 progress(++chunks, plan->chunk_count());
                                                             },
                                                         .threads = threads}));
  if (moved.chunks != plan->chunk_count()) return Error{Code::kInternal, "chunks were left behind"};
  return Converted{std::move(state), moved.conversions};
}

Result<State> sample(Manifest manifest, std::uint64_t seed) {
  ISTHMUS_TRY(const auto plan, plan_of(manifest));
  ISTHMUS_TRY(State state, allocate(std::move(manifest), memory_max(*plan)));
  const kv::Descriptor& descriptor = state.manifest.descriptor;
  ISTHMUS_TRY(auto placers, programs<transform::Placer>(plan, state));
  std::vector<std::byte> body;
  std::vector<Digest128> tiles;
  for (const transform::Chunk& chunk : plan->chunks()) {
    body.assign(chunk.body_bytes, std::byte{0});
    tiles.clear();
    fill_body(*plan, chunk, seed, body, tiles);
    ISTHMUS_TRY(const auto routes, transform::routes_of(chunk, descriptor, descriptor));
    for (const transform::Route& route : routes) {
      const kv::Binding& binding = memory_of(state, route.target_rank).groups[chunk.group];
      ISTHMUS_TRY(placers.at(route.target_rank).place(chunk, body, tiles, binding, {}));
    }
  }
  return state;
}

}  // namespace isthmus::kvs
