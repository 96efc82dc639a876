// SPDX-License-Identifier: Apache-2.0
// See compare.h. Numbers are compared as rows of f32, to which both files are converted.
#include "kvs/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/bytes.h"
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

// The state as plain rows of f32 of one rank, rope in `pairing` of each component.
Result<State> as_numbers(const State& state, const kv::Descriptor& pairing) {
  kv::Descriptor to = state.manifest.descriptor;
  for (std::size_t g = 0; g < to.groups.size(); ++g) {
    kv::GroupRepresentation& representation = to.representation[g];
    representation = {};
    for (std::size_t c = 0; c < to.groups[g].components.size(); ++c) {
      kv::Component& component = to.groups[g].components[c];
      component.value_transforms = pairing.groups[g].components[c].value_transforms;
      std::erase_if(component.value_transforms,
                    [](const std::string& one) { return !one.starts_with("rope:"); });
      representation.layout_text +=
          fmt::format("{}region R{} per layer = tok head dim {}:f32", c == 0 ? "" : "\n", c, component.name);
      kv::DecodeForm form;
      form.component = component.name;
      form.codes = kv::Format::kF32;
      form.recipe = "nearest_even";
      representation.forms.push_back(std::move(form));
    }
  }
  ISTHMUS_TRY(transform::split_ranks(to, {}));
  kv::Policy policy;
  policy.exactness = kv::Exactness::kUnqualified;
  ISTHMUS_TRY(Converted made, convert(state, to, policy));
  return std::move(made.state);
}

// Rows of one layer, `[token][head][dim]`.
std::span<const float> rows_of(const State& state, std::uint32_t group, std::size_t component,
                               std::uint32_t layer) {
  const std::string region = fmt::format("R{}", component);
  for (const kv::RegionMemory& memory : state.ranks[0].groups[group].memory) {
    if (memory.region == region && memory.layer == layer)
      return view_as<float>(std::span<const std::byte>(memory.base, memory.bytes));
  }
  return {};
}

NumberDifference compare_component(const State& a, const State& b, std::uint32_t group,
                                   std::size_t component) {
  const kv::LayerGroup& shape = a.manifest.descriptor.groups[group];
  const kv::Component& rows = shape.components[component];
  const kv::Binding& ours = a.ranks[0].groups[group];
  const kv::Binding& theirs = b.ranks[0].groups[group];
  const kv::TokenRange tokens{std::max(ours.valid.begin, theirs.valid.begin),
                              std::min(ours.valid.end, theirs.valid.end)};
  NumberDifference found;
  found.group = group;
  found.component = rows.name;
  double squares = 0, of_a = 0;
  const std::uint64_t width = std::uint64_t{rows.heads} * rows.dim;
  for (std::uint32_t layer = 0; layer < shape.layers.size() && tokens.begin < tokens.end; ++layer) {
    const auto x = rows_of(a, group, component, layer).subspan((tokens.begin - ours.first_position) * width);
    const auto y =
        rows_of(b, group, component, layer).subspan((tokens.begin - theirs.first_position) * width);
    for (std::uint64_t i = 0; i < tokens.size() * width; ++i) {
      const double difference = double{x[i]} - double{y[i]};
      squares += difference * difference;
      of_a += double{x[i]} * double{x[i]};
      if (std::fabs(difference) <= found.max) continue;
      found.max = std::fabs(difference);
      found.where = fmt::format("layer {}, head {}, position {}, element {}", shape.layers[layer],
                                i % width / rows.dim, tokens.begin + i / width, i % rows.dim);
    }
  }
  found.rms = of_a > 0 ? std::sqrt(squares / of_a) : std::sqrt(squares);
  return found;
}

bool same_shape(const kv::Descriptor& a, const kv::Descriptor& b) {
  return std::ranges::equal(a.groups, b.groups, [](const kv::LayerGroup& x, const kv::LayerGroup& y) {
    return x.layers == y.layers &&
           std::ranges::equal(x.components, y.components, [](const auto& c, const auto& d) {
             return c.name == d.name && c.heads == d.heads && c.dim == d.dim;
           });
  });
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
  if (!same_shape(ours, theirs)) {
    comparison.not_compared = "the files keep different state";
    return comparison;
  }
  comparison.same_numbers = same_numbers(ours, theirs);
  if (comparison.same_numbers) {
    ISTHMUS_TRY(const Tiles our_tiles, tiles_of(first));
    ISTHMUS_TRY(const Tiles their_tiles, tiles_of(second));
    compare_tiles(our_tiles, their_tiles, comparison);
  }
  auto x = as_numbers(first, ours);
  auto y = x.ok() ? as_numbers(second, ours) : Result<State>(x.error());
  if (!y.ok()) {
    comparison.not_compared = y.error().text();
    return comparison;
  }
  for (std::uint32_t g = 0; g < ours.groups.size(); ++g) {
    for (std::size_t c = 0; c < ours.groups[g].components.size(); ++c)
      comparison.numbers.push_back(compare_component(*x, *y, g, c));
  }
  return comparison;
}

}  // namespace isthmus::kvs
