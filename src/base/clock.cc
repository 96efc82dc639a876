// SPDX-License-Identifier: Apache-2.0
// The one place that reads a clock.
#include "base/clock.h"

#include <ctime>

namespace isthmus {

namespace {

Duration reading(clockid_t clock) {
  timespec spec{};
  clock_gettime(clock, &spec);
  return std::chrono::seconds(spec.tv_sec) + std::chrono::nanoseconds(spec.tv_nsec);
}

}  // namespace

Instant now() {
  return {reading(CLOCK_BOOTTIME)};
}

Duration thread_time() {
  return reading(CLOCK_THREAD_CPUTIME_ID);
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace isthmus
