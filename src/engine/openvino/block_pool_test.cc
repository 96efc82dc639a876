// SPDX-License-Identifier: Apache-2.0
// BlockPool, KvMemory and the layout of a forward: no engine needed.
#include "engine/openvino/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/bytes.h"
#include "engine/openvino/batch.h"
#include "engine/openvino/kv_memory.h"

namespace isthmus::engine::openvino {
namespace {

using Blocks = std::vector<std::uint32_t>;

// Keys of a prompt, one token a block.
std::vector<BlockKey> keys_of(std::vector<TokenId> tokens, const std::string& salt = "s") {
  return block_keys(BlockChain(Digest128{.high = 1, .low = 2}, salt), tokens, 1, tokens.size());
}

// Takes blocks for `keys` and shares those that weren't known.
Blocks compute(BlockPool& pool, const std::vector<BlockKey>& keys) {
  auto acquired = *pool.acquire(keys.size(), keys);
  for (std::size_t i = acquired.known; i < keys.size(); ++i)
    acquired.blocks[i] = pool.share(acquired.blocks[i], keys[i]);
  return acquired.blocks;
}

TEST(BlockPool, GivesEachBlockOnce) {
  BlockPool pool(5);
  const Blocks first = pool.acquire(2)->blocks, second = pool.acquire(3)->blocks;
  std::set<std::uint32_t> all(first.begin(), first.end());
  all.insert(second.begin(), second.end());
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(*all.rbegin(), 4u);
  EXPECT_EQ(pool.free(), 0u);
}

TEST(BlockPool, RefusesMoreThanItHasAndTakesNothing) {
  BlockPool pool(4);
  pool.release(compute(pool, keys_of({1, 2})));
  (void)*pool.acquire(1);
  EXPECT_EQ(pool.kept(), 2u);
  const auto refused = pool.acquire(5, keys_of({1}));
  ASSERT_EQ(refused.code(), Code::kExhausted);
  EXPECT_EQ(refused.error().detail, "4 KV blocks asked for, 2 of 4 are free");
  EXPECT_EQ(pool.held(), 1u);
  EXPECT_EQ(pool.kept(), 2u);
  EXPECT_EQ(pool.acquire(3, keys_of({1, 2}))->known, 2u) << "only what isn't known is needed anew";
}

TEST(BlockPool, ABlockThatIsSharedIsWrittenByNobody) {
  BlockPool pool(4);
  const auto keys = keys_of({1});
  const Blocks first = compute(pool, keys);
  EXPECT_FALSE(pool.is_writable(first[0]));
  const auto second = *pool.acquire(2, keys);
  EXPECT_EQ(second.known, 1u);
  EXPECT_EQ(second.blocks[0], first[0]);
  EXPECT_TRUE(pool.is_writable(second.blocks[1]));
  pool.release(first);
  EXPECT_FALSE(pool.is_writable(second.blocks[0])) << "its state goes on standing for the key";
  EXPECT_EQ(pool.holders(second.blocks[0]), 1u);
}

TEST(BlockPool, TwoThatComputeTheSameEndUpWithOneBlock) {
  BlockPool pool(4);
  const auto keys = keys_of({1});
  Blocks first = pool.acquire(1)->blocks, second = pool.acquire(1)->blocks;
  first[0] = pool.share(first[0], keys[0]);
  second[0] = pool.share(second[0], keys[0]);
  EXPECT_EQ(first, second);
  EXPECT_EQ(pool.held(), 1u);
  EXPECT_EQ(pool.holders(first[0]), 2u);
}

TEST(BlockPool, WhatIsUnusedForLongestGoesFirstAndTheEndOfAChainBeforeItsBeginning) {
  BlockPool pool(5);
  const auto long_ago = keys_of({1, 2}), lately = keys_of({7, 8});
  pool.release(compute(pool, long_ago));
  pool.release(compute(pool, lately));
  const auto known = [&](const std::vector<BlockKey>& keys) {
    const auto found = *pool.acquire(keys.size(), keys);
    pool.release(found.blocks);
    return found.known;
  };
  Blocks taken = pool.acquire(2)->blocks;  // The free one, and a kept one.
  EXPECT_EQ(pool.kept(), 3u);
  EXPECT_EQ(pool.acquire(1, std::span(long_ago).first(1))->known, 1u);
  EXPECT_EQ(pool.kept(), 2u);
  pool.release(taken);
  EXPECT_EQ(known(lately), 2u);
  EXPECT_EQ(known(long_ago), 1u);
}

TEST(BlockPool, SaltsDoNotShare) {
  BlockPool pool(4);
  pool.release(compute(pool, keys_of({1, 2}, "a")));
  EXPECT_EQ(pool.acquire(2, keys_of({1, 2}, "b"))->known, 0u);
}

TEST(BlockPoolDeathTest, StopsOnABlockReleasedTwiceOrSharedByAnother) {
  BlockPool pool(3);
  const Blocks blocks = pool.acquire(1)->blocks;
  pool.release(blocks);
  EXPECT_DEATH(pool.release(blocks), "holders > 0");
  EXPECT_DEATH(pool.release(Blocks{7}), "total");
  EXPECT_DEATH(pool.share(blocks[0], keys_of({1})[0]), "is_writable");
  const Blocks shared = compute(pool, keys_of({1}));
  EXPECT_DEATH(pool.share(shared[0], keys_of({2})[0]), "is_writable");
}

// Sequences over a pool, beside an oracle that knows what was written where.
class SequencesOverAPool {
 public:
  void open(std::vector<TokenId> prompt, std::uint64_t more) {
    Sequence made{.keys = keys_of(std::move(prompt)), .blocks = {}, .shared = 0};
    const std::uint64_t expected = known(made.keys), count = made.keys.size() + more;
    for (std::size_t i = 1; i < made.keys.size(); ++i) before_[made.keys[i]] = made.keys[i - 1];
    std::vector<std::uint32_t> order = next_to_go();
    auto acquired = pool_.acquire(count, made.keys);
    if (!acquired.ok()) {
      RC_ASSERT(kTotal - held_without(made.keys, expected) < count - expected);
      return;
    }
    RC_ASSERT(acquired->known == expected);
    made.blocks = acquired->blocks;
    made.shared = expected;
    for (std::uint64_t i = 0; i < expected; ++i) RC_ASSERT(content_[made.blocks[i]] == made.keys[i]);
    for (std::uint64_t i = expected; i < count; ++i) take(made, made.blocks[i], order);
    sequences_.push_back(std::move(made));
  }

