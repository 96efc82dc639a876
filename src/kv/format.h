// SPDX-License-Identifier: Apache-2.0
// Number formats of stored KV elements. Anything not listed is refused by name.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace isthmus::kv {

enum class Format : std::uint8_t {
  kF32,
  kF16,
  kBf16,
  kE4m3fn,
  kE4m3fnuz,
  kE5m2,
  kE5m2fnuz,
  kI8,
  kU8,
  kI4,
  kU4,
  kE8m0,
};
inline constexpr std::uint8_t kFormatCount = 12;

// What values a format holds: those of magnitude m · 2^e with m < 2^significand_bits, e >= ulp_exponent, and
// magnitude < 2^(exponent_max + 1). Integers have ulp_exponent 0.
struct Precision {
  int significand_bits = 0;
  int ulp_exponent = 0;  // Of the smallest denormal.
  int exponent_max = 0;  // Of the largest finite value.
  bool is_integer = false;
  bool has_negative = true;
  bool has_negative_zero = true;
};

// Bits of one element: 32, 16, 8 or 4.
std::uint32_t bits(Format format);
Precision precision(Format format);
// f32, f16 or bf16: what numbers are computed from and kept in without scales.
inline bool is_float(Format format) {
  return format == Format::kF32 || format == Format::kF16 || format == Format::kBf16;
}
// "f32", "f16", … as in the layout notation.
std::string_view name(Format format);
// unsupported, naming the text, for anything else.
Result<Format> parse_format(std::string_view text);
// True if every finite value of `from`, the sign of zero included, is exactly a value of `to` (f16 in f32,
// …).
bool embeds(Format from, Format to);

}  // namespace isthmus::kv
