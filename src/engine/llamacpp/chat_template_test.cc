// SPDX-License-Identifier: Apache-2.0
// Templates of the families that models come with; what they give is what Jinja2 gives, with trim_blocks and
// lstrip_blocks as model authors use it.
#include "engine/llamacpp/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isthmus::engine::llamacpp {
namespace {

using ::testing::HasSubstr;

Result<std::string> rendered(const std::string& text, const std::vector<ChatMessage>& chat) {
  ISTHMUS_TRY(const auto parsed, ChatTemplate::parse(text, {"<s>", "</s>"}));
  return parsed->render(chat);
}

const std::vector<ChatMessage> kChat = {
    {"system", " Be brief. "}, {"user", "Hi {{ x }}"}, {"assistant", "Yes?"}, {"user", "Why?"}};

TEST(ChatTemplate, MessagesAreTextAndNoTemplate) {
  const std::string chatml = R"({% for message in messages %}
  {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{% endif %})";
  // A line break behind an expression stays, one behind a block goes.
  EXPECT_EQ(rendered(chatml, {kChat[0], kChat[1]}).value(),
            "<|im_start|>system\n Be brief. <|im_end|>\n\n<|im_start|>user\nHi {{ x }}<|im_end|>\n\n"
            "<|im_start|>assistant\n\n");
}

TEST(ChatTemplate, LoopsFiltersAndNamespacesOfLlama3) {
  const std::string llama3 =
      "{% set loop_messages = messages %}{% for message in loop_messages %}"
      "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
      "+ message['content'] | trim + '<|eot_id|>' %}"
      "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
  EXPECT_EQ(rendered(llama3, {kChat[0], kChat[1]}).value(),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi {{ x }}<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// Mistral's and Gemma's: roles must take turns, and a chat that doesn't is the caller's fault.
const std::string kTurns =
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') "
    "}}"
    "{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = "
    "message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}";

TEST(ChatTemplate, AChatThatTheTemplateRefusesIsAnInvalidArgumentInItsWords) {
  EXPECT_EQ(rendered(kTurns, {kChat[1], kChat[2], kChat[3]}).value(),
            "<s><start_of_turn>user\nHi {{ x }}<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n"
            "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n");
  const auto system = rendered(kTurns, kChat);
  EXPECT_EQ(system.code(), Code::kInvalidArgument);
  EXPECT_EQ(system.error().detail, "the model's chat template refuses: System role not supported");
  EXPECT_EQ(rendered(kTurns, {kChat[1], kChat[3]}).code(), Code::kInvalidArgument);
}

TEST(ChatTemplate, WhatIsNoJinjaIsUnsupported) {
  const auto broken = rendered("{% for m in messages %}{{ m.role }", kChat);
  EXPECT_EQ(broken.code(), Code::kUnsupported);
  EXPECT_THAT(broken.error().detail, HasSubstr("can't be read: "));
  const auto unknown = rendered("{{ messages | no_such_filter }}", kChat);
  EXPECT_EQ(unknown.code(), Code::kUnsupported);
  EXPECT_THAT(unknown.error().detail, HasSubstr("the model's chat template fails: "));
}

TEST(ChatTemplate, RenderingTwiceGivesTheSame) {
  const auto parsed = ChatTemplate::parse(kTurns, {"<s>", "</s>"});
  ASSERT_TRUE(parsed.ok());
  const std::vector<ChatMessage> chat = {kChat[1]};
  EXPECT_EQ((*parsed)->render(chat).value(), (*parsed)->render(chat).value());
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
