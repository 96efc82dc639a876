// SPDX-License-Identifier: Apache-2.0
// Tests of host buffers.
#include "device/host/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace isthmus::device {
namespace {

TEST(HostBuffer, IsZeroedAndWritableAndMoves) {
  Result<HostBuffer> made = HostBuffer::allocate(3 << 20);
  ASSERT_TRUE(made.ok());
  HostBuffer buffer = *std::move(made);
  ASSERT_EQ(buffer.bytes().size(), std::size_t{3} << 20);
  EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  buffer.bytes().back() = std::byte{7};
  const HostBuffer other = std::move(buffer);
  EXPECT_EQ(other.bytes().back(), std::byte{7});
  EXPECT_TRUE(buffer.bytes().empty());  // NOLINT(bugprone-use-after-move) the moved-from state is promised
}

TEST(HostBuffer, AnImpossibleSizeIsATypedError) {
  EXPECT_EQ(HostBuffer::allocate(SIZE_MAX / 2).code(), Code::kExhausted);
}

}  // namespace
}  // namespace isthmus::device
