// SPDX-License-Identifier: Apache-2.0
// Points and lengths of monotonic time. Only the difference of two instants of one process means anything.
#pragma once

#include <chrono>

namespace isthmus {

using Duration = std::chrono::nanoseconds;

// Nanoseconds on this host's clock that counts suspended time (CLOCK_BOOTTIME); virtual in simulations.
struct Instant {
  Duration since_origin{0};

  friend auto operator<=>(const Instant&, const Instant&) = default;
  friend Instant operator+(Instant at, Duration d) { return {at.since_origin + d}; }
  friend Instant operator-(Instant at, Duration d) { return {at.since_origin - d}; }
  friend Duration operator-(Instant a, Instant b) { return a.since_origin - b.since_origin; }
};

inline constexpr Instant kFarFuture{Duration::max()};

}  // namespace isthmus
