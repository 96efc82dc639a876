// SPDX-License-Identifier: Apache-2.0
// The one tokenizer of a worker, whatever its engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"

namespace isthmus::engine {

struct ChatMessage {
  std::string role;
  std::string content;
};

// Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual Result<std::vector<TokenId>> encode(std::string_view text, bool add_special,
                                              bool parse_special) const = 0;
  // Raw bytes of one token; may be part of a UTF-8 character. Special tokens give "" unless asked for.
  virtual std::string piece(TokenId token, bool special = false) const = 0;
  virtual bool is_end_of_generation(TokenId token) const = 0;
  virtual std::uint32_t vocabulary() const = 0;
  // The model's chat template applied, ending where the assistant's answer begins. invalid_argument for an
  // unknown role or an empty list; unsupported if the model has no template that is known.
  virtual Result<std::string> apply_chat_template(std::span<const ChatMessage> messages) const = 0;
  virtual std::string digest() const = 0;  // Of everything that changes token ids.
};

}  // namespace isthmus::engine
