// SPDX-License-Identifier: Apache-2.0
// What a full block of KV is the state of, as a digest: everything before it, its tokens, the model and the
// storage, and who may share it. spec/prefix.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mac.h"
#include "engine/api/engine.h"

namespace isthmus::engine {

// Equal keys: equal states, on purpose or by nobody's malice: who chooses tokens can't make two meet.
using BlockKey = Mac;

// key' = HMAC-SHA-256(key, token ids of the next block, each i32 little-endian). The first key stands for no
// block: HMAC-SHA-256("isthmus block chain", descriptor digest as two u64 little-endian, low half first; then
// 0, or 1 and the salt).
//
// Of states handed over the first key is HMAC-SHA-256("isthmus arrived block chain", descriptor digest, the
// origin's, its producer, then u32 bytes of the wire form and the wire form; then as above).
class BlockChain {
 public:
  // `salt`: states are shared within it alone; absent: with all that have none.
  BlockChain(const Digest128& descriptor, const std::optional<std::string>& salt);
  BlockChain(const Digest128& descriptor, const StateOrigin& origin, const std::optional<std::string>& salt);
  explicit BlockChain(const BlockKey& last) : key_(last) {}  // Behind the block that it stands for.
  // The next block's key. `tokens`: all of its tokens.
  const BlockKey& append(std::span<const TokenId> tokens);

 private:
  BlockKey key_{};
};

// Keys of the leading full blocks of `tokens`, each of `block_tokens`, at most `blocks_max`.
std::vector<BlockKey> block_keys(BlockChain chain, std::span<const TokenId> tokens,
                                 std::uint64_t block_tokens, std::uint64_t blocks_max);

}  // namespace isthmus::engine
