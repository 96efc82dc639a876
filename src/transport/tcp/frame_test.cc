// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/frame.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace isthmus::transport {
namespace {

RC_GTEST_PROP(Frame, DecodeOfEncodeIsTheSame, (std::uint64_t length, std::uint16_t immediate)) {
  const FrameHeader data{FrameType::kData, static_cast<std::uint16_t>(immediate % (kImmediateBytesMax + 1)),
                         length % (kDataBytesMax + 1)};
  const FrameHeader fence{FrameType::kFence, 0, length};
  const FrameHeader control{FrameType::kControl, 0, length % (kControlBytesMax + 1)};
  for (const FrameHeader& header : {data, fence, control})
    RC_ASSERT(decode_header(encode(header)).value() == header);
}

RC_GTEST_PROP(Frame, AnyBytesAreDecodedWithinTheLimitsOrRefused,
              (std::array<std::uint8_t, kHeaderBytes> noise, bool plausible)) {
  std::array<std::byte, kHeaderBytes> bytes = encode({});
  for (std::size_t i = plausible ? 4 : 0; i < kHeaderBytes; ++i)
    bytes[i] = static_cast<std::byte>(noise[i] % (i < 6 ? 5 : 256));
  const Result<FrameHeader> header = decode_header(bytes);
  if (!header.ok()) {
    RC_ASSERT(header.code() == Code::kMalformed);
    return;
  }
  RC_ASSERT(header->immediate_bytes <= kImmediateBytesMax);
  RC_ASSERT(header->type == FrameType::kFence || header->length <= kDataBytesMax);
}

TEST(Frame, EachWrongFieldIsNamed) {
  const auto why = [](std::size_t at, unsigned value) {
    std::array<std::byte, kHeaderBytes> bytes = encode({FrameType::kControl, 0, 10});
    bytes[at] = static_cast<std::byte>(value);
    const Result<FrameHeader> header = decode_header(bytes);
    return header.ok() ? std::string() : header.error().detail;
  };
  EXPECT_NE(why(0, 0x47).find("another protocol"), std::string::npos);
  EXPECT_NE(why(4, 0).find("unknown type 0"), std::string::npos);
  EXPECT_NE(why(4, 4).find("unknown type 4"), std::string::npos);
  EXPECT_NE(why(5, 1).find("unknown flags 01"), std::string::npos);
  EXPECT_NE(why(6, 1).find("1 bytes of immediate"), std::string::npos);
  EXPECT_NE(why(15, 1).find("control of 72057594037927946 bytes"), std::string::npos);
}

}  // namespace
}  // namespace isthmus::transport
