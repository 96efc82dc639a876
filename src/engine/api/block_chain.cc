// SPDX-License-Identifier: Apache-2.0
// Messages are of fixed parts, the salt last: no two inputs give one message.
#include "engine/api/block_chain.h"

#include <algorithm>
#include <concepts>

#include "base/bytes.h"

namespace isthmus::engine {

namespace {

void add_number(std::vector<std::byte>& message, std::unsigned_integral auto value) {
  const std::size_t at = message.size();
  message.resize(at + sizeof(value));
  store_le(std::span(message).subspan(at), value);
}

void add_digest(std::vector<std::byte>& message, const Digest128& digest) {
  add_number(message, digest.low);
  add_number(message, digest.high);
}

void add_text(std::vector<std::byte>& message, const std::string& text) {
  const auto bytes = bytes_of(text);
  message.insert(message.end(), bytes.begin(), bytes.end());
}

// The last part of a message.
void add_salt(std::vector<std::byte>& message, const std::optional<std::string>& salt) {
  message.push_back(salt ? std::byte{1} : std::byte{0});
  if (salt) add_text(message, *salt);
}

}  // namespace

BlockChain::BlockChain(const Digest128& descriptor, const std::optional<std::string>& salt) {
  std::vector<std::byte> message;
  add_digest(message, descriptor);
  add_salt(message, salt);
  key_ = hmac_sha256(bytes_of("isthmus block chain"), message);
}

BlockChain::BlockChain(const Digest128& descriptor, const StateOrigin& origin,
                       const std::optional<std::string>& salt) {
  std::vector<std::byte> message;
  add_digest(message, descriptor);
  add_digest(message, origin.descriptor);
  add_number(message, origin.producer.low);
  add_number(message, origin.producer.high);
  add_number(message, static_cast<std::uint32_t>(origin.wire.size()));
  add_text(message, origin.wire);
  add_salt(message, salt);
  key_ = hmac_sha256(bytes_of("isthmus arrived block chain"), message);
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
