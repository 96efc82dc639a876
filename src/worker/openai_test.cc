// SPDX-License-Identifier: Apache-2.0
// Tests of request parsing and answer shapes.
#include "worker/openai.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace isthmus::worker {
namespace {

struct BadCase {
  Api api;
  const char* body;
  Code code;
  const char* field;
};

TEST(OpenAiRequest, BadValuesAreRefusedByField) {
  const BadCase cases[] = {
      {Api::kCompletions, "", Code::kInvalidArgument, ""},
      {Api::kCompletions, "[1]", Code::kInvalidArgument, ""},
      {Api::kCompletions, "{\"prompt\":", Code::kInvalidArgument, ""},
      {Api::kCompletions, "{}", Code::kInvalidArgument, "prompt"},
      {Api::kCompletions, R"({"prompt":""})", Code::kInvalidArgument, "prompt"},
      {Api::kCompletions, R"({"prompt":[]})", Code::kInvalidArgument, "prompt"},
      {Api::kCompletions, R"({"prompt":7})", Code::kInvalidArgument, "prompt"},
      {Api::kCompletions, R"({"prompt":[1,-2]})", Code::kInvalidArgument, "prompt"},
      {Api::kCompletions, R"({"prompt":[1,"x"]})", Code::kInvalidArgument, "prompt"},
      {Api::kCompletions, R"({"prompt":["a",""]})", Code::kInvalidArgument, "prompt"},
      {Api::kCompletions, R"({"prompt":["a",[1]],"n":17})", Code::kInvalidArgument, "n"},
      {Api::kCompletions, R"({"prompt":"a","max_tokens":0})", Code::kInvalidArgument, "max_tokens"},
      {Api::kCompletions, R"({"prompt":"a","max_tokens":"many"})", Code::kInvalidArgument, "max_tokens"},
      {Api::kCompletions, R"({"prompt":"a","temperature":"hot"})", Code::kInvalidArgument, "temperature"},
      {Api::kCompletions, R"({"prompt":"a","stop":["a","b","c","d","e"]})", Code::kInvalidArgument, "stop"},
      {Api::kCompletions, R"({"prompt":"a","stop":[""]})", Code::kInvalidArgument, "stop"},
      {Api::kCompletions, R"({"prompt":"a","stream":"yes"})", Code::kInvalidArgument, "stream"},
      {Api::kCompletions, R"({"prompt":"a","n":0})", Code::kInvalidArgument, "n"},
      {Api::kCompletions, R"({"prompt":"a","n":33})", Code::kInvalidArgument, "n"},
      {Api::kCompletions, R"({"prompt":"a","cache_salt":""})", Code::kInvalidArgument, "cache_salt"},
      {Api::kCompletions, R"({"prompt":"a","cache_salt":7})", Code::kInvalidArgument, "cache_salt"},
      {Api::kCompletions, R"({"prompt":"a","best_of":2})", Code::kUnsupported, "best_of"},
      {Api::kCompletions, R"({"prompt":"a","echo":true})", Code::kUnsupported, "echo"},
      {Api::kCompletions, R"({"prompt":"a","logprobs":21})", Code::kInvalidArgument, "logprobs"},
      {Api::kCompletions, R"({"prompt":"a","logprobs":true})", Code::kInvalidArgument, "logprobs"},
      {Api::kCompletions, R"({"prompt":"a","kv_transfer_params":[]})", Code::kInvalidArgument,
       "kv_transfer_params"},
      {Api::kCompletions, R"({"prompt":"a","kv_transfer_params":{"do_remote_prefill":true}})",
       Code::kInvalidArgument, "kv_transfer_params"},
      {Api::kChat, "{}", Code::kInvalidArgument, "messages"},
      {Api::kChat, R"({"messages":[]})", Code::kInvalidArgument, "messages"},
      {Api::kChat, R"({"messages":[{"role":"user"}]})", Code::kInvalidArgument, "messages.0"},
      {Api::kChat, R"({"messages":[{"content":"x"}]})", Code::kInvalidArgument, "messages.0"},
      {Api::kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", Code::kUnsupported,
       "messages.0"},
      {Api::kChat, R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]})",
       Code::kUnsupported, "tools"},
      {Api::kChat, R"({"messages":[{"role":"user","content":"x"}],"logprobs":3})", Code::kInvalidArgument,
       "logprobs"},
      {Api::kChat, R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":3})", Code::kInvalidArgument,
       "top_logprobs"},
  };
  for (const BadCase& bad : cases) {
    std::string field = "unset";
    const auto parsed = parse_completion(bad.body, bad.api, field);
    EXPECT_EQ(parsed.code(), bad.code) << bad.body;
    EXPECT_EQ(field, bad.field) << bad.body;
  }
}

