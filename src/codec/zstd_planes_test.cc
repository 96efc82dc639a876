// SPDX-License-Identifier: Apache-2.0
// There and back; smaller where planes repeat; whatever else is decoded is an error, never more than a body.
#include "codec/zstd_planes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace isthmus::codec {
namespace {

using Bytes = std::vector<std::byte>;

// Elements of 2 and 4 bytes of about one size, then bytes; pads between.
constexpr std::uint64_t kBody = 8192;
const std::vector<PlaneArray> kArrays{{0, 4000, 2}, {4032, 2000, 4}, {6080, 100, 1}};

Bytes numbers() {
  Bytes body(kBody, std::byte{0});
  std::uint64_t state = 1;
  for (const PlaneArray& array : kArrays) {
    for (std::uint64_t i = 0; i < array.bytes; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const bool is_highest = array.width > 1 && i % array.width == array.width - 1;
      body[array.offset + i] =
          std::byte{static_cast<unsigned char>(is_highest ? 0x3c | (state >> 63) : state >> 56)};
    }
  }
  return body;
}

Bytes random_bytes(std::size_t count) {
  Bytes bytes(count);
  std::uint64_t state = 7;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = std::byte{static_cast<unsigned char>(state >> 56)};
  }
  return bytes;
}

Bytes encoded(const Bytes& body, const std::vector<PlaneArray>& arrays) {
  ZstdPlanesEncoder encoder;
  const auto stored = encoder.encode(body, arrays);
  return stored ? Bytes(stored->begin(), stored->end()) : Bytes();
}

TEST(ZstdPlanes, GoesThereAndBackAndIsSmaller) {
  const Bytes body = numbers(), stored = encoded(body, kArrays);
  ASSERT_FALSE(stored.empty());
  EXPECT_LT(stored.size(), body.size() * 3 / 4);
  Bytes back(body.size(), std::byte{0x55});
  ZstdPlanesDecoder decoder;
  const Status done = decoder.decode(stored, kArrays, back);
  ASSERT_TRUE(done.ok()) << done.error().text();
  EXPECT_EQ(back, body);
}

TEST(ZstdPlanes, PlanesMakeWhatMixedBytesDoNot) {
  const Bytes body = numbers();
  const Bytes mixed = encoded(body, {{0, 4000, 1}, {4032, 2000, 1}, {6080, 100, 1}});
  EXPECT_LT(encoded(body, kArrays).size(), mixed.size());
}

TEST(ZstdPlanes, WhatWouldNotBeSmallerIsNotEncoded) {
  for (const std::size_t count : {0u, 1u, 8u, 5000u}) {
    EXPECT_TRUE(encoded(random_bytes(count), {{0, count, 1}}).empty()) << count;
  }
}

RC_GTEST_PROP(ZstdPlanes, AnyBodyComesBack, (const std::vector<std::uint16_t>& values)) {
  Bytes body(values.size() * 8 + 64);
  if (!values.empty()) std::memcpy(body.data(), values.data(), values.size() * 2);
  const std::vector<PlaneArray> arrays{{0, values.size() * 2, 2}, {values.size() * 2, values.size() * 4, 4}};
  const Bytes stored = encoded(body, arrays);
  RC_ASSERT(!stored.empty());  // Of zeros enough.
  Bytes back(body.size());
  RC_ASSERT(ZstdPlanesDecoder().decode(stored, arrays, back).ok());
  RC_ASSERT(back == body);
}

// Every bit of a frame, every length, and other sizes: an error, or the bytes that were meant.
TEST(ZstdPlanes, DamageIsAnErrorAndNothingIsWrittenBeyondTheBody) {
  const Bytes body = numbers(), stored = encoded(body, kArrays);
  ZstdPlanesDecoder decoder;
  Bytes out(kBody + 64);
  const auto decode = [&](const Bytes& bytes) {
    std::fill(out.begin(), out.end(), std::byte{0xee});
    const Status done = decoder.decode(bytes, kArrays, std::span(out).first(kBody));
    EXPECT_TRUE(
        std::all_of(out.begin() + kBody, out.end(), [](std::byte b) { return b == std::byte{0xee}; }));
    return done.code();
  };
  ASSERT_EQ(decode(stored), Code::kOk);
  for (std::size_t length = 0; length < stored.size(); length += length < 40 ? 1 : 97) {
    EXPECT_EQ(decode(Bytes(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(length))),
              Code::kMalformed);
  }
  for (std::size_t at = 0; at < stored.size(); at += at < 40 ? 1 : 31) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes bad = stored;
      bad[at] ^= std::byte{1} << bit;
      const Code code = decode(bad);
      EXPECT_TRUE(code == Code::kMalformed || code == Code::kOk);
    }
  }
  Bytes two = stored;
  two.insert(two.end(), stored.begin(), stored.end());
  EXPECT_EQ(decode(two), Code::kMalformed);
  two.resize(stored.size() + 1);
  EXPECT_EQ(decode(two), Code::kMalformed);
  EXPECT_EQ(decode(random_bytes(500)), Code::kMalformed);
}

TEST(ZstdPlanes, AFrameOfMoreOrFewerBytesThanTheBodyIsRefused) {
  const Bytes body(kBody, std::byte{3});
  const Bytes stored = encoded(body, {});
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{kBody - 1}, std::size_t{kBody + 1}}) {
    Bytes out(size);
    EXPECT_EQ(ZstdPlanesDecoder().decode(stored, {}, out).code(), Code::kMalformed) << size;
  }
}

}  // namespace
}  // namespace isthmus::codec
