// SPDX-License-Identifier: Apache-2.0
// The table of number formats.
#include "kv/format.h"

#include <array>
#include <cstddef>
#include <string>

#include <fmt/format.h>

namespace isthmus::kv {
namespace {

struct Row {
  std::string_view name;
  std::uint32_t bits;
  Precision precision;
};

// Sources: IEEE 754 (f32, f16); OCP OFP8 1.0 (e4m3fn, e5m2); ONNX float8 (the fnuz variants: bias one larger,
// no −0); OCP MX 1.0 (e8m0: powers of two, neither sign nor zero).
constexpr std::array<Row, kFormatCount> kRows{{
    {"f32", 32, {24, -149, 127, false, true, true}},
    {"f16", 16, {11, -24, 15, false, true, true}},
    {"bf16", 16, {8, -133, 127, false, true, true}},
    {"e4m3fn", 8, {4, -9, 8, false, true, true}},
    {"e4m3fnuz", 8, {4, -10, 7, false, true, false}},
    {"e5m2", 8, {3, -16, 15, false, true, true}},
    {"e5m2fnuz", 8, {3, -17, 15, false, true, false}},
    {"i8", 8, {7, 0, 7, true, true, false}},
    {"u8", 8, {8, 0, 7, true, false, false}},
    {"i4", 4, {3, 0, 3, true, true, false}},
    {"u4", 4, {4, 0, 3, true, false, false}},
    {"e8m0", 8, {1, -127, 127, false, false, false}},
}};

// A descriptor that hasn't been validated may hold any number, and must be showable.
constexpr Row kUnknown{"unknown", 8, {}};

const Row& row(Format format) {
  const auto index = static_cast<std::size_t>(format);
  return index < kRows.size() ? kRows.at(index) : kUnknown;
}

}  // namespace

std::uint32_t bits(Format format) {
  return row(format).bits;
}
Precision precision(Format format) {
  return row(format).precision;
}
std::string_view name(Format format) {
  return row(format).name;
}

Result<Format> parse_format(std::string_view text) {
  std::string known;
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows.at(i).name == text) return static_cast<Format>(i);
    known += fmt::format("{}{}", i == 0 ? "" : " ", kRows.at(i).name);
  }
  return Error{Code::kUnsupported, fmt::format("number format \"{}\" isn't known; known: {}", text, known)};
}

bool embeds(Format from, Format to) {
  if (from == to) return true;
  if (to == Format::kE8m0) return false;  // Holds no zero, which each other format has.
  const Precision a = precision(from);
  const Precision b = precision(to);
  if (b.is_integer && !a.is_integer) return false;
  if (a.has_negative && !b.has_negative) return false;
  if (a.has_negative_zero && !b.has_negative_zero) return false;
  // −2^n of a signed integer has exponent n, although its positive values stop below: i4 doesn't hold u4, nor
  // i8 u8.
  if (a.is_integer && b.is_integer && b.has_negative && !a.has_negative)
    return a.exponent_max < b.exponent_max;
  return a.significand_bits <= b.significand_bits && a.ulp_exponent >= b.ulp_exponent &&
         a.exponent_max <= b.exponent_max;
}

}  // namespace isthmus::kv
