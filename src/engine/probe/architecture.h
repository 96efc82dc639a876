// SPDX-License-Identifier: Apache-2.0
// What sets the served architectures apart, as far as K and V of a layer depend on it.
#pragma once

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
};

// "llama, qwen2, qwen3, gemma"
std::string served_architectures();

// That of the file. Errors: malformed (the file names none), unsupported (it isn't served, or its attention
// has a sliding window).
Result<const Architecture*> find_architecture(const GgufFile& file);

// Which of layer 0's projections have a bias: letters of "qkv"; "" without any.
std::string biased_projections(const GgufFile& file);

}  // namespace isthmus::engine
