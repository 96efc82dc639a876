// SPDX-License-Identifier: Apache-2.0
// Which KV blocks are free, held or kept: a fixed number, no memory behind them. Pure.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/api/block_chain.h"

namespace isthmus::engine::openvino {

// Thread: one. Owns block numbers only; the bytes are KvMemory's.
//
// A block is held by one sequence or more; or kept, which nobody holds but whose state is known by its key;
// or free. free + held + kept = total. Whoever holds a block with a key holds those of all keys before it, so
// of kept blocks the end of a chain goes before its beginning, and the chain unused for longest first.
class BlockPool {
 public:
  explicit BlockPool(std::uint32_t blocks);

  struct Acquired {
    std::vector<std::uint32_t> blocks;
    std::uint64_t known = 0;  // How many of the first have the leading keys asked for.
  };
  // `count` blocks, or none at all: while `keys` (at most `count`, a chain from its beginning) are known,
  // their blocks; then blocks that nobody else holds, most recently released first (their cache lines and
  // pages are warm), kept ones only when no other is free. Errors: exhausted, with what is asked, free and
  // there.
  Result<Acquired> acquire(std::uint64_t count, std::span<const BlockKey> keys = {});

  // The blocks of those of `keys`, a chain from its beginning, that are known up to the first that isn't;
  // each is held once more.
  std::vector<std::uint32_t> hold(std::span<const BlockKey> keys);

  // `block`, held by one alone, has the state that `key` names and is never written again. The block that
  // stands for the key from now on: another if that was known before, which is then held instead, and `block`
  // is free. The caller holds the blocks of all keys before it.
  std::uint32_t share(std::uint32_t block, const BlockKey& key);

  // Give blocks back, in the order of their positions. A block that isn't held is our own bug: the process
  // stops, since two sequences would write it.
  void release(std::span<const std::uint32_t> blocks);

  // Held by one, without a key.
  bool is_writable(std::uint32_t block) const;
  std::uint32_t holders(std::uint32_t block) const { return blocks_[block].holders; }

  std::uint32_t total() const { return static_cast<std::uint32_t>(blocks_.size()); }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t kept() const { return static_cast<std::uint32_t>(kept_.size()); }
  std::uint32_t held() const { return total() - free() - kept(); }

 private:
  struct Block {
    std::uint32_t holders = 0;
    std::optional<BlockKey> key;
    std::list<std::uint32_t>::iterator place;  // In kept_, if it is there.
  };
  std::vector<std::uint32_t> known_of(std::span<const BlockKey> keys) const;
  void hold(std::uint32_t block);
  std::uint32_t take_writable();

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;  // A stack.
  std::list<std::uint32_t> kept_;    // The next to go first.
  std::map<BlockKey, std::uint32_t> by_key_;
};

}  // namespace isthmus::engine::openvino
