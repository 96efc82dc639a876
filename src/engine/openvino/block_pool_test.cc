// SPDX-License-Identifier: Apache-2.0
// BlockPool, KvMemory and the layout of a forward: no engine needed.
#include "engine/openvino/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "base/bytes.h"
#include "engine/openvino/batch.h"
#include "engine/openvino/kv_memory.h"

namespace isthmus::engine::openvino {
namespace {

using Blocks = std::vector<std::uint32_t>;

TEST(BlockPool, GivesEachBlockOnce) {
  BlockPool pool(5);
  const Blocks first = *pool.acquire(2), second = *pool.acquire(3);
  std::set<std::uint32_t> all(first.begin(), first.end());
  all.insert(second.begin(), second.end());
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(*all.rbegin(), 4u);
  EXPECT_EQ(pool.free(), 0u);
}

TEST(BlockPool, RefusesMoreThanItHasAndTakesNothing) {
  BlockPool pool(3);
  (void)*pool.acquire(1);
  const auto refused = pool.acquire(3);
  ASSERT_EQ(refused.code(), Code::kExhausted);
  EXPECT_EQ(refused.error().detail, "3 KV blocks asked for, 2 of 3 are free");
  EXPECT_EQ(pool.free(), 2u);
}

TEST(BlockPoolDeathTest, StopsOnABlockReleasedTwice) {
  BlockPool pool(3);
  const Blocks blocks = *pool.acquire(1);
  pool.release(blocks);
  EXPECT_DEATH(pool.release(blocks), "is_out_");
  EXPECT_DEATH(pool.release({7}), "total");
}

RC_GTEST_PROP(BlockPool, NeverHasABlockTwice, (std::vector<std::uint8_t> moves)) {
  BlockPool pool(16);
  std::vector<Blocks> held;
  std::set<std::uint32_t> out;
  for (const std::uint8_t move : moves) {
    if (move % 2 == 0 && !held.empty()) {
      const std::size_t index = move / 2 % held.size();
      for (std::uint32_t block : held[index]) out.erase(block);
      pool.release(held[index]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    } else if (auto blocks = pool.acquire(move % 5); blocks.ok()) {
      for (std::uint32_t block : *blocks) RC_ASSERT(out.insert(block).second);
      held.push_back(*blocks);
    }
    RC_ASSERT(pool.used() == out.size());
  }
}

TEST(KvMemory, RegionsAreAlignedApartAndZero) {
  const auto memory = *KvMemory::map({.layers = 3, .blocks = 5, .key_bytes = 6912, .value_bytes = 6912});
  std::vector<std::byte*> bases;
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    bases.push_back(memory->key(layer));
    bases.push_back(memory->value(layer));
  }
  for (std::size_t i = 0; i < bases.size(); ++i) {
    EXPECT_TRUE(is_aligned(bases[i], 4096));
    if (i > 0) {
      EXPECT_GE(bases[i] - bases[i - 1], 5 * 6912);
    }
    EXPECT_EQ(bases[i][5 * 6912 - 1], std::byte{0});
  }
}

TEST(KvMemory, RefusesWhatTheSystemCannotGive) {
  const auto refused =
      KvMemory::map({.layers = 1000, .blocks = 1u << 31, .key_bytes = 1 << 20, .value_bytes = 1 << 20});
  ASSERT_EQ(refused.code(), Code::kExhausted);
}

TEST(Batch, LaysItemsOutInOrder) {
  const std::vector<TokenId> prompt{5, 6, 7}, next{9};
  const Blocks first{4}, second{8, 2, 3};
  const std::vector<BatchItem> items{{.tokens = prompt, .past = 0, .blocks = first, .logits = 2},
                                     {.tokens = next, .past = 32, .blocks = second, .logits = 1}};
  const ForwardInput input = make_forward(items, 0);
  EXPECT_EQ(input.input_ids, (std::vector<std::int64_t>{5, 6, 7, 9}));
  EXPECT_EQ(input.position_ids, (std::vector<std::int64_t>{0, 1, 2, 32}));
  EXPECT_EQ(input.past_lens, (std::vector<std::int32_t>{0, 32}));
  EXPECT_EQ(input.subsequence_begins, (std::vector<std::int32_t>{0, 3, 4}));
  EXPECT_EQ(input.block_indices, (std::vector<std::int32_t>{4, 8, 2}));
  EXPECT_EQ(input.block_indices_begins, (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(input.max_context_len, 33);
  EXPECT_EQ(input.rows, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(Batch, PadsALoneTokenOnABlockOfItsOwn) {
  const std::vector<TokenId> next{9};
  const Blocks blocks{8, 2};
  const std::vector<BatchItem> items{{.tokens = next, .past = 40, .blocks = blocks, .logits = 0}};
  const ForwardInput input = make_forward(items, 17);
  EXPECT_EQ(input.input_ids.size(), 2u);
  EXPECT_EQ(input.block_indices, (std::vector<std::int32_t>{8, 2, 17}));
  EXPECT_EQ(input.past_lens, (std::vector<std::int32_t>{40, 0}));
  EXPECT_EQ(input.rows.size(), 2u) << "of one row, the LM head's results differ in their last bits";
}

}  // namespace
}  // namespace isthmus::engine::openvino
