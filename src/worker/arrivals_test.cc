// SPDX-License-Identifier: Apache-2.0
#include "worker/arrivals.h"

#include <gtest/gtest.h>

namespace isthmus::worker {
namespace {

engine::ArrivingState state(std::vector<engine::TokenId> prompt, std::uint64_t producer = 1) {
  const std::uint64_t tokens = prompt.size();
  return {.prompt = std::move(prompt),
          .origin = {.producer = {0, producer}, .descriptor = {}, .wire = "rows"},
          .repeated = tokens,
          .salt = {}};
}

TEST(Arrivals, WhatHasComeBeforeMayBeKnownToItsOrigin) {
  Arrivals arrivals({}, 2);
  EXPECT_FALSE(arrivals.may_know(state({1, 2, 3})));
  arrivals.add(state({1, 2, 3}), 0);
  EXPECT_TRUE(arrivals.may_know(state({1, 2, 4, 5})));
  EXPECT_FALSE(arrivals.may_know(state({1, 3, 3})));
  EXPECT_FALSE(arrivals.may_know(state({1, 2, 3}, 2)));
  engine::ArrivingState salted = state({1, 2, 3}), part = state({1, 2, 3});
  salted.salt = "";
  part.repeated = 1;
  EXPECT_FALSE(arrivals.may_know(salted));
  EXPECT_FALSE(arrivals.may_know(part));
  arrivals.add(state({1}), 0);
  EXPECT_FALSE(arrivals.may_know(state({1})));
  EXPECT_EQ(arrivals.tokens_queried(), 3u + 4 + 3 + 3 + 3 + 3 + 1);
  EXPECT_EQ(arrivals.tokens_known(), 0u);
  arrivals.add(state({1, 2, 4, 5}), 2);
  EXPECT_EQ(arrivals.tokens_known(), 2u);
}

TEST(Arrivals, ForgetsTheOldest) {
  Arrivals arrivals({}, 1);
  const auto max = static_cast<engine::TokenId>(Arrivals::kRememberedMax);
  for (engine::TokenId token = 0; token < max; ++token) {
    arrivals.add(state({token}), 0);
    arrivals.add(state({0}), 0);
  }
  EXPECT_TRUE(arrivals.may_know(state({0})));
  arrivals.add(state({max}), 0);
  EXPECT_FALSE(arrivals.may_know(state({0})));
  EXPECT_TRUE(arrivals.may_know(state({1})));
  EXPECT_TRUE(arrivals.may_know(state({max})));
}

}  // namespace
}  // namespace isthmus::worker
