// SPDX-License-Identifier: Apache-2.0
// How much a server can do, and what it does when asked for more. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "load/report.h"

namespace isthmus::load {

// Doubles the requests that are under way at once until that serves no more.
class CapacitySearch {
 public:
  // What to try next; nothing when the capacity is known.
  std::optional<std::uint32_t> next() const;
  void tried(const Report& report);
  double capacity() const { return best_; }  // Whole answers a second; 0: nothing was served.

 private:
  static constexpr std::uint32_t kConcurrencyMax = 256;
  static constexpr double kGain = 1.05;  // Less more than this isn't more.
  std::uint32_t concurrency_ = 1;
  double best_ = 0;
  bool is_over_ = false;
};

// Of the capacity, one run each.
inline constexpr std::array<double, 4> kOverloadFactors = {0.5, 1, 2, 5};

// A server that is asked five times what it can do must still do nearly as much that is good.
inline constexpr double kOverloadBar = 0.9;

}  // namespace isthmus::load
