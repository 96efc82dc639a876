// SPDX-License-Identifier: Apache-2.0
// The tokenizer and chat template of a GGUF file, by llama.cpp's vocabulary-only load; for every embedded
// worker.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/api/tokenizer.h"

namespace isthmus::engine::llamacpp {

// Loads no weights. Chat templates are those that llama_chat_apply_template() recognises: it knows the common
// families by their markers and doesn't run the template's Jinja, so a default system prompt in the template
// isn't added. Errors: not_found, malformed, unsupported (of the file).
Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& gguf_path);

}  // namespace isthmus::engine::llamacpp
