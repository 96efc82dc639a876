// SPDX-License-Identifier: Apache-2.0
// The one place that reads a clock.
#include "base/clock.h"

#include <ctime>

namespace isthmus {

Instant now() {
  timespec spec{};
  clock_gettime(CLOCK_BOOTTIME, &spec);
  return {std::chrono::seconds(spec.tv_sec) + std::chrono::nanoseconds(spec.tv_nsec)};
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace isthmus
