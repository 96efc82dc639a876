// SPDX-License-Identifier: Apache-2.0
// Nearest ranks.
#include "load/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace isthmus::load {

double percentile(const std::vector<double>& sorted, double percent) {
  ISTHMUS_CHECK(!sorted.empty() && percent > 0 && percent <= 100);
  // Less a little: 0.9 * 10 isn't to be the tenth of ten because of its last bit.
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()) - 1e-9);
  return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.count = values.size(),
          .mean = sum / static_cast<double>(values.size()),
          .p50 = percentile(values, 50),
          .p90 = percentile(values, 90),
          .p99 = percentile(values, 99),
          .max = values.back()};
}

std::vector<double> quantiles(std::vector<double> values, std::uint32_t steps) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  std::vector<double> at{values.front()};
  for (std::uint32_t i = 1; i <= steps; ++i) at.push_back(percentile(values, 100.0 * i / steps));
  return at;
}

}  // namespace isthmus::load
