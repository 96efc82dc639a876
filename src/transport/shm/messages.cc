// SPDX-License-Identifier: Apache-2.0
// Notices and places as bytes.
#include "transport/shm/messages.h"

#include <fmt/format.h>

#include "base/bytes.h"

namespace isthmus::transport {
namespace {

constexpr std::byte kUser{0};
constexpr std::byte kSegment{1};
constexpr std::byte kRelease{2};

Error malformed(std::string what) {
  return {Code::kMalformed, "shm: " + std::move(what)};
}

}  // namespace

std::vector<std::byte> encode(const SegmentNotice& notice) {
  std::vector<std::byte> bytes(13);
  bytes[0] = kSegment;
  store_le(std::span(bytes).subspan(1), notice.segment);
  store_le(std::span(bytes).subspan(5), notice.bytes);
  return bytes;
}

std::vector<std::byte> encode(const ReleaseNotice& notice) {
  std::vector<std::byte> bytes(9);
  bytes[0] = kRelease;
  store_le(std::span(bytes).subspan(1), notice.message);
  return bytes;
}

std::vector<std::byte> encode_user_control(std::span<const std::byte> frame) {
  std::vector<std::byte> bytes;
  bytes.reserve(frame.size() + 1);
  bytes.push_back(kUser);
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  return bytes;
}

Result<Notice> decode_notice(std::vector<std::byte> frame) {
  if (frame.empty()) return malformed("an empty control frame");
  const std::byte kind = frame.front();
  const std::span<const std::byte> rest = std::span(frame).subspan(1);
  if (kind == kUser) {
    frame.erase(frame.begin());
    return Notice(UserControl{std::move(frame)});
  }
  if (kind == kSegment && rest.size() == 12)
    return Notice(SegmentNotice{load_le<std::uint32_t>(rest), load_le<std::uint64_t>(rest.subspan(4))});
  if (kind == kRelease && rest.size() == 8) return Notice(ReleaseNotice{load_le<std::uint64_t>(rest)});
  return malformed(
      fmt::format("a control frame of kind {} with {} bytes", static_cast<unsigned>(kind), frame.size()));
}

std::vector<std::byte> encode_immediate(std::span<const std::byte> user, const Place& place) {
  std::vector<std::byte> bytes(user.size() + kPlaceBytes);
  std::copy(user.begin(), user.end(), bytes.begin());
  const std::span<std::byte> tail = std::span(bytes).subspan(user.size());
  store_le(tail, place.segment);
  store_le(tail.subspan(4), place.offset);
  store_le(tail.subspan(12), place.bytes);
  return bytes;
}

Result<Immediate> decode_immediate(std::span<const std::byte> immediate) {
  if (immediate.size() < kPlaceBytes)
    return malformed(
        fmt::format("a data message with {} bytes beside it, at least {}", immediate.size(), kPlaceBytes));
  const std::span<const std::byte> tail = immediate.last(kPlaceBytes);
  return Immediate{immediate.first(immediate.size() - kPlaceBytes),
                   {.segment = load_le<std::uint32_t>(tail),
                    .offset = load_le<std::uint64_t>(tail.subspan(4)),
                    .bytes = load_le<std::uint64_t>(tail.subspan(12))}};
}

}  // namespace isthmus::transport
