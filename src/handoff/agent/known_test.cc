// SPDX-License-Identifier: Apache-2.0
#include "handoff/agent/known.h"

#include <gtest/gtest.h>

#include "transform/test_state.h"

namespace isthmus::handoff {
namespace {

kv::Descriptor of(std::string_view storage) {
  return transform::test_descriptor(storage, {});
}

TEST(KnownTokens, AreWholeTokenGroupsOfBothEnds) {
  const kv::Descriptor rows = of("llamacpp:f16"), channel = of("openvino:u8_channel");
  EXPECT_EQ(repeated_tokens(rows, rows, 100), 100U);
  EXPECT_EQ(repeated_tokens(rows, channel, 100), 96U);
  EXPECT_EQ(repeated_tokens(channel, rows, 100), 96U);
  EXPECT_EQ(repeated_tokens(channel, channel, 31), 0U);
}

TEST(KnownTokens, AreNoneWhereNotEveryPositionCrosses) {
  kv::Descriptor windowed = of("llamacpp:f16");
  windowed.groups[0].attention = kv::AttentionKind::kSlidingWindow;
  EXPECT_EQ(repeated_tokens(windowed, windowed, 100), 0U);
  windowed.groups[0].attention = kv::AttentionKind::kRecurrent;
  EXPECT_EQ(repeated_tokens(windowed, windowed, 100), 0U);
}

TEST(KnownTokens, CanBeUsedInWholeUnitsAndTokenGroups) {
  const kv::Descriptor rows = of("llamacpp:f16"), channel = of("openvino:u8_channel");
  EXPECT_EQ(usable_tokens(rows, rows, 100, 32), 96U);
  EXPECT_EQ(usable_tokens(rows, rows, 100, 1), 100U);
  EXPECT_EQ(usable_tokens(channel, rows, 100, 1), 96U);
  EXPECT_EQ(usable_tokens(channel, rows, 112, 16), 96U);
  EXPECT_EQ(usable_tokens(rows, channel, 100, 48), 96U);
  EXPECT_EQ(usable_tokens(rows, channel, 90, 48), 0U);
  EXPECT_EQ(usable_tokens(rows, channel, 0, 32), 0U);
}

}  // namespace
}  // namespace isthmus::handoff
