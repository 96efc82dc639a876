// SPDX-License-Identifier: Apache-2.0
// Prompt files as people write them.
#include "qualify/prompts.h"

#include <gtest/gtest.h>

#include <string>

namespace isthmus::qualify {
namespace {

// A token a byte.
class Bytes : public engine::Tokenizer {
 public:
  Result<std::vector<engine::TokenId>> encode(std::string_view text, bool, bool) const override {
    return std::vector<engine::TokenId>(text.begin(), text.end());
  }
  std::string piece(engine::TokenId token, bool) const override { return {static_cast<char>(token)}; }
  bool is_end_of_generation(engine::TokenId) const override { return false; }
  std::uint32_t vocabulary() const override { return 128; }
  Result<std::string> apply_chat_template(std::span<const engine::ChatMessage>) const override {
    return std::string();
  }
  std::string digest() const override { return ""; }
};

std::vector<std::string> prompts_in(std::string_view text) {
  const auto prompts = parse_prompts(Bytes(), text);
  if (!prompts.ok()) return {prompts.error().text()};
  std::vector<std::string> texts;
  for (const Tokens& prompt : *prompts) texts.emplace_back(prompt.begin(), prompt.end());
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Prompts, AreLinesOrJsonStrings) {
  EXPECT_EQ(prompts_in("one\r\n\n\"two\\nlines\"\nthree"), (Texts{"one", "two\nlines", "three"}));
}

TEST(Prompts, WhatIsWrongIsToldWithItsLine) {
  EXPECT_EQ(prompts_in("one\n\"two"), Texts{"malformed: line 2 begins with '\"' but is no JSON string"});
  EXPECT_EQ(prompts_in("one\n\nx\n"),
            Texts{"invalid_argument: the prompt in line 3 has 1 tokens; give two or more"});
  EXPECT_EQ(prompts_in("\n\n"), Texts{"invalid_argument: there are no prompts"});
}

TEST(Prompts, OfTheCorpusHaveTheirLengthsAndBeginElsewhere) {
  Tokens corpus_tokens;
  for (engine::TokenId i = 0; i < 1000; ++i) corpus_tokens.push_back(i);
  for (std::size_t i = 0; i < prompt_lengths().size(); ++i) {
    const Tokens prompt = prompt_of(corpus_tokens, i);
    EXPECT_EQ(prompt.size(), prompt_lengths()[i]);
    EXPECT_EQ(prompt.front(), static_cast<engine::TokenId>(i * 71 % 1000));
  }
  EXPECT_GT(corpus().size(), 5000u);
}

}  // namespace
}  // namespace isthmus::qualify
