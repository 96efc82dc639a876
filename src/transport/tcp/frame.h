// SPDX-License-Identifier: Apache-2.0
// The header that precedes each frame on a tcp channel, and its limits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace isthmus::transport {

// Limits hold before anything is allocated. A control frame carries descriptors and lists of boxes; payloads
// go into memory that the receiver gives, so theirs only keeps lengths sane.
inline constexpr std::uint64_t kControlBytesMax = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kDataBytesMax = std::uint64_t{1} << 30;
inline constexpr std::size_t kImmediateBytesMax = std::size_t{16} << 10;
inline constexpr std::size_t kHeaderBytes = 16;

enum class FrameType : std::uint8_t { kControl = 1, kData = 2, kFence = 3 };

// On the wire, little-endian:  0 u32 magic | 4 u8 type | 5 u8 flags, 0 | 6 u16 immediate bytes | 8 u64 length
// Control: `length` bytes follow. Data: the immediate, then `length` bytes. Fence: nothing; `length` is its
// token.
struct FrameHeader {
  FrameType type = FrameType::kControl;
  std::uint16_t immediate_bytes = 0;
  std::uint64_t length = 0;

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

std::array<std::byte, kHeaderBytes> encode(const FrameHeader& header);
// malformed: another magic, type, flag, or a length over its limit.
Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace isthmus::transport
