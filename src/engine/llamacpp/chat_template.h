// SPDX-License-Identifier: Apache-2.0
// A model's chat template, run by llama.cpp's Jinja engine.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/api/tokenizer.h"

namespace isthmus::engine::llamacpp {

// What templates call bos_token and eos_token; "" if the model has none.
struct TemplateTokens {
  std::string bos, eos;
};

// Rendering changes nothing; one thread at a time.
class ChatTemplate {
 public:
  // unsupported: `text` can't be read as Jinja; says where.
  static Result<std::unique_ptr<ChatTemplate>> parse(const std::string& text, TemplateTokens tokens);
  virtual ~ChatTemplate() = default;
  // Ends where the assistant's answer begins. invalid_argument: the template refuses this chat, in its own
  // words; unsupported: it asks for something that the engine doesn't have.
  virtual Result<std::string> render(std::span<const ChatMessage> messages) const = 0;
};

}  // namespace isthmus::engine::llamacpp
