// SPDX-License-Identifier: Apache-2.0
// Randomness: the operating system's for identities and keys, a counter-based one for reproducible draws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/id.h"

namespace isthmus {

// Cryptographically strong bytes; stops the process if the system has none.
void random_bytes(std::span<std::byte> out);
Id128 random_id();

// A uniform draw in [0, 1) that depends on its arguments alone, so that any process repeats it.
double uniform_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace isthmus
