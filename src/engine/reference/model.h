// SPDX-License-Identifier: Apache-2.0
// The transformer's arithmetic, one token at a time, in plain f32 loops of fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/reference/reference.h"

namespace isthmus::engine {

// One token's row of one component and head.
struct RowKey {
  std::uint32_t layer = 0;      // Of the model.
  std::uint32_t component = 0;  // 0: k or latent; 1: v or rope.
  std::uint32_t head = 0;
};

// What the model has of its past: rows as they were stored.
class Past {
 public:
  virtual ~Past() = default;
  virtual void put(const RowKey& key, std::uint64_t position, std::span<const float> row) = 0;
  // [positions][dim] of `positions`, which end with the last that was put; valid until the next call of the
  // same key. `reader` chooses among replicas.
  virtual std::span<const float> rows(const RowKey& key, kv::TokenRange positions, std::uint32_t reader) = 0;
};

class ReferenceModel {
 public:
  explicit ReferenceModel(const ReferenceShape& shape);

  // Puts the token's rows and computes its logits (of `vocabulary`).
  void step(TokenId token, std::uint64_t position, Past& past, std::span<float> logits) const;

 private:
  using Matrix = std::vector<float>;  // [out][in]
  struct Layer {
    Matrix query, key, value, output, up, down;
    Matrix query_rope, key_rope;  // kMla.
  };
  using Row = std::vector<float>;

  Row attend(std::uint32_t layer, const Row& normed, std::uint64_t position, Past& past) const;
  Row attend_mla(std::uint32_t layer, const Row& normed, std::uint64_t position, Past& past) const;
  kv::TokenRange seen(std::uint32_t layer, std::uint64_t position) const;

  ReferenceShape shape_;
  std::uint32_t width_ = 0;  // Of the residual stream.
  Matrix embedding_, head_;
  std::vector<Layer> layers_;
};

}  // namespace isthmus::engine
