// SPDX-License-Identifier: Apache-2.0
// See compare.h.
#include "kvs/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "transform/program.h"

namespace isthmus::kvs {
namespace {

using Tiles = std::map<transform::TileKey, Digest128>;

std::string text(const transform::TileKey& key) {
  return fmt::format("group {}, layer {}, part {}, head {}, tokens [{}, {})", key.group, key.layer, key.part,
                     key.head, key.tokens.begin, key.tokens.end);
}

// On one rank if ranks of the state have some positions only, as their tiles are not the others'.
Result<State> with_whole_tiles(State state) {
  kv::Descriptor to = state.manifest.descriptor;
  if (std::ranges::all_of(to.partition, &kv::RankBox::has_all_tokens)) return state;
  ISTHMUS_TRY(transform::split_ranks(to, {}));
  ISTHMUS_TRY(Converted made, convert(state, to, {}));
  return std::move(made.state);
}

// Digests as packed from memory that was read back against the file's.
Result<Tiles> tiles_of(const State& state) {
  Tiles tiles;
  ISTHMUS_TRY(const auto plan, plan_of(state.manifest));
  const kv::Descriptor& descriptor = state.manifest.descriptor;
  std::vector<std::byte> body(plan->body_bytes_max());
  std::vector<Digest128> digests;
  for (const transform::RankMemory& rank : state.ranks) {
    ISTHMUS_TRY(transform::Packer packer, transform::Packer::make(plan, descriptor, rank.rank));
    for (const transform::Chunk& chunk : plan->chunks()) {
      ISTHMUS_TRY(const auto routes, transform::routes_of(chunk, descriptor, descriptor, {.copy = 0}));
      if (routes.front().source_rank != rank.rank) continue;
      digests.resize(chunk.tile_count());
      ISTHMUS_TRY(
          packer.pack(chunk, rank.groups[chunk.group], std::span(body).first(chunk.body_bytes), digests));
      for (std::size_t i = 0; i < digests.size(); ++i) tiles.emplace(plan->tile_key(chunk, i), digests[i]);
    }
  }
  return tiles;
}

void compare_tiles(const Tiles& a, const Tiles& b, Comparison& comparison) {
  constexpr std::size_t kShown = 10;
  const auto show = [&](const transform::TileKey& key, const char* what) {
    if (comparison.first_tiles.size() < kShown) comparison.first_tiles.push_back(text(key) + what);
  };
  for (const auto& [key, digest] : a) {
    const auto other = b.find(key);
    if (other == b.end()) {
      ++comparison.tiles_only_a;
      show(key, ": only the first has it");
    } else if (other->second == digest) {
      ++comparison.tiles_equal;
    } else {
      ++comparison.tiles_different;
      show(key, "");
    }
  }
  for (const auto& [key, digest] : b) {
    if (a.contains(key)) continue;
    ++comparison.tiles_only_b;
    show(key, ": only the second has it");
  }
}

bool same_numbers(const kv::Descriptor& a, const kv::Descriptor& b) {
  for (std::size_t g = 0; g < a.groups.size(); ++g) {
    for (std::size_t c = 0; c < a.groups[g].components.size(); ++c) {
      if (a.groups[g].components[c].value_transforms != b.groups[g].components[c].value_transforms ||
          !a.representation[g].forms[c].same_form(b.representation[g].forms[c])) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

Result<Comparison> compare(Reader& a, Reader& b, const Progress& progress) {
  ISTHMUS_TRY(State loaded, load(a, progress));
  ISTHMUS_TRY(State other, load(b, progress));
  const std::vector<kv::Difference> differences =
      kv::diff(loaded.manifest.descriptor, other.manifest.descriptor);
  ISTHMUS_TRY(const State first, with_whole_tiles(std::move(loaded)));
  ISTHMUS_TRY(const State second, with_whole_tiles(std::move(other)));
  const kv::Descriptor& ours = first.manifest.descriptor;
  const kv::Descriptor& theirs = second.manifest.descriptor;
  Comparison comparison;
  comparison.descriptors = differences;
  comparison.same_tokens = first.manifest.tokens == second.manifest.tokens;
  if (!keep_the_same(ours, theirs)) {
    comparison.not_compared = "the files keep different state";
    return comparison;
  }
  comparison.same_numbers = same_numbers(ours, theirs);
  if (comparison.same_numbers) {
    ISTHMUS_TRY(const Tiles our_tiles, tiles_of(first));
    ISTHMUS_TRY(const Tiles their_tiles, tiles_of(second));
    compare_tiles(our_tiles, their_tiles, comparison);
  }
  auto numbers = compare_numbers(first, second);
  if (numbers.ok()) {
    comparison.numbers = *std::move(numbers);
  } else {
    comparison.not_compared = numbers.error().text();
  }
  return comparison;
}

}  // namespace isthmus::kvs
