// SPDX-License-Identifier: Apache-2.0
// Runs against looking up each token by itself.
#include "transform/token_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

std::uint64_t place_of(const TokenTable& table, std::uint64_t position) {
  const std::uint64_t at = position - table.first_position;
  if (table.block_tokens == 0) return table.first_row + at;
  return std::uint64_t{table.blocks[at / table.block_tokens]} * table.block_tokens + at % table.block_tokens;
}

struct SomeTable {
  std::vector<std::uint32_t> blocks;
  TokenTable table;
};

SomeTable some_table(kv::TokenRange tokens) {
  SomeTable made;
  made.table.block_tokens = *rc::gen::element(0u, 1u, 2u, 16u, 32u, 128u);
  made.table.first_position = *rc::gen::inRange<std::uint64_t>(0, tokens.begin + 1);
  made.table.first_row = *rc::gen::inRange<std::uint64_t>(0, 9);
  made.table.valid = tokens;
  if (made.table.block_tokens == 0) return made;
  const std::uint64_t entries =
      (tokens.end - made.table.first_position + made.table.block_tokens - 1) / made.table.block_tokens;
  // Mostly neighbours, so that runs of several blocks occur.
  std::uint32_t next = 5;
  for (std::uint64_t entry = 0; entry < entries; ++entry) {
    next += *rc::gen::weightedElement<std::uint32_t>({{5, 1}, {1, 2}, {1, 7}});
    made.blocks.push_back(next);
  }
  made.table.blocks = made.blocks;
  return made;
}

RC_GTEST_PROP(TokenRuns, AreTheTokensOneByOneAndAsFewAsThereCanBe, ()) {
  const auto begin = *rc::gen::inRange<std::uint64_t>(0, 200);
  const kv::TokenRange tokens{begin, begin + *rc::gen::inRange<std::uint64_t>(1, 400)};
  SomeTable source = some_table(tokens), target = some_table(tokens);
  source.table.blocks = source.blocks;
  target.table.blocks = target.blocks;
  std::vector<TokenRun> runs, expected;
  RC_ASSERT(find_runs(source.table, target.table, tokens, runs).ok());
  for (std::uint64_t position = tokens.begin; position < tokens.end; ++position) {
    const TokenRun one{place_of(source.table, position), place_of(target.table, position), 1};
    if (!expected.empty() && one.source == expected.back().source + expected.back().tokens &&
        one.target == expected.back().target + expected.back().tokens) {
      ++expected.back().tokens;
    } else {
      expected.push_back(one);
    }
  }
  RC_ASSERT(runs == expected);
}

TEST(TokenRuns, ATableThatIsTooShortIsRefused) {
  const std::vector<std::uint32_t> blocks{4, 2};
  const TokenTable table{blocks, 16, 0, 32, {32, 100}};
  EXPECT_TRUE(check_table(table, {32, 64}).ok());
  EXPECT_THAT(check_table(table, {32, 65}).error().detail,
              HasSubstr("position 64 needs block table entry 2, the table has 2"));
  EXPECT_THAT(check_table(table, {31, 40}).error().detail, HasSubstr("from position 32"));
  EXPECT_EQ(check_table(table, {40, 40}).code(), Code::kInvalidArgument);
  std::vector<TokenRun> runs;
  EXPECT_EQ(find_runs(table, table, {32, 65}, runs).code(), Code::kInvalidArgument);
}

TEST(TokenRuns, ABlockTwiceOrOutsideThePoolIsNamed) {
  const std::vector<std::uint32_t> blocks{4, 70, 9, 70};
  const TokenTable table{blocks, 16, 0, 0, {0, 64}};
  EXPECT_THAT(check_distinct(table, 71).error().detail, HasSubstr("names block 70 twice"));
  EXPECT_THAT(check_distinct(table, 70).error().detail, HasSubstr("block 70 isn't among the pool's 70"));
  EXPECT_TRUE(check_distinct({std::span(blocks).first(3), 16, 0, 0, {0, 48}}, 71).ok());
}

}  // namespace
}  // namespace isthmus::transform
