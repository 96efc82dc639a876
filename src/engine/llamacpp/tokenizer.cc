// SPDX-License-Identifier: Apache-2.0
// Tokenizer calls of llama.cpp behind the interface; its exceptions end here.
#include "engine/llamacpp/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <utility>

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
        digest_(std::move(digest)) {
    if (const char* text = llama_model_chat_template(model_.get(), nullptr); text != nullptr)
      template_ = text;
  }

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
    if (template_.empty()) return Error{Code::kUnsupported, "the model has no chat template"};
    std::vector<llama_chat_message> chat;
    std::size_t bytes = 1024;
    for (const ChatMessage& message : messages) {
      if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
        return Error{Code::kInvalidArgument, fmt::format("messages: role \"{}\"; known are {}", message.role,
                                                         fmt::join(kRoles, ", "))};
      }
      if (message.content.find('\0') != std::string::npos) {
        return Error{Code::kInvalidArgument, "messages: content holds a NUL byte"};
      }
      chat.push_back(
          {message.role == "developer" ? "system" : message.role.c_str(), message.content.c_str()});
      bytes += 2 * (message.role.size() + message.content.size()) + 64;
    }
    if (bytes > std::numeric_limits<std::int32_t>::max()) return too_long(bytes);
    return render(chat, bytes);
  }

  std::string digest() const override { return digest_; }

 private:
  std::int32_t write_piece(TokenId token, bool special, std::string& bytes) const {
    return llama_token_to_piece(vocabulary_, token, bytes.data(), static_cast<std::int32_t>(bytes.size()), 0,
                                special);
  }

  Result<std::string> render(const std::vector<llama_chat_message>& chat, std::size_t bytes) const {
    std::string text(bytes, '\0');
    for (int attempt = 0; attempt < 2; ++attempt) {  // The second has the size that the first asked for.
      std::int32_t size = -1;
      try {
        size = llama_chat_apply_template(template_.c_str(), chat.data(), chat.size(), true, text.data(),
                                         static_cast<std::int32_t>(text.size()));
      } catch (const std::exception& error) {
        return Error{Code::kUnsupported,
                     fmt::format("the model's chat template cannot be applied: {}", error.what())};
      }
      if (size < 0) return Error{Code::kUnsupported, "the model's chat template is of no known family"};
      const bool fits = static_cast<std::size_t>(size) <= text.size();
      text.resize(static_cast<std::size_t>(size));
      if (fits) return text;
    }
    return Error{Code::kInternal, "llama.cpp asked for more room for the same chat"};
  }

  ModelPointer model_;
  const llama_vocab* vocabulary_;
  std::string template_;
  std::string digest_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& gguf_path) {
  ISTHMUS_TRY(std::string digest, read_tokenizer_digest(gguf_path));
  ISTHMUS_TRY(ModelPointer model, load_model(gguf_path, true));
  return std::unique_ptr<Tokenizer>(std::make_unique<LlamaTokenizer>(std::move(model), std::move(digest)));
}

}  // namespace isthmus::engine::llamacpp
