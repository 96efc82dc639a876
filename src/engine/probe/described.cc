// SPDX-License-Identifier: Apache-2.0
// See described.h.
#include "engine/probe/described.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace isthmus::engine {

std::string described_pairing(const kv::Descriptor& descriptor) {
  for (const kv::Component& component : descriptor.groups.at(0).components) {
    for (const std::string& transform : component.value_transforms) {
      if (component.name == "k" && transform.starts_with("rope:")) return transform.substr(5);
    }
  }
  return "none";
}

std::size_t described_hadamard(const kv::Descriptor& descriptor, std::string_view name) {
  for (const kv::Component& component : descriptor.groups.at(0).components) {
    for (std::size_t size = 2; size <= component.dim && component.name == name; size *= 2) {
      const auto& transforms = component.value_transforms;
      if (std::ranges::find(transforms, fmt::format("hadamard:{}", size)) != transforms.end()) return size;
    }
  }
  return 0;
}

std::vector<float> with_hadamard(std::span<const float> rows, std::size_t size) {
  std::vector<float> out(rows.begin(), rows.end());
  const float factor = 1 / std::sqrt(static_cast<float>(size));
  for (std::size_t start = 0; start + size <= out.size(); start += size) {
    for (std::size_t step = 1; step < size; step *= 2) {
      for (std::size_t i = 0; i < size; ++i) {
        if ((i & step) != 0) continue;
        const float a = out[start + i], b = out[start + i + step];
        out[start + i] = a + b;
        out[start + i + step] = a - b;
      }
    }
    for (std::size_t i = 0; i < size; ++i) out[start + i] *= factor;
  }
  return out;
}

double relative_error(std::span<const float> found, std::span<const float> expected) {
  if (found.size() != expected.size() || expected.empty()) return std::numeric_limits<double>::infinity();
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = static_cast<double>(found[i]) - expected[i];
    difference += apart * apart;
    square += static_cast<double>(expected[i]) * expected[i];
  }
  const double error = std::sqrt(difference / square);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace isthmus::engine
