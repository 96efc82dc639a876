// SPDX-License-Identifier: Apache-2.0
// Host memory for staging: page-aligned, on huge pages where the kernel gives them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/status.h"

namespace isthmus::device {

// Owns an anonymous mapping. Movable; empty when default-made or moved from.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept;

  // Zeroed memory. exhausted if the system has none.
  static Result<HostBuffer> allocate(std::size_t bytes);

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit HostBuffer(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace isthmus::device
