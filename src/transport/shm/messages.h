// SPDX-License-Identifier: Apache-2.0
// What a shm channel adds to the frames of its socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/status.h"
#include "transport/tcp/frame.h"

namespace isthmus::transport {

// Segments that one side of a channel may have, and their bytes together; so the other side maps no more.
inline constexpr std::size_t kSegmentsMax = 64;
inline constexpr std::uint64_t kSegmentBytesMax = std::uint64_t{256} << 20;

// A control frame begins with a byte that says what follows.  0: the user's control frame.
// 1: u32 segment | u64 its bytes; its descriptor is passed with or before the frame. Numbered from 0, in
// order. 2: u64 message; the receiver let go of the payload of this data message, counted from 0 by the
// sender.
struct SegmentNotice {
  std::uint32_t segment = 0;
  std::uint64_t bytes = 0;
};
struct ReleaseNotice {
  std::uint64_t message = 0;
};
struct UserControl {
  std::vector<std::byte> frame;
};
using Notice = std::variant<UserControl, SegmentNotice, ReleaseNotice>;
inline constexpr std::size_t kUserControlMax = kControlBytesMax - 1;

std::vector<std::byte> encode(const SegmentNotice& notice);
std::vector<std::byte> encode(const ReleaseNotice& notice);
std::vector<std::byte> encode_user_control(std::span<const std::byte> frame);
// malformed: empty, an unknown kind, another length.
Result<Notice> decode_notice(std::vector<std::byte> frame);

// A data frame has no payload of its own. Its immediate ends with: u32 segment | u64 offset | u64 bytes.
struct Place {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
inline constexpr std::size_t kPlaceBytes = 20;
inline constexpr std::size_t kUserImmediateMax = kImmediateBytesMax - kPlaceBytes;

std::vector<std::byte> encode_immediate(std::span<const std::byte> user, const Place& place);
struct Immediate {
  std::span<const std::byte> user;
  Place place;
};
Result<Immediate> decode_immediate(std::span<const std::byte> immediate);  // malformed: too short.

}  // namespace isthmus::transport
