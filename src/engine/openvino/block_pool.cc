// SPDX-License-Identifier: Apache-2.0
// A stack of free block numbers, a queue of kept ones, a count of holders each.
#include "engine/openvino/block_pool.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::engine::openvino {

BlockPool::BlockPool(std::uint32_t blocks) : blocks_(blocks) {
  free_.reserve(blocks);
  for (std::uint32_t block = blocks; block > 0; --block) free_.push_back(block - 1);
}

Result<BlockPool::Acquired> BlockPool::acquire(std::uint64_t count, std::span<const BlockKey> keys) {
  ISTHMUS_CHECK(keys.size() <= count);
  Acquired acquired{.blocks = known_of(keys)};
  acquired.known = acquired.blocks.size();
  const auto woken = static_cast<std::uint64_t>(std::ranges::count_if(
      acquired.blocks, [this](std::uint32_t block) { return blocks_[block].holders == 0; }));
  const std::uint64_t wanted = count - acquired.known;
  const std::uint64_t there = free_.size() + kept_.size() - woken;
  if (wanted > there) {
    return Error{Code::kExhausted,
                 fmt::format("{} KV blocks asked for, {} of {} are free", wanted, there, total())};
  }
  for (const std::uint32_t block : acquired.blocks) hold(block);
  while (acquired.blocks.size() < count) acquired.blocks.push_back(take_writable());
  return acquired;
}

std::vector<std::uint32_t> BlockPool::hold(std::span<const BlockKey> keys) {
  std::vector<std::uint32_t> blocks = known_of(keys);
  for (const std::uint32_t block : blocks) hold(block);
  return blocks;
}

std::vector<std::uint32_t> BlockPool::known_of(std::span<const BlockKey> keys) const {
  std::vector<std::uint32_t> blocks;
  for (const BlockKey& key : keys) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) break;
    blocks.push_back(found->second);
  }
  return blocks;
}

void BlockPool::hold(std::uint32_t block) {
  Block& held = blocks_[block];
  if (held.holders++ == 0) kept_.erase(held.place);
}

std::uint32_t BlockPool::take_writable() {
  std::uint32_t block = 0;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    block = kept_.front();
    kept_.pop_front();
    by_key_.erase(blocks_[block].key.value());
    blocks_[block].key.reset();
  }
  blocks_[block].holders = 1;
  return block;
}

std::uint32_t BlockPool::share(std::uint32_t block, const BlockKey& key) {
  ISTHMUS_CHECK(is_writable(block));
  const auto [at, is_new] = by_key_.try_emplace(key, block);
  if (is_new) {
    blocks_[block].key = key;
    return block;
  }
  hold(at->second);
  blocks_[block].holders = 0;
  free_.push_back(block);
  return at->second;
}

// Backwards: so that the same request gets the same blocks in the same order, and the end of a chain goes
// first.
void BlockPool::release(std::span<const std::uint32_t> blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    ISTHMUS_CHECK(*block < total() && blocks_[*block].holders > 0);
    Block& left = blocks_[*block];
    if (--left.holders > 0) continue;
    if (left.key) {
      left.place = kept_.insert(kept_.end(), *block);
    } else {
      free_.push_back(*block);
    }
  }
}

bool BlockPool::is_writable(std::uint32_t block) const {
  return block < total() && blocks_[block].holders == 1 && !blocks_[block].key;
}

}  // namespace isthmus::engine::openvino
