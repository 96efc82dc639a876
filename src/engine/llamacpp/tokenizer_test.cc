// SPDX-License-Identifier: Apache-2.0
// The tokenizer of the test model.
#include "engine/llamacpp/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/probe/model_facts.h"

namespace isthmus::engine::llamacpp {
namespace {

class TokenizerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer = make_tokenizer(ISTHMUS_MODEL).value(); }
  static void TearDownTestSuite() { tokenizer.reset(); }
  static std::unique_ptr<Tokenizer> tokenizer;
};
std::unique_ptr<Tokenizer> TokenizerTest::tokenizer;

TEST_F(TokenizerTest, PiecesOfATextJoinToItsBytes) {
  for (const std::string text :
       {"The capital of France is", "", " two  spaces\n\ttab", "naïve 文字 🙂", "\xff\xfe broken"}) {
    std::string joined;
    const auto tokens = tokenizer->encode(text, false, false);
    ASSERT_TRUE(tokens.ok());
    for (const TokenId token : *tokens) joined += tokenizer->piece(token);
    if (text.find('\xff') == std::string::npos) {
      EXPECT_EQ(joined, text);
    }
  }
}

TEST_F(TokenizerTest, SpecialTokensAreParsedOnlyWhenAsked) {
  EXPECT_EQ(tokenizer->encode("<|im_start|>", false, true).value(), (std::vector<TokenId>{1}));
  EXPECT_GT(tokenizer->encode("<|im_start|>", false, false)->size(), 1u);
  EXPECT_EQ(tokenizer->piece(1), "");
  EXPECT_EQ(tokenizer->piece(1, true), "<|im_start|>");
}

TEST_F(TokenizerTest, TheEndOfAnAnswerIsKnown) {
  EXPECT_TRUE(tokenizer->is_end_of_generation(2));
  EXPECT_FALSE(tokenizer->is_end_of_generation(500));
  EXPECT_FALSE(tokenizer->is_end_of_generation(-1));
  EXPECT_FALSE(tokenizer->is_end_of_generation(1'000'000));
  EXPECT_EQ(tokenizer->piece(-1), "");
  EXPECT_EQ(tokenizer->piece(1'000'000), "");
}

TEST_F(TokenizerTest, TheChatTemplateEndsWhereTheAnswerBegins) {
  const std::vector<ChatMessage> chat{{"system", "Be brief."}, {"user", "Hi"}};
  EXPECT_EQ(
      tokenizer->apply_chat_template(chat).value(),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<ChatMessage> developer{{"developer", "Be brief."}, {"user", "Hi"}};
  EXPECT_EQ(tokenizer->apply_chat_template(developer).value(), tokenizer->apply_chat_template(chat).value());
}

TEST_F(TokenizerTest, BadChatsAreInvalidArguments) {
  EXPECT_EQ(tokenizer->apply_chat_template({}).code(), Code::kInvalidArgument);
  const std::vector<ChatMessage> role{{"wizard", "Hi"}};
  const auto refused = tokenizer->apply_chat_template(role);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.error().detail.find("\"wizard\""), std::string::npos);
  const std::vector<ChatMessage> nul{{"user", std::string("a\0b", 3)}};
  EXPECT_EQ(tokenizer->apply_chat_template(nul).code(), Code::kInvalidArgument);
}

TEST_F(TokenizerTest, ALongChatIsRenderedWhole) {
  const std::string content(100'000, 'a');
  const std::vector<ChatMessage> chat{{"user", content}};
  const auto text = tokenizer->apply_chat_template(chat);
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find(content), std::string::npos);
  EXPECT_TRUE(text->ends_with("<|im_start|>assistant\n"));
}

TEST_F(TokenizerTest, DigestAndVocabularyAgreeWithTheFile) {
  const auto facts = read_model_facts(ISTHMUS_MODEL);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(tokenizer->digest(), facts->tokenizer_digest);
  EXPECT_EQ(tokenizer->vocabulary(), facts->vocabulary);
}

TEST(Tokenizer, AMissingFileIsNotFound) {
  EXPECT_EQ(make_tokenizer("/nowhere.gguf").code(), Code::kNotFound);
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
