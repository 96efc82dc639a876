// SPDX-License-Identifier: Apache-2.0
// Tests of incremental text.
#include "worker/text_stream.h"

#include <gtest/gtest.h>

namespace isthmus::worker {
namespace {

TEST(TextStream, HoldsIncompleteCharacters) {
  TextStream stream({});
  EXPECT_EQ(stream.add("a\xE2\x82"), "a");
  EXPECT_EQ(stream.add("\xAC"
                       "b"),
            "\xE2\x82\xAC"
            "b");
  EXPECT_EQ(stream.add("\xF0\x9F"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(TextStream, StopStringAcrossPiecesIsNeverShown) {
  TextStream stream({"END", "\n\n"});
  EXPECT_EQ(stream.add("one E"), "one ");
  EXPECT_EQ(stream.add("N"), "");
  EXPECT_EQ(stream.add("T two"), "ENT two");
  EXPECT_EQ(stream.add(" E"), " ");
  EXPECT_EQ(stream.add("ND and more"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.add("x"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, TheFirstOfSeveralStopsWins) {
  TextStream stream({"xyz", "yz"});
  EXPECT_EQ(stream.add("a xyz"), "a ");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, HeldTextComesAtTheEnd) {
  TextStream stream({"stop"});
  EXPECT_EQ(stream.add("do not st"), "do not ");
  EXPECT_EQ(stream.finish(), "st");
}

TEST(TextStream, BytesThatAreNoUtf8AreReplaced) {
  TextStream stream({});
  EXPECT_EQ(stream.add("\x80\x80\x80\x80\x80z"),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
}

}  // namespace
}  // namespace isthmus::worker
