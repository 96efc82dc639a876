// SPDX-License-Identifier: Apache-2.0
// Ways between value transforms: what is shared stays, what differs is undone and applied in order.
#include "kv/value_transforms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isthmus::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

constexpr ValueStep kH64{ValueStepKind::kHadamard, 64};
constexpr ValueStep kH128{ValueStepKind::kHadamard, 128};
constexpr ValueStep kToHalves{ValueStepKind::kInterleavedToHalves, 0};
constexpr ValueStep kToInterleaved{ValueStepKind::kHalvesToInterleaved, 0};

std::vector<ValueStep> steps(const Words& from, const Words& to) {
  const auto found = value_steps(from, to);
  EXPECT_TRUE(found.ok()) << found.error().text();
  return found.ok() ? *found : std::vector<ValueStep>{};
}

TEST(ValueSteps, WhatBothShareIsNotTouched) {
  EXPECT_THAT(steps({}, {}), IsEmpty());
  EXPECT_THAT(steps({"rope:halves", "hadamard:64"}, {"rope:halves", "hadamard:64"}), IsEmpty());
  EXPECT_THAT(steps({"rope:halves"}, {"rope:halves", "hadamard:64"}), ElementsAre(kH64));
  EXPECT_THAT(steps({"rope:halves", "hadamard:128"}, {"rope:halves"}), ElementsAre(kH128));
  EXPECT_THAT(steps({"hadamard:64"}, {}), ElementsAre(kH64));
}

TEST(ValueSteps, TheSourcesAreUndoneBackwardsBeforeTheTargetsAreApplied) {
  EXPECT_THAT(steps({"hadamard:64"}, {"hadamard:128"}), ElementsAre(kH64, kH128));
  EXPECT_THAT(steps({"hadamard:64", "hadamard:128"}, {}), ElementsAre(kH128, kH64));
  EXPECT_THAT(steps({}, {"hadamard:64", "hadamard:128"}), ElementsAre(kH64, kH128));
  EXPECT_THAT(steps({"rope:interleaved", "hadamard:64"}, {"rope:halves", "hadamard:128"}),
              ElementsAre(kH64, kToHalves, kH128));
  EXPECT_THAT(steps({"rope:halves"}, {"rope:interleaved"}), ElementsAre(kToInterleaved));
}

TEST(ValueSteps, OnlyOrdersOfElementsAreMoves) {
  EXPECT_TRUE(only_moves({}));
  EXPECT_TRUE(only_moves({kToHalves, kToInterleaved}));
  EXPECT_FALSE(only_moves({kToHalves, kH64}));
}

TEST(ValueSteps, WhatHasNoWayIsRefusedByName) {
  const auto refusal = [](const Words& from, const Words& to) {
    const auto found = value_steps(from, to);
    EXPECT_EQ(found.code(), Code::kUnsupported);
    return found.ok() ? "" : found.error().detail;
  };
  EXPECT_THAT(refusal({"rope:interleaved"}, {}), HasSubstr("\"rope:interleaved\" rotates values"));
  EXPECT_THAT(refusal({}, {"rope:halves"}), HasSubstr("\"rope:halves\" rotates values"));
  // Rotated before and after a hadamard aren't the same values in another order.
  EXPECT_THAT(refusal({"hadamard:64", "rope:halves"}, {"rope:halves"}), HasSubstr("\"rope:halves\" rotates"));
  EXPECT_THAT(refusal({"smooth:3"}, {}), HasSubstr("\"smooth:3\" isn't known"));
  EXPECT_THAT(refusal({}, {"hadamard:6x"}), HasSubstr("\"hadamard:6x\" has no size"));
}

}  // namespace
}  // namespace isthmus::kv
