// SPDX-License-Identifier: Apache-2.0
// Tests of request parsing and answer shapes.
#include "worker/openai.h"

#include <gtest/gtest.h>

#include <string>

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
      {Api::kCompletions, R"({"prompt":["a","b"]})", Code::kUnsupported, "prompt"},
      {Api::kCompletions, R"({"prompt":"a","max_tokens":0})", Code::kInvalidArgument, "max_tokens"},
      {Api::kCompletions, R"({"prompt":"a","max_tokens":"many"})", Code::kInvalidArgument, "max_tokens"},
      {Api::kCompletions, R"({"prompt":"a","temperature":"hot"})", Code::kInvalidArgument, "temperature"},
      {Api::kCompletions, R"({"prompt":"a","stop":["a","b","c","d","e"]})", Code::kInvalidArgument, "stop"},
      {Api::kCompletions, R"({"prompt":"a","stop":[""]})", Code::kInvalidArgument, "stop"},
      {Api::kCompletions, R"({"prompt":"a","stream":"yes"})", Code::kInvalidArgument, "stream"},
      {Api::kCompletions, R"({"prompt":"a","n":2})", Code::kUnsupported, "n"},
      {Api::kCompletions, R"({"prompt":"a","echo":true})", Code::kUnsupported, "echo"},
      {Api::kCompletions, R"({"prompt":"a","logprobs":1})", Code::kUnsupported, "logprobs"},
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
          "seed":-3,"stop":"x","stream":true,"stream_options":{"include_usage":true},"new_field":[1],
          "presence_penalty":0.25,"frequency_penalty":0.5,"tools":[],"response_format":{"type":"text"},"n":1,
          "kv_transfer_params":{"do_remote_prefill":true,"isthmus_ticket":"t","isthmus_endpoints":["h:1"],
          "isthmus_on_failure":"fail"}})",
      Api::kCompletions, field);
  ASSERT_TRUE(parsed.ok()) << parsed.error().text();
  EXPECT_EQ(std::get<std::string>(parsed->prompt), "hello");
  EXPECT_EQ(parsed->tokens_max, 5u);
  EXPECT_FLOAT_EQ(parsed->sampling.temperature, 0.5f);
  EXPECT_EQ(parsed->sampling.top_k, 40u);
  EXPECT_EQ(parsed->sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_TRUE(parsed->has_seed && parsed->stream && parsed->include_usage);
  EXPECT_EQ(parsed->stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(parsed->transfer.do_remote_prefill && parsed->transfer.fail_instead_of_recompute);
  EXPECT_EQ(parsed->transfer.ticket, "t");
}

TEST(OpenAiRequest, TokenIdsAndABatchOfOneAreTaken) {
  std::string field;
  const auto ids = parse_completion(R"({"prompt":[[5,6]]})", Api::kCompletions, field);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::get<1>(ids->prompt), (std::vector<engine::TokenId>{5, 6}));
  const auto text = parse_completion(R"({"prompt":["a"]})", Api::kCompletions, field);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(std::get<std::string>(text->prompt), "a");
}

TEST(OpenAiAnswer, StreamEventsAreValidJsonInOpenAiShape) {
  const AnswerWriter writer(Api::kChat, "1", "m", 5);
  for (const std::string& event : {writer.first_event(), writer.text_event("a\"b"),
                                   writer.finish_event(FinishReason::kStop), writer.usage_event({3, 4})}) {
    ASSERT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n"));
    const auto value = json::parse(std::string_view(event).substr(6, event.size() - 8));
    ASSERT_TRUE(value.ok()) << event;
    EXPECT_EQ(*value->find("object")->as_string(), "chat.completion.chunk");
  }
  const auto text = json::parse(std::string_view(writer.text_event("x")).substr(6));
  EXPECT_EQ(*text->find("choices.0.delta.content")->as_string(), "x");
  const auto whole = json::parse(writer.whole("answer", FinishReason::kLength, {3, 4}, {}));
  EXPECT_EQ(*whole->find("choices.0.message.content")->as_string(), "answer");
  EXPECT_EQ(whole->find("usage.total_tokens")->as_int(), 7);
}

}  // namespace
}  // namespace isthmus::worker
