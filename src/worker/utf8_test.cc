// SPDX-License-Identifier: Apache-2.0
// Tests of characters and of what is none.
#include "worker/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace isthmus::worker {
namespace {

std::string encoded(unsigned point) {
  const auto byte = [](unsigned value) { return static_cast<char>(value); };
  if (point < 0x80) return {byte(point)};
  if (point < 0x800) return {byte(0xC0 | point >> 6), byte(0x80 | (point & 0x3F))};
  if (point < 0x10000)
    return {byte(0xE0 | point >> 12), byte(0x80 | (point >> 6 & 0x3F)), byte(0x80 | (point & 0x3F))};
  return {byte(0xF0 | point >> 18), byte(0x80 | (point >> 12 & 0x3F)), byte(0x80 | (point >> 6 & 0x3F)),
          byte(0x80 | (point & 0x3F))};
}

TEST(Utf8, EveryCodePointIsOneCharacterExceptSurrogates) {
  for (unsigned point = 0; point < 0x110000; ++point) {
    const std::string text = encoded(point);
    const bool is_surrogate = point >= 0xD800 && point < 0xE000;
    ASSERT_EQ(character(text + "x"), is_surrogate ? 0u : text.size()) << point;
    if (text.size() > 1) ASSERT_EQ(character(text.substr(0, text.size() - 1)), 0u) << point;
  }
  EXPECT_EQ(character(encoded(0x110000)), 0u);
}

TEST(Utf8, WhatIsNoCharacterShowsAsTheReplacementCharacter) {
  EXPECT_EQ(shown("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(shown("a\xC3"), "a\xEF\xBF\xBD");
  EXPECT_EQ(shown("\x80z"), "\xEF\xBF\xBDz");
  EXPECT_EQ(shown("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // An overlong '/'.
  EXPECT_EQ(shown("\xFF"), "\xEF\xBF\xBD");
  EXPECT_EQ(characters("gr\xC3\xBC\xC3\x9F"), 4u);
}

}  // namespace
}  // namespace isthmus::worker
