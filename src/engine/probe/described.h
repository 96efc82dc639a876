// SPDX-License-Identifier: Apache-2.0
// What a descriptor says was done to the values of K and V, and how far rows are from what they should be.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/descriptor.h"

namespace isthmus::engine {

// "halves" or "interleaved": of K's "rope:..."; "none" without one.
std::string described_pairing(const kv::Descriptor& descriptor);

// n of the component's "hadamard:n"; 0 without one.
std::size_t described_hadamard(const kv::Descriptor& descriptor, std::string_view component);

// Orthonormal Sylvester-Hadamard transform of each run of `size` elements, a power of two; its own inverse.
std::vector<float> with_hadamard(std::span<const float> rows, std::size_t size);

// sqrt(Σ(a − b)² / Σb²) with `expected` as b; infinite if sizes differ or a number isn't finite.
double relative_error(std::span<const float> found, std::span<const float> expected);

}  // namespace isthmus::engine
