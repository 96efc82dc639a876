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

// Weights and vocabulary, or the vocabulary alone. malformed if llama.cpp refuses the file; its log says why.
Result<ModelPointer> load_model(const std::string& path, bool vocabulary_only);

}  // namespace isthmus::engine::llamacpp