TEST(OpenAiRequest, KnownFieldsAreReadAndUnknownOnesIgnored) {
  std::string field;
  const auto parsed = parse_completion(
      R"({"model":"m","prompt":"hello","max_tokens":5,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,
          "ignore_eos":true,
          "seed":-3,"stop":"x","stream":true,"stream_options":{"include_usage":true},"new_field":[1],
          "presence_penalty":0.25,"frequency_penalty":0.5,"tools":[],"response_format":{"type":"text"},"n":1,
          "cache_salt":"mine",
          "kv_transfer_params":{"do_remote_prefill":true,"isthmus_ticket":"t","isthmus_endpoints":["h:1"],
          "isthmus_on_failure":"fail"}})",
      Api::kCompletions, field);
  ASSERT_TRUE(parsed.ok()) << parsed.error().text();
  EXPECT_EQ(std::get<std::string>(parsed->prompts.front()), "hello");
  EXPECT_TRUE(parsed->fits_a_handoff());
  EXPECT_EQ(parsed->tokens_max, 5u);
  EXPECT_FLOAT_EQ(parsed->sampling.temperature, 0.5f);
  EXPECT_EQ(parsed->sampling.top_k, 40u);
  EXPECT_TRUE(parsed->ignores_end);
  EXPECT_EQ(parsed->sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_TRUE(parsed->has_seed && parsed->stream && parsed->include_usage);
  EXPECT_EQ(parsed->stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(parsed->transfer.do_remote_prefill && parsed->transfer.fail_instead_of_recompute);
  EXPECT_EQ(parsed->transfer.ticket, "t");
  EXPECT_EQ(parsed->cache_salt, "mine");
}

TEST(OpenAiRequest, PromptsAreTextsOrTokenIdsAloneOrInABatch) {
  std::string field;
  const auto ids = parse_completion(R"({"prompt":[5,6]})", Api::kCompletions, field);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::get<1>(ids->prompts.front()), (std::vector<engine::TokenId>{5, 6}));
  EXPECT_EQ(ids->choices(), 1u);
  const auto mixed = parse_completion(R"({"prompt":["a",[5,6]],"n":3})", Api::kCompletions, field);
  ASSERT_TRUE(mixed.ok());
  ASSERT_EQ(mixed->prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(mixed->prompts[0]), "a");
  EXPECT_EQ(std::get<1>(mixed->prompts[1]), (std::vector<engine::TokenId>{5, 6}));
  EXPECT_EQ(mixed->choices(), 6u);
  EXPECT_FALSE(mixed->fits_a_handoff());
}

TEST(OpenAiRequest, ASaltHasABound) {
  std::string field;
  const auto code = [&](std::size_t bytes) {
    const std::string salt(bytes, 'x');
    return parse_completion(fmt::format(R"({{"prompt":"a","cache_salt":"{}"}})", salt), Api::kCompletions,
                            field)
        .code();
  };
  EXPECT_EQ(code(kSaltBytesMax), Code::kOk);
  EXPECT_EQ(code(kSaltBytesMax + 1), Code::kInvalidArgument);
  EXPECT_EQ(field, "cache_salt");
}

