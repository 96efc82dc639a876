// SPDX-License-Identifier: Apache-2.0
// Figures for people and machines that read them.
#pragma once

#include <cmath>

namespace isthmus {

// To six significant digits: more is noise and unreadable. Infinities and NaN stay.
inline double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

}  // namespace isthmus
