// SPDX-License-Identifier: Apache-2.0
// Chats as Jinja values; the engine's exceptions end here.
#include "engine/llamacpp/chat_template.h"

#include <fmt/format.h>
#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <jinja/value.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

namespace isthmus::engine::llamacpp {
namespace {

jinja::value text_of(const std::string& text) {
  return jinja::mk_val<jinja::value_string>(text);
}

std::string first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return std::string(text.substr(0, text.find('\n')));
}

// raise_exception() of the template itself: the chat is wrong, not the template.
Error refused(std::string_view what) {
  constexpr std::string_view kRaised = "Jinja Exception: ";
  const std::size_t at = what.find(kRaised);
  if (at == std::string_view::npos)
    return {Code::kUnsupported, fmt::format("the model's chat template fails: {}", first_line(what))};
  return {Code::kInvalidArgument,
          fmt::format("the model's chat template refuses: {}", first_line(what.substr(at + kRaised.size())))};
}

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(const std::string& text, TemplateTokens tokens)
      : program_(jinja::parse_from_tokens(jinja::lexer().tokenize(text))), tokens_(std::move(tokens)) {}

  Result<std::string> render(std::span<const ChatMessage> messages) const override {
    try {
      jinja::context context;
      auto chat = jinja::mk_val<jinja::value_array>();
      for (const ChatMessage& message : messages) {
        auto item = jinja::mk_val<jinja::value_object>();
        item->insert("role", text_of(message.role));
        item->insert("content", text_of(message.content));
        chat->push_back(item);
      }
      context.set_val("messages", chat);
      context.set_val("add_generation_prompt", jinja::mk_val<jinja::value_bool>(true));
      context.set_val("bos_token", text_of(tokens_.bos));
      context.set_val("eos_token", text_of(tokens_.eos));
      jinja::runtime runtime(context);
      return jinja::runtime::gather_string_parts(runtime.execute(program_))->as_string().str();
    } catch (const std::exception& error) {
      return refused(error.what());
    }
  }

 private:
  jinja::program program_;
  TemplateTokens tokens_;
};

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(const std::string& text, TemplateTokens tokens) {
  try {
    return std::unique_ptr<ChatTemplate>(std::make_unique<JinjaTemplate>(text, std::move(tokens)));
  } catch (const std::exception& error) {
    return Error{Code::kUnsupported,
                 fmt::format("the model's chat template can't be read: {}", first_line(error.what()))};
  }
}

}  // namespace isthmus::engine::llamacpp
