// SPDX-License-Identifier: Apache-2.0
// What stored codes mean and how they are made, by the plainest formulas: the oracle of the transform's
// tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kv/negotiate.h"

namespace isthmus::transform {

using TestRow = std::vector<float>;

// Stored elements of consecutive rows whose first begins a token group.
struct TestCodes {
  std::vector<std::uint32_t> codes;          // [row][dim]
  std::vector<std::uint32_t> scales, zeros;  // [row group][unit], f32 or f16 bits as the form says.
};

// The rows that the codes mean, value transforms undone.
std::vector<TestRow> test_decode(const kv::WireComponent& numbers, std::uint32_t dim,
                                 const TestCodes& stored);
// Rows before any value transform to stored elements.
TestCodes test_encode(const kv::WireComponent& numbers, const std::vector<TestRow>& rows);

}  // namespace isthmus::transform
