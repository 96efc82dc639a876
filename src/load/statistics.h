// SPDX-License-Identifier: Apache-2.0
// Percentiles of what was measured, none of them estimated. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace isthmus::load {

// The smallest value that at least `percent` of 100 of all are not above (nearest rank). `sorted` isn't
// empty; `percent` in (0, 100].
double percentile(const std::vector<double>& sorted, double percent);

struct Spread {
  std::uint64_t count = 0;  // 0: the rest means nothing.
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
Spread spread_of(std::vector<double> values);

// A cumulative distribution as `steps` + 1 values: those that 0, 1/steps, ... and all of them are not above.
// Empty for no values.
std::vector<double> quantiles(std::vector<double> values, std::uint32_t steps);

}  // namespace isthmus::load
