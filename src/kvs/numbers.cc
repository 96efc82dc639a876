// SPDX-License-Identifier: Apache-2.0
// See numbers.h. Both states are converted to rows of f32.
#include "kvs/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/bytes.h"

namespace isthmus::kvs {
namespace {

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

// Sums of squares: of a - b, and of a.
struct Squares {
  double difference = 0, of_a = 0;
  double relative() const { return of_a > 0 ? std::sqrt(difference / of_a) : std::sqrt(difference); }
};

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
  found.layers = shape.layers;
  Squares all;
  const std::uint64_t width = std::uint64_t{rows.heads} * rows.dim;
  for (std::uint32_t layer = 0; layer < shape.layers.size() && tokens.begin < tokens.end; ++layer) {
    const auto x = rows_of(a, group, component, layer).subspan((tokens.begin - ours.first_position) * width);
    const auto y =
        rows_of(b, group, component, layer).subspan((tokens.begin - theirs.first_position) * width);
    Squares squares;
    for (std::uint64_t i = 0; i < tokens.size() * width; ++i) {
      const double difference = double{x[i]} - double{y[i]};
      squares.difference += difference * difference;
      squares.of_a += double{x[i]} * double{x[i]};
      if (std::fabs(difference) <= found.max) continue;
      found.max = std::fabs(difference);
      found.where = fmt::format("layer {}, head {}, position {}, element {}", shape.layers[layer],
                                i % width / rows.dim, tokens.begin + i / width, i % rows.dim);
    }
    found.layer_rms.push_back(squares.relative());
    all.difference += squares.difference;
    all.of_a += squares.of_a;
  }
  found.rms = all.relative();
  return found;
}

}  // namespace

std::size_t NumberDifference::worst_layer() const {
  std::size_t worst = 0;
  for (std::size_t i = 0; i < layer_rms.size(); ++i) {
    if (std::isnan(layer_rms[i])) return i;
    if (layer_rms[i] > layer_rms[worst]) worst = i;
  }
  return worst;
}

bool keep_the_same(const kv::Descriptor& a, const kv::Descriptor& b) {
  return std::ranges::equal(a.groups, b.groups, [](const kv::LayerGroup& x, const kv::LayerGroup& y) {
    return x.layers == y.layers &&
           std::ranges::equal(x.components, y.components, [](const auto& c, const auto& d) {
             return c.name == d.name && c.heads == d.heads && c.dim == d.dim;
           });
  });
}

Result<std::vector<NumberDifference>> compare_numbers(const State& a, const State& b) {
  const kv::Descriptor& ours = a.manifest.descriptor;
  if (!keep_the_same(ours, b.manifest.descriptor))
    return Error{Code::kIncompatible, "the states are of other layers, heads or components"};
  ISTHMUS_TRY(const State x, as_numbers(a, ours));
  ISTHMUS_TRY(const State y, as_numbers(b, ours));
  std::vector<NumberDifference> found;
  for (std::uint32_t g = 0; g < ours.groups.size(); ++g) {
    for (std::size_t c = 0; c < ours.groups[g].components.size(); ++c)
      found.push_back(compare_component(x, y, g, c));
  }
  return found;
}

}  // namespace isthmus::kvs
