// SPDX-License-Identifier: Apache-2.0
// Formats against a decoder written from the formats' definitions.
#include "kv/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace isthmus::kv {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  formats.reserve(kFormatCount);
  for (std::uint8_t i = 0; i < kFormatCount; ++i) formats.push_back(static_cast<Format>(i));
  return formats;
}

double ieee(std::uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const std::uint32_t mantissa = code & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>((code >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const double sign = (code >> (mantissa_bits + exponent_bits)) != 0 ? -1.0 : 1.0;
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

// NaN for infinities too: neither is a finite value.
double decode(Format format, std::uint32_t code) {
  switch (format) {
    case Format::kF16:
      return (code & 0x7c00U) == 0x7c00U ? kNan : ieee(code, 5, 10, 15);
    case Format::kBf16:
      return (code & 0x7f80U) == 0x7f80U ? kNan : ieee(code, 8, 7, 127);
    case Format::kE4m3fn:
      return (code & 0x7fU) == 0x7fU ? kNan : ieee(code, 4, 3, 7);
    case Format::kE4m3fnuz:
      return code == 0x80U ? kNan : ieee(code, 4, 3, 8);
    case Format::kE5m2:
      return (code & 0x7cU) == 0x7cU ? kNan : ieee(code, 5, 2, 15);
    case Format::kE5m2fnuz:
      return code == 0x80U ? kNan : ieee(code, 5, 2, 16);
    case Format::kI8:
      return static_cast<std::int8_t>(code);
    case Format::kU8:
    case Format::kU4:
      return code;
    case Format::kI4:
      return code < 8 ? code : static_cast<double>(code) - 16;
    case Format::kE8m0:
      return code == 0xffU ? kNan : std::ldexp(1.0, static_cast<int>(code) - 127);
    case Format::kF32:
      return kNan;
  }
  return kNan;
}

using Value = std::pair<double, bool>;  // With the sign, so that −0 differs from 0.

std::set<Value> values(Format format) {
  std::set<Value> all;
  for (std::uint32_t code = 0; code < (1U << bits(format)); ++code) {
    const double value = decode(format, code);
    if (!std::isnan(value)) all.emplace(value, std::signbit(value));
  }
  return all;
}

TEST(Format, EmbedsExactlyWhenEveryValueOfOneIsAValueOfTheOther) {
  for (const Format from : all_formats()) {
    if (from == Format::kF32) continue;
    const std::set<Value> wanted = values(from);
    for (const Format to : all_formats()) {
      bool is_subset = true;
      if (to == Format::kF32) {
        for (const auto& [value, sign] : wanted)
          is_subset = is_subset && double{static_cast<float>(value)} == value;
      } else {
        const std::set<Value> held = values(to);
        for (const Value& value : wanted) is_subset = is_subset && held.contains(value);
      }
      EXPECT_EQ(embeds(from, to), is_subset) << name(from) << " in " << name(to);
    }
  }
}

TEST(Format, NoOtherFormatHoldsF32) {
  for (const Format to : all_formats()) EXPECT_EQ(embeds(Format::kF32, to), to == Format::kF32) << name(to);
}

TEST(Format, NamesParseBack) {
  for (const Format format : all_formats()) EXPECT_EQ(parse_format(name(format)).value(), format);
}

TEST(Format, AnUnknownNameIsUnsupportedAndQuoted) {
  for (const char* text : {"q8_0", "fp8", "F16", "", "f16 "}) {
    const auto format = parse_format(text);
    ASSERT_FALSE(format.ok()) << text;
    EXPECT_EQ(format.code(), Code::kUnsupported);
    EXPECT_NE(format.error().detail.find('"' + std::string(text) + '"'), std::string::npos);
  }
}

}  // namespace
}  // namespace isthmus::kv
