// SPDX-License-Identifier: Apache-2.0
// Test only: what the tests of both cores take as given.
#include "sim/scene.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/catalogue.h"

namespace isthmus::handoff::sim {
namespace {

kv::Descriptor descriptor(std::string_view storage_name, std::string_view recipe) {
  kv::Descriptor built;
  built.identity.architecture = "llama";
  built.identity.lineage = "lineage";
  built.identity.config_digest = "config";
  built.identity.tokenizer_digest = "tokenizer";
  built.identity.position_scheme = "rope";
  built.identity.rope_theta = 10000;
  built.identity.rope_scaling = "none";
  built.weights_recipe = recipe;
  built.weights_digest = "weights";
  built.groups.push_back({{0, 1},
                          kv::AttentionKind::kFull,
                          0,
                          {{"k", 2, 64, true, {"rope:interleaved"}}, {"v", 2, 64, true, {}}}});
  const auto storage = kv::find_storage(storage_name);
  ISTHMUS_CHECK(storage.ok());
  auto stored = kv::represent(**storage, built.groups[0]);
  ISTHMUS_CHECK(stored.ok());
  built.groups[0] = std::move(stored->group);
  built.representation.push_back(std::move(stored->representation));
  built.partition.push_back({0, 0, 0, 2, 0, 2, 0});
  ISTHMUS_CHECK(built.validate().ok());
  return built;
}

}  // namespace

kv::Descriptor source_descriptor() {
  return descriptor("llamacpp:f16", "gguf-f16");
}
kv::Descriptor target_descriptor() {
  return descriptor("openvino:f32", "gguf-f16");
}

PlanFacts plan_facts(kv::TokenRange tokens) {
  PlanFacts facts;
  facts.digest = digest128(fmt::format("plan {} {}", tokens.begin, tokens.end));
  facts.chunk_count = static_cast<std::uint32_t>((tokens.size() + kTestTile - 1) / kTestTile);
  facts.slot_bytes = kTestTile * 8;
  facts.total_bytes = tokens.size() * 8;
  const auto end_of = [tokens](std::uint32_t index) {
    return std::min(tokens.end, tokens.begin + (index + 1) * kTestTile);
  };
  facts.chunks_below = [end_of, count = facts.chunk_count](std::uint64_t watermark) {
    std::uint32_t below = 0;
    while (below < count && end_of(below) <= watermark) ++below;
    return below;
  };
  facts.geometry = [end_of, tokens](std::uint32_t index) {
    const kv::TokenRange tile{tokens.begin + index * kTestTile, end_of(index)};
    return wire::ChunkGeometry{0, {0, 2, 0, 2, tile}, tile.size() * 8, 1};
  };
  return facts;
}

wire::ChunkHeader chunk_header(const PlanFacts& facts, const wire::Address& address, std::uint32_t index,
                               std::uint32_t slot, std::uint64_t body_checksum) {
  const wire::ChunkGeometry geometry = facts.geometry(index);
  return {address,
          facts.digest,
          index,
          slot,
          geometry.group,
          geometry.box,
          wire::Codec::kNone,
          geometry.body_bytes,
          geometry.body_bytes,
          body_checksum,
          {Digest128{}}};
}

Digest128 token_digest_of(std::uint64_t end) {
  return digest128(fmt::format("tokens {}", end));
}
Id128 test_id(std::uint64_t kind, std::uint64_t number) {
  return {kind, number};
}
Key test_key(std::uint8_t fill) {
  Key key;
  key.fill(static_cast<std::byte>(fill));
  return key;
}

}  // namespace isthmus::handoff::sim
