// SPDX-License-Identifier: Apache-2.0
// Conversion of a tile's rows: whose static scale counts, which codes are kept, what is counted and refused.
#include "transform/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

constexpr std::uint32_t kDim = 64;
constexpr std::uint64_t kRows = 4;

kv::WireComponent plain(kv::Format format, kv::NonFinite non_finite = kv::NonFinite::kRefuse) {
  return {{.component = "k", .codes = format, .recipe = "nearest_even"}, {}, non_finite};
}

kv::WireComponent fixed(kv::Format format, std::vector<float> scales, const char* recipe = "nearest_even") {
  return {{.component = "k",
           .codes = format,
           .operation = kv::DecodeOperation::kStaticScaled,
           .recipe = recipe,
           .static_scales = std::move(scales)},
          {}};
}

struct Converted {
  std::vector<std::uint8_t> codes;
  ConversionCounts counts;
};

// From arrays of any element type to codes of one byte.
template <typename T>
Result<Converted> convert(const kv::WireComponent& from, const kv::WireComponent& to,
                          const std::vector<T>& values, const ComponentShape& shape = {kDim},
                          const TileOwner& owner = {}) {
  ISTHMUS_TRY(RowConverter converter, RowConverter::make(from, to, shape));
  Converted made{std::vector<std::uint8_t>(values.size()), {}};
  ISTHMUS_TRY(converter.convert(values.size() / shape.dim, std::as_bytes(std::span(values)).data(),
                                {std::as_writable_bytes(std::span(made.codes)).data()}, owner, made.counts));
  return made;
}

TEST(RowConverter, AStaticScaleIsThatOfTheLayerAndHead) {
  const ComponentShape shape{.dim = kDim, .layers = 2, .heads = 3};
  const kv::WireComponent f32 = plain(kv::Format::kF32);
  const std::vector<float> values(kRows * kDim, 3.0f);
  const std::vector<std::vector<float>> kinds{{1.5f}, {1.5f, 3}, {3, 1.5f, 0.75f, 6, 12, 24}};
  for (const std::vector<float>& scales : kinds) {
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      for (std::uint32_t head = 0; head < 3; ++head) {
        const float scale = scales[scales.size() == 6 ? layer * 3 + head : scales.size() == 2 ? layer : 0];
        const auto own = convert(f32, fixed(kv::Format::kE4m3fn, scales), values, shape, {layer, head});
        const auto divided =
            convert(f32, plain(kv::Format::kE4m3fn), std::vector<float>(values.size(), 3.0f / scale), shape);
        ASSERT_TRUE(own.ok() && divided.ok());
        EXPECT_EQ(own->codes, divided->codes) << scales.size() << " " << layer << " " << head;
        std::vector<float> back(values.size());
        ConversionCounts counts;
        auto converter = RowConverter::make(fixed(kv::Format::kE4m3fn, scales), f32, shape).value();
        ASSERT_TRUE(converter
                        .convert(kRows, std::as_bytes(std::span(own->codes)).data(),
                                 {std::as_writable_bytes(std::span(back)).data()}, {layer, head}, counts)
                        .ok());
        EXPECT_EQ(back, values);  // Each scale is 3 times a power of two.
      }
    }
  }
}

// All codes of e4m3fn but its NaNs.
std::vector<std::uint8_t> codes_of_e4m3fn() {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::uint8_t>((i & 0x7f) == 0x7f ? 0x2a : i);
  return codes;
}

TEST(RowConverter, CodesBecomeThoseOfFnuzByDoublingTheScale) {
  const std::vector<std::uint8_t> codes = codes_of_e4m3fn();
  for (const float scale : {0.1f, 1e-30f, 0.37f, 1e30f}) {
    const auto made =
        convert(fixed(kv::Format::kE4m3fn, {scale}), fixed(kv::Format::kE4m3fnuz, {2 * scale}), codes);
    ASSERT_TRUE(made.ok()) << made.error().text();
    std::vector<std::uint8_t> expected = codes;
    expected[0x80] = 0;  // There is no -0.
    EXPECT_EQ(made->codes, expected) << scale;
    EXPECT_EQ(made->counts, ConversionCounts{});
  }
  for (const std::uint8_t nan : {std::uint8_t{0x7f}, std::uint8_t{0xff}}) {
    std::vector<std::uint8_t> with = codes;
    with[100] = nan;
    const auto made = convert(fixed(kv::Format::kE4m3fn, {1}), fixed(kv::Format::kE4m3fnuz, {2}), with);
    ASSERT_EQ(made.code(), Code::kCorrupt);
    EXPECT_THAT(made.error().detail, HasSubstr("row 1, element 36"));
  }
}

TEST(RowConverter, CodesAreKeptWhereOnlyThePairingChanges) {
  const std::vector<std::uint8_t> codes = codes_of_e4m3fn();
  for (const char* recipe : {"nearest_even", "vllm.cpu.fp8"}) {
    // Scales whose products, divided again, fall below the code's number and would be truncated.
    for (const float scale : {0.1f, 0.3f, 0.7f, 1e-40f}) {
      kv::WireComponent from = fixed(kv::Format::kE4m3fn, {scale}, recipe), to = from;
      from.value_transforms = {"rope:halves"};
      to.value_transforms = {"rope:interleaved"};
      const auto made = convert(from, to, codes);
      ASSERT_TRUE(made.ok()) << made.error().text();
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const std::size_t row = i / kDim * kDim, unit = i % kDim;
        ASSERT_EQ(made->codes[i], codes[row + unit / 2 + unit % 2 * kDim / 2]) << scale << " " << i;
      }
    }
  }
}

