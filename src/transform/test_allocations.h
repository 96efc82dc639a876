// SPDX-License-Identifier: Apache-2.0
// Counts what this program allocates.
#pragma once

#include <cstdint>

namespace isthmus::transform {

// Calls of operator new so far, by all threads.
std::uint64_t allocations();

}  // namespace isthmus::transform
