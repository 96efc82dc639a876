// SPDX-License-Identifier: Apache-2.0
// Counts what this program allocates.
#pragma once

#include <cstdint>

namespace isthmus::transform {

// Calls of operator new so far, by all threads.
std::uint64_t allocations();
// False where a sanitizer's operator new stands before the one that counts: a test of none would pass
// whatever happens.
bool are_allocations_counted();

}  // namespace isthmus::transform
