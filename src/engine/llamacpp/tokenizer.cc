// SPDX-License-Identifier: Apache-2.0
// Tokenizer calls of llama.cpp behind the interface; its exceptions end here.
#include "engine/llamacpp/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <utility>

#include "engine/llamacpp/chat_template.h"
#include "engine/llamacpp/library.h"
#include "engine/probe/model_facts.h"

namespace isthmus::engine::llamacpp {
namespace {

// OpenAI's roles. "developer" is its later name for "system".
constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant", "tool"};

Error too_long(std::size_t bytes) {
  return {Code::kInvalidArgument, fmt::format("text of {} bytes is too long to tokenize", bytes)};
}

class LlamaTokenizer : public Tokenizer {
 public:
  LlamaTokenizer(ModelPointer model, std::string digest)
      : model_(std::move(model)),
        vocabulary_(llama_model_get_vocab(model_.get())),
        template_(read_template()),
        digest_(std::move(digest)) {}

  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special,
                                      bool parse_special) const override {
    constexpr std::size_t kRoomForSpecial = 8;
    if (text.size() > std::numeric_limits<std::int32_t>::max() - kRoomForSpecial)
      return too_long(text.size());
    std::vector<TokenId> tokens(text.size() + kRoomForSpecial);  // No token is shorter than a byte.
    try {
      const std::int32_t found =
          llama_tokenize(vocabulary_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                         static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
      if (found < 0) return too_long(text.size());
      tokens.resize(static_cast<std::size_t>(found));
      return tokens;
    } catch (const std::exception& error) {
      return Error{Code::kInvalidArgument, fmt::format("text cannot be tokenized: {}", error.what())};
    }
  }

  std::string piece(TokenId token, bool special) const override {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocabulary()) return "";
    std::string bytes(32, '\0');
    std::int32_t size = write_piece(token, special, bytes);
    if (size < 0) {
      bytes.resize(static_cast<std::size_t>(-size));
      size = write_piece(token, special, bytes);
    }
    bytes.resize(static_cast<std::size_t>(std::max(size, 0)));
    return bytes;
  }

  bool is_end_of_generation(TokenId token) const override {
    return token >= 0 && static_cast<std::uint32_t>(token) < vocabulary() &&
           llama_vocab_is_eog(vocabulary_, token);
  }

  std::uint32_t vocabulary() const override {
    return static_cast<std::uint32_t>(llama_vocab_n_tokens(vocabulary_));
  }

  Result<std::string> apply_chat_template(std::span<const ChatMessage> messages) const override {
    if (messages.empty()) return Error{Code::kInvalidArgument, "messages: empty; at least one is needed"};
    std::vector<ChatMessage> chat;
    for (const ChatMessage& message : messages) {
      if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
        return Error{Code::kInvalidArgument, fmt::format("messages: role \"{}\"; known are {}", message.role,
                                                         fmt::join(kRoles, ", "))};
      }
      if (message.content.find('\0') != std::string::npos) {
        return Error{Code::kInvalidArgument, "messages: content holds a NUL byte"};
      }
      chat.push_back({message.role == "developer" ? "system" : message.role, message.content});
    }
    if (!template_.ok()) return template_.error();
    ISTHMUS_TRY(std::string text, (*template_)->render(chat));
    // encode() puts it there again.
    const std::string bos = name_of(llama_vocab_bos(vocabulary_));
    if (llama_vocab_get_add_bos(vocabulary_) && !bos.empty() && text.starts_with(bos))
      text.erase(0, bos.size());
    return text;
  }

  std::string digest() const override { return digest_; }

 private:
  std::int32_t write_piece(TokenId token, bool special, std::string& bytes) const {
    return llama_token_to_piece(vocabulary_, token, bytes.data(), static_cast<std::int32_t>(bytes.size()), 0,
                                special);
  }

  std::string name_of(TokenId token) const { return token == LLAMA_TOKEN_NULL ? "" : piece(token, true); }

  Result<std::unique_ptr<ChatTemplate>> read_template() const {
    const char* text = llama_model_chat_template(model_.get(), nullptr);
    if (text == nullptr) return Error{Code::kUnsupported, "the model has no chat template"};
    return ChatTemplate::parse(
        text, {name_of(llama_vocab_bos(vocabulary_)), name_of(llama_vocab_eos(vocabulary_))});
  }

  ModelPointer model_;
  const llama_vocab* vocabulary_;
  Result<std::unique_ptr<ChatTemplate>> template_;
  std::string digest_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& gguf_path) {
  ISTHMUS_TRY(std::string digest, read_tokenizer_digest(gguf_path));
  ISTHMUS_TRY(ModelPointer model, load_model(gguf_path, true));
  return std::unique_ptr<Tokenizer>(std::make_unique<LlamaTokenizer>(std::move(model), std::move(digest)));
}

}  // namespace isthmus::engine::llamacpp
