// SPDX-License-Identifier: Apache-2.0
// What sets the served architectures apart, as far as K and V of a layer, and who attends to them, depend on
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/probe/gguf.h"

namespace isthmus::engine {

struct Architecture {
  std::string_view name;      // general.architecture, and the prefix of the file's keys.
  bool pairs_halves = false;  // Rope turns elements i and i + dim/2 of a K row of the file; else 2i, 2i + 1.
  bool has_head_norms = false;     // Each head's row of Q and K goes through an RMS norm before rope.
  bool scales_embeddings = false;  // By the root of the width.
  // Every so many-th layer attends to all positions; the others, local ones, to a window, and with a rope
  // base of their own. 0: all layers attend to all.
  std::uint32_t window_period = 0;
};

// Of a model's local layers.
struct Window {
  // How many positions a token attends to, itself and those right before it. 0: no layer is local.
  std::uint64_t tokens = 0;
  std::uint32_t period = 0;  // As in Architecture.
  double rope_theta = 0;     // Of local layers.

  bool is_local(std::uint32_t layer) const { return tokens != 0 && layer % period != period - 1; }
};

// "llama, qwen2, qwen3, gemma, gemma3"
std::string served_architectures();

// That of the file. Errors: malformed (the file names none), unsupported (it isn't served, or the file has a
// key that changes attention in a way that isn't, named).
Result<const Architecture*> find_architecture(const GgufFile& file);

// That of the file's model. Errors: malformed (no number), unsupported (a window where the architecture has
// none, or none where it has).
Result<Window> read_window(const GgufFile& file, const Architecture& architecture);

// Which of layer 0's projections have a bias: letters of "qkv"; "" without any.
std::string biased_projections(const GgufFile& file);

}  // namespace isthmus::engine