TEST(RowConverter, CountsWhatSaturates) {
  std::vector<float> values(kRows * kDim, 0.5f);
  values[3] = 449;
  values[70] = -1e30f;
  values[255] = 448;
  const kv::WireComponent f32 = plain(kv::Format::kF32);
  const auto saturated = [&](const kv::WireComponent& to) {
    const auto made = convert(f32, to, values);
    return made.ok() ? made->counts : ConversionCounts{999, 999};
  };
  EXPECT_EQ(saturated(plain(kv::Format::kE4m3fn)), (ConversionCounts{2, 0}));
  EXPECT_EQ(saturated(plain(kv::Format::kE5m2)), (ConversionCounts{1, 0}));
  EXPECT_EQ(saturated(plain(kv::Format::kE4m3fnuz)), (ConversionCounts{3, 0}));
  EXPECT_EQ(saturated(plain(kv::Format::kU8)), (ConversionCounts{3, 0}));
  EXPECT_EQ(saturated(plain(kv::Format::kI8)), (ConversionCounts{3, 0}));
  EXPECT_EQ(saturated(fixed(kv::Format::kE4m3fn, {2})), (ConversionCounts{1, 0}));
  EXPECT_EQ(saturated(fixed(kv::Format::kE4m3fn, {0.5f})), (ConversionCounts{3, 0}));
  EXPECT_EQ(saturated(fixed(kv::Format::kE4m3fn, {1e-20f}, "vllm.cpu.fp8")).saturated, values.size());
  kv::WireComponent amax = plain(kv::Format::kI8);
  amax.form.operation = kv::DecodeOperation::kScaled;
  amax.form.granule_dim = kDim;
  amax.form.recipe = "amax";
  std::vector<std::byte> scales(kRows * 4), codes(values.size());
  ConversionCounts counts;
  auto converter = RowConverter::make(f32, amax, {kDim}).value();
  ASSERT_TRUE(
      converter
          .convert(kRows, std::as_bytes(std::span(values)).data(), {codes.data(), scales.data()}, {}, counts)
          .ok());
  EXPECT_EQ(counts, ConversionCounts{}) << "a granule's own scale";
}

// Bits of infinities, quiet and signalling NaNs with payloads, of both signs.
constexpr std::array<std::uint16_t, 6> kBadF16{0x7c00, 0xfc00, 0x7e00, 0xfe55, 0x7c01, 0xfd00};
constexpr std::array<std::uint32_t, 6> kBadF32{0x7f800000, 0xff800000, 0x7fc00000,
                                               0xffc12345, 0x7f800001, 0xffa00000};

template <typename T, std::size_t kCount>
void expect_refused_or_replaced(kv::Format source, const std::array<T, kCount>& bad, float largest) {
  for (const T bits : bad) {
    std::vector<T> values(kRows * kDim, T{0});
    values[133] = bits;
    for (const kv::Format target : {kv::Format::kE4m3fn, kv::Format::kI8, kv::Format::kE5m2fnuz}) {
      const auto refused = convert(plain(source), plain(target), values);
      ASSERT_EQ(refused.code(), Code::kCorrupt) << bits;
      EXPECT_THAT(refused.error().detail, HasSubstr("row 2, element 5"));
      const auto made = convert(plain(source, kv::NonFinite::kReplace), plain(target), values);
      ASSERT_TRUE(made.ok());
      const T magnitude = static_cast<T>(bits << 1), infinity = static_cast<T>(bad[0] << 1);
      const float value = magnitude != infinity ? 0.0f : bits == bad[0] ? largest : -largest;
      std::vector<float> finite(values.size(), 0.0f);
      finite[133] = value;
      EXPECT_EQ(made->codes, convert(plain(kv::Format::kF32), plain(target), finite)->codes) << bits;
      EXPECT_EQ(made->counts, (ConversionCounts{value == 0 ? 0u : 1u, 1}));
    }
  }
}

TEST(RowConverter, RefusesWhatIsNotFiniteOrReplacesAndCountsIt) {
  expect_refused_or_replaced(kv::Format::kF16, kBadF16, 65504.0f);
  expect_refused_or_replaced(kv::Format::kF32, kBadF32, std::numeric_limits<float>::max());
}

TEST(RowConverter, AReplacedValueIsNeverLedBack) {
  EXPECT_TRUE(is_invertible(plain(kv::Format::kF16), plain(kv::Format::kF32)));
  EXPECT_FALSE(is_invertible(plain(kv::Format::kF16, kv::NonFinite::kReplace), plain(kv::Format::kF32)));
}

TEST(RowConverter, ZerosKeepTheirSignWhereTheFormatHasOne) {
  const std::vector<float> zeros(kRows * kDim, -0.0f);
  for (const auto& [format, code] : {std::pair{kv::Format::kE4m3fn, 0x80}, std::pair{kv::Format::kE5m2, 0x80},
                                     std::pair{kv::Format::kE4m3fnuz, 0}, std::pair{kv::Format::kE5m2fnuz, 0},
                                     std::pair{kv::Format::kI8, 0}, std::pair{kv::Format::kU8, 0}}) {
    const std::vector<std::uint8_t> expected(zeros.size(), static_cast<std::uint8_t>(code));
    const auto made = convert(plain(kv::Format::kF32), plain(format), zeros);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->codes, expected) << kv::name(format);
    EXPECT_EQ(made->counts, ConversionCounts{});
    EXPECT_EQ(convert(plain(kv::Format::kF32), fixed(format, {0.37f}), zeros)->codes, expected);
  }
  const auto truncated =
      convert(plain(kv::Format::kF32), fixed(kv::Format::kE4m3fn, {0.37f}, "vllm.cpu.fp8"), zeros);
  EXPECT_EQ(truncated->codes, std::vector<std::uint8_t>(zeros.size(), 0));
}

}  // namespace
}  // namespace isthmus::transform
