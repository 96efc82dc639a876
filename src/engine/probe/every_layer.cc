// SPDX-License-Identifier: Apache-2.0
// Signs of a layer that was never written, lies elsewhere, or is another one.
#include "engine/probe/every_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
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

}  // namespace

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
