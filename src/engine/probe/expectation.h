// SPDX-License-Identifier: Apache-2.0
// Layer 0 of a model in plain f32 arithmetic, with the rotation apart so that other rotations can be tried.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/probe/probe.h"

namespace isthmus::engine {

// Shape of a row set: [tokens][heads][dim].
struct RowShape {
  std::uint32_t tokens = 0, heads = 0, dim = 0;
  std::size_t elements() const { return std::size_t{tokens} * heads * dim; }
};

// Rows that leave out a step which not every model has.
struct Omission {
  std::string step;  // Name of its tensor.
  std::vector<float> rows;
};

// Layer-0 projections of some tokens, with their biases and norms, before any rotation; in the file's order.
struct Layer0 {
  RowShape shape;
  std::vector<float> k, v;
  std::vector<Omission> k_without, v_without;
  bool pairs_halves = false;  // What the file's order is made for: see Rotation.
  double rope_theta = 0;      // Of this layer, as the file says.
};

// Bases of rope, as the file says.
struct RopeBases {
  double stated = 0;             // What a descriptor states: that of layers which attend to all positions.
  std::vector<double> of_layer;  // Of each layer.
};
// Errors as of expected_layer0().
Result<RopeBases> read_rope_bases(const std::string& gguf_path);

// The first layer of the file's model for `tokens`; see expected_layer0() for errors.
Result<Layer0> project_layer0(const std::string& gguf_path, std::span<const TokenId> tokens);

struct Rotation {
  double theta = 0;
  bool pairs_halves = false;        // Pairs (i, i + D/2) turn instead of (2i, 2i + 1).
  std::int64_t first_position = 0;  // Of the first row.
};
std::vector<float> rotate(const RowShape& shape, std::span<const float> rows, const Rotation& rotation);
// Elements of each head's row from interleaved order to halves order: out[i] = in[2i], out[i + D/2] = in[2i +
// 1].
std::vector<float> in_halves_order(const RowShape& shape, std::span<const float> rows);
// The other way round.
std::vector<float> in_interleaved_order(const RowShape& shape, std::span<const float> rows);

// Rows of K, of `layer`'s shape and order, as a model keeps them: rotated over the file's pairs, then in the
// order that `pairing` names ("interleaved", "halves"; any other: the file's).
std::vector<float> kept(const Layer0& layer, std::span<const float> rows, const std::string& pairing,
                        double theta, std::int64_t first_position = 0);

}  // namespace isthmus::engine
