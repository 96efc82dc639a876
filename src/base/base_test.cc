// SPDX-License-Identifier: Apache-2.0
// Tests of errors, digests, MAC, identities and bytes.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/id.h"
#include "base/mac.h"
#include "base/rng.h"
#include "base/status.h"

namespace isthmus {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Error{Code::kInvalidArgument, "odd"};
  return value / 2;
}

Result<int> quarter(int value) {
  ISTHMUS_TRY(const int once, half(value));
  ISTHMUS_TRY(half(once));
  return half(once);
}

TEST(Status, TryReturnsTheFirstFailureOrTheValue) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).code(), Code::kInvalidArgument);
  EXPECT_EQ(quarter(6).error().text(), "invalid_argument: odd");
}

TEST(Status, EachCodeHasANameThatReadsBack) {
  for (int i = 0; i < kCodeCount; ++i) {
    const auto code = static_cast<Code>(i);
    EXPECT_EQ(code_from_name(name(code)), code);
  }
  EXPECT_FALSE(code_from_name("nonsense").has_value());
}

TEST(Status, ContextGoesInFront) {
  Status status = Error{Code::kCorrupt, "tile 3"};
  EXPECT_EQ(std::move(status).with_context("chunk 7").error().detail, "chunk 7: tile 3");
}

TEST(StatusDeathTest, ReadingTheValueOfAFailureStopsTheProcess) {
  EXPECT_DEATH((void)half(3).value(), "check failed");
}

TEST(Digest, StreamingEqualsWhole) {
  const std::string text(10'000, 'x');
  DigestStream stream;
  stream.add(bytes_of(text).first(17));
  stream.add(bytes_of(text).subspan(17));
  EXPECT_EQ(stream.finish(), digest128(text));
}

TEST(Digest, KnownValueAndHexRoundTrip) {
  // XXH3-128 of the empty input, from the xxHash specification.
  const Digest128 empty = digest128(std::string_view());
  EXPECT_EQ(empty.hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(Digest128::from_hex(empty.hex()), empty);
  EXPECT_FALSE(Digest128::from_hex("99aa").has_value());
  EXPECT_FALSE(Digest128::from_hex("zzaa06d3014798d86001c324468d497f").has_value());
}

TEST(Mac, KnownVectors) {
  // RFC 4231, test case 2.
  const Mac mac = hmac_sha256(bytes_of(std::string_view("Jefe")),
                              bytes_of(std::string_view("what do ya want for nothing?")));
  EXPECT_EQ(std::to_integer<int>(mac.at(0)), 0x5b);
  EXPECT_EQ(std::to_integer<int>(mac.at(31)), 0x43);
  // Case 6: a key longer than a block.
  const std::vector<std::byte> long_key(131, std::byte{0xaa});
  const Mac other = hmac_sha256(
      long_key, bytes_of(std::string_view("Test Using Larger Than Block-Size Key - Hash Key First")));
  EXPECT_EQ(std::to_integer<int>(other.at(0)), 0x60);
  EXPECT_EQ(std::to_integer<int>(other.at(31)), 0x54);
  EXPECT_EQ(sha256_hex(bytes_of(std::string_view("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Mac, DerivedKeysDependOnLabelAndContext) {
  const Key key{};
  const Key a = derive_key(key, "a", {});
  EXPECT_NE(a, derive_key(key, "b", {}));
  EXPECT_NE(a, derive_key(key, "a", bytes_of(std::string_view("x"))));
  EXPECT_TRUE(equal_constant_time(a, derive_key(key, "a", {})));
}

TEST(Id, RandomIdsDifferAndReadBack) {
  const Id128 a = random_id();
  EXPECT_NE(a, random_id());
  EXPECT_EQ(Id128::from_hex(a.hex()), a);
}

TEST(Rng, DrawsDependOnEachArgumentAlone) {
  EXPECT_EQ(uniform_at(1, 2, 3), uniform_at(1, 2, 3));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(1, 2, 4));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(1, 3, 3));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(2, 2, 3));
  double sum = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) sum += uniform_at(7, 0, i);
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);
}

TEST(Bytes, ScalarsAtAnyAlignment) {
  std::array<std::byte, 9> raw{};
  store_le<std::uint32_t>(std::span(raw).subspan(1), 0x01020304u);
  EXPECT_EQ(std::to_integer<int>(raw.at(1)), 4);
  EXPECT_EQ(load_le<std::uint32_t>(std::span(raw).subspan(1)), 0x01020304u);
}

TEST(Clock, NeverRunsBackwards) {
  const Instant first = now();
  EXPECT_LE(first, now());
}

}  // namespace
}  // namespace isthmus
