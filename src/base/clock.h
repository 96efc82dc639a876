// SPDX-License-Identifier: Apache-2.0
// The real clock; shells read it and hand instants to the pure cores.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace isthmus {

// CLOCK_BOOTTIME: a lease must not outlive its grantor because this host slept.
Instant now();

// What the calling thread has used of the processors; differences tell what a piece of work cost.
Duration thread_time();

// Seconds since 1970 on the wall clock; for people and API fields only, never for deadlines.
std::int64_t unix_seconds();

}  // namespace isthmus
