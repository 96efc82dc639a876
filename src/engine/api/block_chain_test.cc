// SPDX-License-Identifier: Apache-2.0
// Keys of blocks: equal for what is equal, and for nothing else.
#include "engine/api/block_chain.h"

#include <gtest/gtest.h>

#include <set>

#include "base/bytes.h"

namespace isthmus::engine {
namespace {

constexpr Digest128 kModel{.high = 1, .low = 2};

using Tokens = std::vector<TokenId>;

BlockKey key_of(const Digest128& descriptor, const std::optional<std::string>& salt, const Tokens& tokens) {
  return block_keys(BlockChain(descriptor, salt), tokens, 4, 100).back();
}

TEST(BlockChain, AKeyDependsOnEverythingBeforeAndNothingBehind) {
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto keys = block_keys(BlockChain(kModel, {}), tokens, 4, 100);
  ASSERT_EQ(keys.size(), 2u) << "the last token fills no block";
  Tokens other = tokens;
  other.back() = 99;
  EXPECT_EQ(block_keys(BlockChain(kModel, {}), other, 4, 100), keys);
  other[0] = 99;
  const auto others = block_keys(BlockChain(kModel, {}), other, 4, 100);
  EXPECT_NE(others[0], keys[0]);
  EXPECT_NE(others[1], keys[1]) << "equal tokens behind another beginning";
  EXPECT_EQ(block_keys(BlockChain(kModel, {}), tokens, 4, 1), (std::vector{keys[0]}));
}

TEST(BlockChain, NoTwoWaysOfSharingMeet) {
  const Tokens tokens{1, 2, 3, 4};
  std::set<BlockKey> keys;
  for (const Digest128& descriptor : {kModel, Digest128{.high = 1, .low = 3}, Digest128{.high = 2, .low = 1}})
    for (const std::optional<std::string>& salt :
         {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("a"),
          std::optional<std::string>("b"), std::optional<std::string>(std::string("a\0", 2))})
      EXPECT_TRUE(keys.insert(key_of(descriptor, salt, tokens)).second) << salt.value_or("none");
  EXPECT_EQ(keys.size(), 15u);
}

// As spec/prefix.md writes it down, so that another program gets the same.
TEST(BlockChain, IsAsSpecified) {
  std::vector<std::byte> first(17), block(8);
  store_le(first, std::uint64_t{2});
  store_le(std::span(first).subspan(8), std::uint64_t{1});
  first[16] = std::byte{1};
  first.push_back(std::byte{'s'});
  store_le(block, std::int32_t{7});
  store_le(std::span(block).subspan(4), std::int32_t{-1});
  const BlockKey none = hmac_sha256(bytes_of("isthmus block chain"), first);
  EXPECT_EQ(block_keys(BlockChain(kModel, "s"), Tokens{7, -1}, 2, 9),
            (std::vector{hmac_sha256(none, block)}));
}

}  // namespace
}  // namespace isthmus::engine
