// SPDX-License-Identifier: Apache-2.0
// Signs of a layer that was never written, lies elsewhere, or is another one.
#include "engine/probe/every_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "engine/probe/described.h"
#include "engine/probe/probe.h"

namespace isthmus::engine {
namespace {

Error surprise(char component, std::uint32_t layer, const std::string& detail) {
  return {Code::kIncompatible, fmt::format("{} of layer {}: {}", component, layer, detail)};
}

Status check_rows(char component, std::uint32_t layer, std::span<const float> rows, std::size_t row) {
  const auto odd = std::ranges::find_if(rows, [](float x) { return !std::isfinite(x); });
  if (odd != rows.end()) {
    return surprise(component, layer, fmt::format("element {} is {}", odd - rows.begin(), *odd));
  }
  if (std::ranges::all_of(rows, [&](float x) { return x == rows.front(); })) {
    return surprise(component, layer, fmt::format("every element is {}", rows.front()));
  }
  for (std::size_t at = 0; at < rows.size(); at += row) {
    if (std::ranges::all_of(rows.subspan(at, row), [](float x) { return x == 0; })) {
      return surprise(component, layer, fmt::format("nothing but zeros at position {}", at / row));
    }
  }
  return ok_status();
}

// Row 0 of `rows` at each of its positions, turned by `theta`.
std::vector<float> turned(const RowShape& shape, std::span<const float> rows, double theta,
                          const std::string& pairing) {
  const std::size_t row = std::size_t{shape.heads} * shape.dim;
  std::vector<float> repeated;
  for (std::uint32_t i = 0; i < shape.tokens; ++i) {
    repeated.insert(repeated.end(), rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(row));
  }
  if (pairing == "none") return repeated;
  return rotate(shape, repeated, {.theta = theta, .pairs_halves = pairing == "halves"});
}

Status check_rotation(std::uint32_t layer, const RowShape& shape, std::span<const float> rows,
                      const std::string& pairing, const RopeBases& bases, double tolerance) {
  const auto error = [&](double theta) { return relative_error(rows, turned(shape, rows, theta, pairing)); };
  const double wanted = bases.of_layer[layer], found = error(wanted);
  if (found <= tolerance) return ok_status();
  std::string why = "no known base explains it";
  std::set<double> others{1e4, 1e5, 5e5, 1e6};
  others.insert(bases.of_layer.begin(), bases.of_layer.end());
  for (const double other : others) {
    if (error(other) <= tolerance) why = fmt::format("rope theta is {}, the file says {}", other, wanted);
  }
  return surprise(
      'K', layer,
      fmt::format("rows of one token are off by {:.3g} from position 0's, turned (tolerance {:.3g}): {}",
                  found, tolerance, why));
}

}  // namespace

Status check_rotations(const kv::Descriptor& descriptor, const kv::Binding& binding, std::uint64_t tokens,
                       const RopeBases& bases, double tolerance) {
  const std::size_t layers = descriptor.groups.at(0).layers.size();
  if (layers != bases.of_layer.size()) {
    return Error{Code::kIncompatible,
                 fmt::format("{} layers in the descriptor, {} in the file", layers, bases.of_layer.size())};
  }
  const std::size_t hadamard = described_hadamard(descriptor, "k");
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    ISTHMUS_TRY(LayerRows rows, read_layer(descriptor, binding, layer, {0, tokens}));
    if (hadamard != 0) rows.k = with_hadamard(rows.k, hadamard);
    ISTHMUS_TRY(check_rotation(layer, {.tokens = rows.tokens, .heads = rows.heads, .dim = rows.dim}, rows.k,
                               described_pairing(descriptor), bases, tolerance));
  }
  return ok_status();
}

Status check_every_layer(const kv::Descriptor& descriptor, const kv::Binding& binding, std::uint64_t tokens) {
  std::map<std::string, std::uint32_t> seen;  // Digest of rows, and the layer that has them.
  const auto layers = static_cast<std::uint32_t>(descriptor.groups.at(0).layers.size());
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    ISTHMUS_TRY(const LayerRows rows, read_layer(descriptor, binding, layer, {0, tokens}));
    for (const char component : {'K', 'V'}) {
      const std::vector<float>& values = component == 'K' ? rows.k : rows.v;
      ISTHMUS_TRY(check_rows(component, layer, values, std::size_t{rows.heads} * rows.dim));
      const auto [other, is_new] =
          seen.emplace(digest128(bytes_of(std::span<const float>(values))).hex(), layer);
      if (!is_new) {
        return surprise(component, layer, fmt::format("the same numbers as in layer {}", other->second));
      }
    }
  }
  return ok_status();
}

}  // namespace isthmus::engine