  // The next block of a sequence's prompt is computed: written, and shared.
  void advance(std::size_t index) {
    Sequence& sequence = sequences_[index % sequences_.size()];
    if (sequence.shared == sequence.keys.size()) return;
    std::uint32_t& block = sequence.blocks[sequence.shared];
    const BlockKey& key = sequence.keys[sequence.shared];
    RC_ASSERT(holders(block) == 1);
    const bool is_known = by_key_.contains(key);
    const std::uint32_t standing = pool_.share(block, key);
    RC_ASSERT(standing == (is_known ? by_key_[key] : block));
    if (!is_known) content_[block] = by_key_emplace(key, block);
    block = standing;
    ++sequence.shared;
  }

  void close(std::size_t index) {
    const auto at = sequences_.begin() + static_cast<std::ptrdiff_t>(index % sequences_.size());
    pool_.release(at->blocks);
    for (auto block = at->blocks.rbegin(); block != at->blocks.rend(); ++block) left_[*block] = ++time_;
    sequences_.erase(at);
  }

  bool is_empty() const { return sequences_.empty(); }

  void check() const {
    std::set<std::uint32_t> held;
    for (const Sequence& sequence : sequences_) held.insert(sequence.blocks.begin(), sequence.blocks.end());
    RC_ASSERT(pool_.held() == held.size());
    RC_ASSERT(pool_.free() + pool_.held() + pool_.kept() == kTotal);
    RC_ASSERT(pool_.kept() == next_to_go().size());
    for (std::uint32_t block = 0; block < kTotal; ++block) {
      RC_ASSERT(pool_.holders(block) == holders(block));
      RC_ASSERT(pool_.is_writable(block) == (holders(block) == 1 && !stands_for_a_key(block)));
    }
    for (const Sequence& sequence : sequences_)
      for (std::uint64_t i = 0; i < sequence.shared; ++i)
        RC_ASSERT(by_key_.at(sequence.keys[i]) == sequence.blocks[i]);
    for (const auto& [key, block] : by_key_) {  // None is out of reach.
      if (before_.contains(key)) RC_ASSERT(by_key_.contains(before_.at(key)));
    }
  }

