// SPDX-License-Identifier: Apache-2.0
// The search for a server's capacity.
#include "load/overload.h"

#include <algorithm>

namespace isthmus::load {

std::optional<std::uint32_t> CapacitySearch::next() const {
  return is_over_ ? std::nullopt : std::optional(concurrency_);
}

void CapacitySearch::tried(const Report& report) {
  is_over_ = report.ok_rate < best_ * kGain || report.ok_rate == 0 || concurrency_ >= kConcurrencyMax;
  best_ = std::max(best_, report.ok_rate);
  concurrency_ *= 2;
}

}  // namespace isthmus::load
