// SPDX-License-Identifier: Apache-2.0
// Frame headers as bytes.
#include "transport/tcp/frame.h"

#include <fmt/format.h>

#include "base/bytes.h"

namespace isthmus::transport {
namespace {

constexpr std::uint32_t kMagic = 0x31485349;  // "ISH1"

Error malformed(std::string what) {
  return {Code::kMalformed, std::move(what)};
}

Status check(const FrameHeader& header) {
  const bool is_data = header.type == FrameType::kData;
  const std::size_t immediate_max = is_data ? kImmediateBytesMax : 0;
  if (header.immediate_bytes > immediate_max) {
    return malformed(
        fmt::format("frame: {} bytes of immediate data, at most {}", header.immediate_bytes, immediate_max));
  }
  if (header.type == FrameType::kFence) return ok_status();
  const std::uint64_t length_max = is_data ? kDataBytesMax : kControlBytesMax;
  if (header.length > length_max) {
    return malformed(fmt::format("frame: {} of {} bytes, at most {}", is_data ? "data" : "control",
                                 header.length, length_max));
  }
  return ok_status();
}

}  // namespace

std::array<std::byte, kHeaderBytes> encode(const FrameHeader& header) {
  ISTHMUS_CHECK(check(header).ok());
  std::array<std::byte, kHeaderBytes> bytes{};
  const std::span<std::byte> out(bytes);
  store_le(out, kMagic);
  out[4] = static_cast<std::byte>(header.type);
  store_le(out.subspan(6), header.immediate_bytes);
  store_le(out.subspan(8), header.length);
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
  const auto magic = load_le<std::uint32_t>(bytes);
  if (magic != kMagic) {
    return malformed(fmt::format("frame: starts with {:08x}, not {:08x}: the peer speaks another protocol",
                                 magic, kMagic));
  }
  const auto type = static_cast<std::uint8_t>(bytes[4]);
  if (type < 1 || type > 3) return malformed(fmt::format("frame: unknown type {}", type));
  if (bytes[5] != std::byte{0}) {
    return malformed(fmt::format("frame: unknown flags {:02x}", static_cast<unsigned>(bytes[5])));
  }
  const FrameHeader header{.type = static_cast<FrameType>(type),
                           .immediate_bytes = load_le<std::uint16_t>(bytes.subspan(6)),
                           .length = load_le<std::uint64_t>(bytes.subspan(8))};
  ISTHMUS_TRY(check(header));
  return header;
}

}  // namespace isthmus::transport
