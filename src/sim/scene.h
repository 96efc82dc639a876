// SPDX-License-Identifier: Apache-2.0
// Test only: descriptors, plans, keys and ids that the tests of both cores use.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/id.h"
#include "base/mac.h"
#include "handoff/core/protocol.h"
#include "kv/descriptor.h"
#include "kv/geometry.h"
#include "wire/chunk_header.h"

namespace isthmus::handoff::sim {

// Tokens of one chunk of plan_facts().
inline constexpr std::uint64_t kTestTile = 256;

// f16 rows (llama.cpp's storage) and f32 blocks (OpenVINO's) of one small model.
kv::Descriptor source_descriptor();
kv::Descriptor target_descriptor();
// A plan of one chunk a tile of 256 tokens.
PlanFacts plan_facts(kv::TokenRange tokens);
// Chunk `index` of such a plan, without a codec. The world carries what a body holds as `body_checksum`.
wire::ChunkHeader chunk_header(const PlanFacts& facts, const wire::Address& address, std::uint32_t index,
                               std::uint32_t slot, std::uint64_t body_checksum = 0);
Digest128 token_digest_of(std::uint64_t end);
Id128 test_id(std::uint64_t kind, std::uint64_t number);
Key test_key(std::uint8_t fill);

// The actions of one kind, and the frames of one kind that are sent.
template <typename T, typename Actions>
std::vector<T> all(const Actions& actions) {
  std::vector<T> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<T>(&action)) found.push_back(*one);
  }
  return found;
}
template <typename T, typename Actions>
std::vector<T> frames(const Actions& actions) {
  std::vector<T> found;
  for (const SendFrame& send : all<SendFrame>(actions)) {
    if (const auto* one = std::get_if<T>(&send.frame)) found.push_back(*one);
  }
  return found;
}

}  // namespace isthmus::handoff::sim
