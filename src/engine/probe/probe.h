// SPDX-License-Identifier: Apache-2.0
// Start-up probe: is the engine's KV state what its descriptor says? Expected values come from the weights by
// independent code. A worker whose probe fails refuses to serve and says which factor is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"
#include "kv/descriptor.h"

namespace isthmus::engine {

// Logical rows of one layer: [tokens][heads][dim] in f32.
struct LayerRows {
  std::uint32_t tokens = 0, heads = 0, dim = 0;
  std::vector<float> k, v;
};

// Layer-0 K (after rotation, interleaved or halves as `rope_pairing` says) and V of `tokens` at positions
// 0..n-1, computed in f32 from the GGUF's dequantised weights: embedding, RMS norm, projections with their
// biases, RMS norms of K's heads, rope.
// Source: the GGUF file alone; shares no code with any engine. unsupported names the architecture or tensor
// type.
Result<LayerRows> expected_layer0(const std::string& gguf_path, std::span<const TokenId> tokens,
                                  const std::string& rope_pairing);

// Read layer `layer` of a binding through the descriptor (layout offsets by the plain formula, decode by the
// form).
Result<LayerRows> read_layer(const kv::Descriptor& descriptor, const kv::Binding& binding,
                             std::uint32_t layer, kv::TokenRange tokens);

// Of relative RMS errors of layer 0.
struct ProbeTolerance {
  double k = 0, v = 0;
};

struct ProbeReport {
  double k_error = 0, v_error = 0;  // Relative RMS error of layer 0 against the expectation.
  ProbeTolerance tolerance;
  std::uint32_t tokens = 0;
  std::uint32_t layers = 0;
  std::string text() const;
};

// How far an honest engine may be off at layer 0: its arithmetic on these weights plus the rounding of the
// storage that it describes, for K and V each.
ProbeTolerance probe_tolerance(const Engine& engine);

// Runs a short sequence through `engine` (crossing a block boundary), reads its state back and compares layer
// 0 with the weights, after what the descriptor says was done to the values (rope, hadamard). incompatible on
// a surprise, naming the factor that would explain it: it tries the other hypotheses (K and V swapped, other
// rope pairing, unrotated K, a bias or norm left out, heads rotated, wrong scale, hadamard or none, V
// transposed, block size). Of the other layers it is known that they must be finite, written everywhere, not
// constant and unlike each other, and that rope turns their K by their own base: that shows in a sequence of
// one token over and over. How far attention reaches isn't looked at. The engine's own memory is read through
// its KvSource; unsupported without one.
Result<ProbeReport> probe_meaning(Engine& engine, const std::string& gguf_path,
                                  const ProbeTolerance& tolerance);

}  // namespace isthmus::engine
