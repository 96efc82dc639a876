// SPDX-License-Identifier: Apache-2.0
// Edit distance with swaps (optimal string alignment) and the text made of it.
#include "fleet/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace isthmus::fleet {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Words longer than this are not misspelt keys; the bound keeps a hostile file cheap.
  constexpr std::size_t kWordMax = 64;
  a = a.substr(0, kWordMax);
  b = b.substr(0, kWordMax);
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i * width] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) cost[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      std::size_t best = std::min({cost[(i - 1) * width + j] + 1, cost[i * width + j - 1] + 1,
                                   cost[(i - 1) * width + j - 1] + change});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) best = std::min(best, cost[(i - 2) * width + j - 2] + 1);
      cost[i * width + j] = best;
    }
  }
  return cost.back();
}

std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
  std::string_view nearest;
  std::size_t nearest_distance = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= nearest_distance) continue;
    nearest = candidate;
    nearest_distance = distance;
  }
  if (!nearest.empty()) return fmt::format(", did you mean '{}'?", nearest);
  return fmt::format("; known are {}", fmt::join(known, ", "));
}

}  // namespace isthmus::fleet