 private:
  static constexpr std::uint32_t kTotal = 12;
  struct Sequence {
    std::vector<BlockKey> keys;
    Blocks blocks;
    std::uint64_t shared = 0;
  };

  std::uint64_t known(const std::vector<BlockKey>& keys) const {
    std::uint64_t count = 0;
    while (count < keys.size() && by_key_.contains(keys[count])) ++count;
    return count;
  }
  std::uint32_t holders(std::uint32_t block) const {
    std::uint32_t count = 0;
    for (const Sequence& sequence : sequences_)
      count += static_cast<std::uint32_t>(std::ranges::count(sequence.blocks, block));
    return count;
  }
  bool stands_for_a_key(std::uint32_t block) const {
    return std::ranges::any_of(by_key_, [&](const auto& known) { return known.second == block; });
  }
  // Kept blocks, the longest unused first.
  std::vector<std::uint32_t> next_to_go() const {
    std::vector<std::uint32_t> kept;
    for (const auto& [key, block] : by_key_)
      if (holders(block) == 0) kept.push_back(block);
    std::ranges::sort(kept, {}, [&](std::uint32_t block) { return left_.at(block); });
    return kept;
  }
  // Blocks that can't be had anew for somebody who shares `expected` of `keys`.
  std::uint64_t held_without(const std::vector<BlockKey>& keys, std::uint64_t expected) const {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < expected; ++i) count += holders(by_key_.at(keys[i])) == 0 ? 1 : 0;
    for (std::uint32_t block = 0; block < kTotal; ++block) count += holders(block) > 0 ? 1 : 0;
    return count;
  }
  // A block that was taken to be written: nobody's, and of kept ones the next in `order`.
  void take(const Sequence& by, std::uint32_t block, std::vector<std::uint32_t>& order) {
    RC_ASSERT(holders(block) == 0);
    RC_ASSERT(std::ranges::count(by.blocks, block) == 1);
    std::erase_if(order, [&](std::uint32_t kept) {
      return std::ranges::find(by.blocks.begin(), by.blocks.begin() + static_cast<std::ptrdiff_t>(by.shared),
                               kept) != by.blocks.begin() + static_cast<std::ptrdiff_t>(by.shared);
    });
    if (stands_for_a_key(block)) {
      RC_ASSERT(!order.empty());
      RC_ASSERT(order.front() == block);
      order.erase(order.begin());
      std::erase_if(by_key_, [&](const auto& known) { return known.second == block; });
    }
    content_.erase(block);
  }
  BlockKey by_key_emplace(const BlockKey& key, std::uint32_t block) {
    by_key_[key] = block;
    return key;
  }

  BlockPool pool_{kTotal};
  std::vector<Sequence> sequences_;
  std::map<BlockKey, std::uint32_t> by_key_;
  std::map<BlockKey, BlockKey> before_;
  std::map<std::uint32_t, BlockKey> content_;
  std::map<std::uint32_t, std::uint64_t> left_;  // When its last holder went.
  std::uint64_t time_ = 0;
};

RC_GTEST_PROP(BlockPool, SharesWhatIsKnownAndGivesNothingTwice, (std::vector<std::uint16_t> moves)) {
  SequencesOverAPool sequences;
  for (const std::uint16_t move : moves) {
    const std::uint16_t what = move % 8, which = move / 8;
    if (sequences.is_empty() || what < 2) {
      // Prompts of up to 5 blocks over two tokens: beginnings meet often.
      std::vector<TokenId> prompt;
      for (int i = 0; i < which % 6; ++i) prompt.push_back((which / 6 >> i) % 2);
      sequences.open(std::move(prompt), which % 3);
    } else if (what < 6) {
      sequences.advance(which);
    } else {
      sequences.close(which);
    }
    sequences.check();
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
