// SPDX-License-Identifier: Apache-2.0
// Messages are of fixed parts, the salt last: no two inputs give one message.
#include "engine/api/block_chain.h"

#include <algorithm>

#include "base/bytes.h"

namespace isthmus::engine {

BlockChain::BlockChain(const Digest128& descriptor, const std::optional<std::string>& salt) {
  constexpr std::size_t kHalf = sizeof(std::uint64_t);
  std::vector<std::byte> message(2 * kHalf + 1);
  store_le(message, descriptor.low);
  store_le(std::span(message).subspan(kHalf), descriptor.high);
  if (salt) {
    message.back() = std::byte{1};
    const auto text = bytes_of(*salt);
    message.insert(message.end(), text.begin(), text.end());
  }
  key_ = hmac_sha256(bytes_of("isthmus block chain"), message);
}

const BlockKey& BlockChain::append(std::span<const TokenId> tokens) {
  static_assert(sizeof(TokenId) == 4);
  key_ = hmac_sha256(key_, std::as_bytes(tokens));
  return key_;
}

std::vector<BlockKey> block_keys(BlockChain chain, std::span<const TokenId> tokens,
                                 std::uint64_t block_tokens, std::uint64_t blocks_max) {
  std::vector<BlockKey> keys(std::min(tokens.size() / block_tokens, blocks_max));
  for (BlockKey& key : keys) {
    key = chain.append(tokens.first(block_tokens));
    tokens = tokens.subspan(block_tokens);
  }
  return keys;
}

}  // namespace isthmus::engine