TEST(OpenAiRequest, LogprobsAreACountForCompletionsAndAFlagForChat) {
  std::string field;
  const auto plain = parse_completion(R"({"prompt":"a","logprobs":0})", Api::kCompletions, field);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->logprobs, 0u);
  EXPECT_FALSE(plain->fits_a_handoff());
  const auto chat = [&](const char* more) {
    return parse_completion(fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}]{}}})", more),
                            Api::kChat, field)
        .value()
        .logprobs;
  };
  EXPECT_EQ(chat(R"(,"logprobs":true)"), 0u);
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":5)"), 5u);
  EXPECT_EQ(chat(R"(,"logprobs":false,"top_logprobs":0)"), std::nullopt);
  EXPECT_EQ(chat(""), std::nullopt);
}

Choice said(std::string text) {
  return {std::move(text), {}, std::nullopt};
}

TEST(OpenAiAnswer, StreamEventsAreValidJsonInOpenAiShape) {
  const AnswerWriter writer(Api::kChat, "1", "m", 5);
  for (const std::string& event :
       {writer.first_event(0), writer.text_event(0, said("a\"b"), 0),
        writer.finish_event(0, FinishReason::kStop), writer.usage_event({3, 4, 0})}) {
    ASSERT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n"));
    const auto value = json::parse(std::string_view(event).substr(6, event.size() - 8));
    ASSERT_TRUE(value.ok()) << event;
    EXPECT_EQ(*value->find("object")->as_string(), "chat.completion.chunk");
  }
  const std::string event = writer.text_event(2, said("x"), 0);
  const auto text = json::parse(std::string_view(event).substr(6));
  EXPECT_EQ(*text->find("choices.0.delta.content")->as_string(), "x");
  EXPECT_EQ(text->find("choices.0.index")->as_int(), 2);
  const std::vector<Choice> choices = {{"one", {}, FinishReason::kLength}, {"two", {}, FinishReason::kStop}};
  const auto whole = json::parse(writer.whole(choices, {3, 4, 2}, {}));
  EXPECT_EQ(*whole->find("choices.0.message.content")->as_string(), "one");
  EXPECT_EQ(*whole->find("choices.1.message.content")->as_string(), "two");
  EXPECT_EQ(whole->find("choices.1.index")->as_int(), 1);
  EXPECT_TRUE(whole->find("choices.0.logprobs")->is_null());
  EXPECT_EQ(whole->find("usage.total_tokens")->as_int(), 7);
  EXPECT_EQ(whole->find("usage.prompt_tokens_details.cached_tokens")->as_int(), 2);
}

// A token that is half a character has its bytes; offsets count characters.
TEST(OpenAiAnswer, LogprobsHaveEachApisShape) {
  const std::vector<ScoredToken> tokens = {{{"a\xC3", -0.5}, {{"a\xC3", -0.5}, {"b", -1.0}}},
                                           {{"\xA4", -2.0}, {}}};
  const std::vector<Choice> choices = {{"a\xC3\xA4", tokens, FinishReason::kStop}};
  const auto chat = json::parse(AnswerWriter(Api::kChat, "1", "m", 5).whole(choices, {}, {}));
  ASSERT_TRUE(chat.ok());
  const json::Value& first = *chat->find("choices.0.logprobs.content.0");
  EXPECT_EQ(*first.find("token")->as_string(), "a\xEF\xBF\xBD");
  EXPECT_EQ(first.find("bytes.1")->as_int(), 0xC3);
  EXPECT_EQ(first.find("top_logprobs.1.logprob")->as_double(), -1.0);
  EXPECT_EQ(chat->find("choices.0.logprobs.content.1.logprob")->as_double(), -2.0);
  const auto plain = json::parse(AnswerWriter(Api::kCompletions, "1", "m", 5).whole(choices, {}, {}));
  ASSERT_TRUE(plain.ok());
  const json::Value& logprobs = *plain->find("choices.0.logprobs");
  EXPECT_EQ(logprobs.find("token_logprobs.0")->as_double(), -0.5);
  EXPECT_EQ(logprobs.find("top_logprobs.0")->member("b")->as_double(), -1.0);
  EXPECT_TRUE(logprobs.find("top_logprobs.1")->is_null());
  EXPECT_EQ(logprobs.find("text_offset.1")->as_int(), 2);
}

}  // namespace
}  // namespace isthmus::worker
