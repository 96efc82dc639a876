// SPDX-License-Identifier: Apache-2.0
// llama.cpp as a library: started once, its log in ours, its objects owned.
#pragma once

#include <llama.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace isthmus::engine::llamacpp {

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ModelPointer = std::unique_ptr<llama_model, ModelDeleter>;
using ContextPointer = std::unique_ptr<llama_context, ContextDeleter>;

// Before any other call; what follows here does it by itself.
void start_library();

// Weights and vocabulary, or the vocabulary alone. `repack` lets llama.cpp lay the weights out anew for the
// widest instructions that it was built with (AMX). malformed if llama.cpp refuses the file; its log says
// why.
Result<ModelPointer> load_model(const std::string& path, bool vocabulary_only, bool repack = true);

// Rotation before a block format is a switch of the process for llama.cpp: LLAMA_ATTN_ROT_DISABLE, read while
// a context is made and kept by it. This function sets it for each context, one at a time, whatever the
// environment said; contexts of both kinds may live together. exhausted if llama.cpp refuses; its log says
// why.
Result<ContextPointer> make_context(llama_model* model, const llama_context_params& params, bool rotate);

}  // namespace isthmus::engine::llamacpp
