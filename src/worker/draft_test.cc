// SPDX-License-Identifier: Apache-2.0
// Which token is drafted.
#include "worker/draft.h"

#include <gtest/gtest.h>

#include <vector>

namespace isthmus::worker {
namespace {

using Tokens = std::vector<engine::TokenId>;

TEST(DraftToken, IsWhatCameBehindTheLastTwo) {
  EXPECT_EQ(draft_token(Tokens{1, 2, 3, 9, 2, 4}, Tokens{1, 2}), 3);
  // Across both spans, and the latest place of several.
  EXPECT_EQ(draft_token(Tokens{1, 2, 3, 1}, Tokens{2, 5, 1, 2}), 5);
}

TEST(DraftToken, IsElseWhatCameBehindTheLast) {
  EXPECT_EQ(draft_token(Tokens{1, 2, 3, 2, 4}, Tokens{7, 2}), 4);
  EXPECT_EQ(draft_token(Tokens{6}, Tokens{6}), 6);
}

TEST(DraftToken, IsNoneOfWhatIsNew) {
  EXPECT_EQ(draft_token(Tokens{1, 2, 3}, Tokens{4}), std::nullopt);
  EXPECT_EQ(draft_token(Tokens{}, Tokens{4}), std::nullopt);
  EXPECT_EQ(draft_token(Tokens{}, Tokens{}), std::nullopt);
}

}  // namespace
}  // namespace isthmus::worker
