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

TEST(BlockChain, StatesHandedOverMeetOnlyThoseOfTheirOrigin) {
  const Tokens tokens{1, 2, 3, 4};
  const StateOrigin origin{{5, 6}, kModel, "wire"};
  std::vector<StateOrigin> others(5, origin);
  others[0].producer = {6, 5};
  others[1].producer = {5, 7};
  others[2].descriptor = {.high = 2, .low = 1};
  others[3].wire = "";
  others[4].wire = std::string("wire\0", 5);
  others.push_back(origin);
  std::set<BlockKey> keys;
  for (const std::optional<std::string>& salt :
       {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("re")}) {
    EXPECT_TRUE(keys.insert(key_of(kModel, salt, tokens)).second);
    for (const StateOrigin& one : others)
      EXPECT_TRUE(keys.insert(block_keys(BlockChain(kModel, one, salt), tokens, 4, 9).at(0)).second);
  }
  EXPECT_TRUE(keys.insert(block_keys(BlockChain({}, origin, {}), tokens, 4, 9).at(0)).second);
}

TEST(BlockChain, OfStatesHandedOverIsAsSpecified) {
  std::vector<std::byte> first(48), block(4);
  const std::uint64_t numbers[] = {2, 1, 8, 7, 6, 5};  // Low halves first.
  for (std::size_t i = 0; i < 6; ++i) store_le(std::span(first).subspan(8 * i), numbers[i]);
  for (const int byte : {2, 0, 0, 0, int{'w'}, int{'x'}, 1, int{'s'}})
    first.push_back(static_cast<std::byte>(byte));
  store_le(block, std::int32_t{7});
  const BlockKey none = hmac_sha256(bytes_of("isthmus arrived block chain"), first);
  const StateOrigin origin{
      .producer = {.high = 5, .low = 6}, .descriptor = {.high = 7, .low = 8}, .wire = "wx"};
  EXPECT_EQ(block_keys(BlockChain(kModel, origin, "s"), Tokens{7}, 1, 9),
            (std::vector{hmac_sha256(none, block)}));
}

}  // namespace
}  // namespace isthmus::engine
