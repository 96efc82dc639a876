// SPDX-License-Identifier: Apache-2.0
#include "watch/text.h"

#include <gtest/gtest.h>

namespace isthmus::watch {
namespace {

TEST(WatchText, NumbersHaveAFewDigitsAndAUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(812), "812 B");
  EXPECT_EQ(bytes_text(1023), "1.0 KiB");
  EXPECT_EQ(bytes_text(37.5 * 1024 * 1024), "37.5 MiB");
  EXPECT_EQ(bytes_text(128.0 * 1024 * 1024), "128 MiB");
  EXPECT_EQ(bytes_text(5e15), "4547 TiB");
  EXPECT_EQ(seconds_text(0.0004), "0 ms");
  EXPECT_EQ(seconds_text(0.18), "180 ms");
  EXPECT_EQ(seconds_text(9.96), "10.0 s");
  EXPECT_EQ(seconds_text(180), "3 min");
  EXPECT_EQ(seconds_text(7200), "2 h");
  EXPECT_EQ(count_text(7), "7");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(1234567), "1,234,567");
}

TEST(WatchText, ABarShowsALittleAsMoreThanNothing) {
  EXPECT_EQ(bar(0, 4), "░░░░");
  EXPECT_EQ(bar(0.001, 4), "█░░░");
  EXPECT_EQ(bar(0.5, 4), "██░░");
  EXPECT_EQ(bar(7, 4), "████");
  EXPECT_EQ(bar(0.0 / 0.0, 4), "░░░░");
}

TEST(WatchText, TablesCountCellsNotBytes) {
  Table table({"NAME", ">N"});
  table.add({"█░", "1"});
  table.add({"abc", "1,000"});
  table.add_note("d", "DOWN");
  EXPECT_EQ(table.text(), "NAME      N\n█░        1\nabc   1,000\nd     DOWN\n");
}

TEST(WatchText, ClippingKeepsWholeCodePoints) {
  EXPECT_EQ(clipped("░░░░", 4), "░░░░");
  EXPECT_EQ(clipped("░░░░░", 4), "░░░…");
}

}  // namespace
}  // namespace isthmus::watch
