// SPDX-License-Identifier: Apache-2.0
// Whatever clients send: a typed answer, and nothing is held for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>

#include "faults/duo.h"

namespace isthmus::faults {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Bad {
  const char* name;
  std::string body;
  int status;
  const char* error;  // Begin of "code: message".
  const char* param;  // The field at fault; "" if the body as a whole.
  friend void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.name; }
};

std::string with(const char* field, const char* value) {
  return std::string(R"({"model":"fake","prompt":"some words","max_tokens":4,")") + field + "\":" + value +
         "}";
}

class EveryBadBody : public testing::TestWithParam<Bad> {};

INSTANTIATE_TEST_SUITE_P(
    Of, EveryBadBody,
    testing::Values(Bad{"NotJson", "hello", 400, "invalid_argument: ", ""},
                    Bad{"Empty", "", 400, "invalid_argument: ", ""},
                    Bad{"Cut", R"({"prompt":"ab)", 400, "invalid_argument: ", ""},
                    Bad{"NoObject", "[1,2]", 400, "invalid_argument: ", ""},
                    Bad{"Deep", std::string(5000, '['), 400, "invalid_argument: ", ""},
                    Bad{"NoPrompt", R"({"model":"fake"})", 400, "invalid_argument: ", "prompt"},
                    Bad{"EmptyPrompt", R"({"prompt":""})", 400, "invalid_argument: ", "prompt"},
                    Bad{"PromptNumber", R"({"prompt":5})", 400, "invalid_argument: ", "prompt"},
                    Bad{"PromptObject", R"({"prompt":{"a":1}})", 400, "invalid_argument: ", "prompt"},
                    Bad{"PromptNoTokens", R"({"prompt":[]})", 400, "invalid_argument: ", "prompt"},
                    Bad{"TokenNegative", R"({"prompt":[-1]})", 400, "invalid_argument: ", "prompt"},
                    Bad{"TokenBeyond", R"({"prompt":[4,128]})", 400, "invalid_argument: ", ""},
                    Bad{"TokenFraction", R"({"prompt":[1.5]})", 400, "invalid_argument: ", "prompt"},
                    Bad{"BeyondContext", R"({"prompt":")" + std::string(5000, 'x') + "\"}", 400,
                        "invalid_argument: ", "prompt"},
                    Bad{"AnswerBeyondContext", R"({"prompt":"abc","max_tokens":4096})", 400,
                        "invalid_argument: ", "max_tokens"},
                    Bad{"OtherModel", R"({"model":"gpt","prompt":"abc"})", 404, "not_found: ", "model"},
                    Bad{"NoTokens", with("n", "1").replace(with("n", "1").find("4"), 1, "0"), 400,
                        "invalid_argument: ", "max_tokens"},
                    Bad{"StreamText", with("stream", "\"yes\""), 400, "invalid_argument: ", "stream"},
                    Bad{"TemperatureText", with("temperature", "\"hot\""), 400,
                        "invalid_argument: ", "temperature"},
                    Bad{"TemperatureNegative", with("temperature", "-1"), 400, "invalid_argument: ", ""},
                    Bad{"StopNumber", with("stop", "5"), 400, "invalid_argument: ", "stop"},
                    Bad{"TooManyAnswers", with("n", "33"), 400, "invalid_argument: ", "n"},
                    Bad{"Echo", with("echo", "true"), 400, "unsupported: ", "echo"},
                    Bad{"TransferText", with("kv_transfer_params", "\"x\""), 400,
                        "invalid_argument: ", "kv_transfer_params"},
                    Bad{"TransferNoTicket", with("kv_transfer_params", R"({"do_remote_prefill":true})"), 400,
                        "invalid_argument: ", "kv_transfer_params"},
                    Bad{"TransferBoth",
                        with("kv_transfer_params", R"({"do_remote_prefill":true,"do_remote_decode":true})"),
                        400, "invalid_argument: ", "kv_transfer_params"},
                    Bad{"TransferEndpointNumber",
                        with("kv_transfer_params",
                             R"({"do_remote_prefill":true,"isthmus_ticket":"x","isthmus_endpoints":[7]})"),
                        400, "invalid_argument: ", "kv_transfer_params"},
                    Bad{"OnFailure", with("kv_transfer_params", R"({"isthmus_on_failure":"pray"})"), 400,
                        "invalid_argument: ", "kv_transfer_params"}),
    [](const auto& each) { return each.param.name; });

TEST_P(EveryBadBody, IsATypedErrorAtBothWorkersAndLeavesNothing) {
  Duo duo;
  for (Node* node : {&duo.p(), &duo.d()}) {
    const auto asking = duo.post(node->http, "/v1/completions", GetParam().body);
    const Answer& answer = duo.finish(*asking);
    EXPECT_EQ(answer.status, GetParam().status) << answer.body;
    EXPECT_THAT(answer.error(), StartsWith(GetParam().error));
    if (*GetParam().param != '\0') {
      EXPECT_THAT(answer.body, HasSubstr(std::string(R"("param":")") + GetParam().param + "\""))
          << answer.body;
    }
  }
  EXPECT_TRUE(duo.settled());
}

TEST(Input, ABodyOfTenMegabytesIsRefusedAndTheWorkerServesOn) {
  Duo duo;
  const std::string body = R"({"prompt":")" + std::string(std::size_t{10} << 20, 'x') + "\"}";
  for (Node* node : {&duo.p(), &duo.d()}) {
    const auto asking = duo.post(node->http, "/v1/completions", body);
    const Answer& answer = duo.finish(*asking);
    EXPECT_TRUE(answer.status == 413 || !answer.ended.ok())
        << answer.status;  // It may hang up before all is sent.
    EXPECT_EQ(duo.alone(*node, "abc", 4).text(), support::fake_answer("abc", 4));
  }
  EXPECT_TRUE(duo.settled());
}

TEST(Input, UnknownRoutesAndMethodsAreTypedErrors) {
  Duo duo;
  const std::pair<const char*, const char*> kWrong[] = {
      {"GET", "/v1/completions"},  {"DELETE", "/v1/completions"}, {"POST", "/v1/models"},   {"GET", "/"},
      {"POST", "/v2/completions"}, {"PUT", "/isthmus/cancel"},    {"GET", "/../etc/passwd"}};
  for (Node* node : {&duo.p(), &duo.d()}) {
    for (const auto& [method, path] : kWrong) {
      SCOPED_TRACE(testing::Message() << method << " " << path);
      const auto asking =
          duo.send(node->http, {.method = method, .path = path, .query = {}, .headers = {}, .body = {}});
      const Answer& answer = duo.finish(*asking);
      EXPECT_TRUE(answer.status == 404 || answer.status == 405 || answer.status == 400)
          << answer.status << answer.body;
      EXPECT_FALSE(answer.error().empty());
    }
  }
  EXPECT_TRUE(duo.settled());
}

TEST(Input, CancelsOfNothingAreHarmless) {
  Duo duo;
  for (const char* body : {R"({"request_id":"never"})", R"({"request_id":""})"}) {
    const auto asking = duo.post(duo.p().http, "/isthmus/cancel", body);
    EXPECT_THAT(duo.finish(*asking).body, HasSubstr("\"cancelled\":false"));
  }
  for (const char* body : {"", "{}", R"({"request_id":7})", "[]"}) {
    const auto asking = duo.post(duo.p().http, "/isthmus/cancel", body);
    EXPECT_EQ(duo.finish(*asking).status, 400) << body;
  }
  EXPECT_TRUE(duo.settled());
}

TEST(Input, APrefillUnderAnIdThatIsBeingPrefilledIsRefused) {
  Duo duo;
  const std::string prompt = prompt_of(300);
  const json::Value transfer = duo.prefill(prompt, "twice");
  const auto again = duo.ask_prefill(prompt_of(200), "twice");
  EXPECT_EQ(duo.finish(*again).status, 400);
  const auto asking = duo.ask_decode(prompt, transfer, 6);
  EXPECT_EQ(duo.finish(*asking).text(), support::fake_answer(prompt, 6)) << "the first one isn't harmed";
  EXPECT_TRUE(duo.settled());
}

TEST(Input, ATransferObjectOfNonsenseIsRecomputed) {
  Duo duo;
  const std::string prompt = prompt_of(40);
  for (const char* endpoint : {"nowhere", "127.0.0.1:1", "host.invalid:99999", ""}) {
    for (const char* ticket : {"x", "AAAA", "!!!!"}) {
      const json::Value transfer = json::object({{"do_remote_prefill", true},
                                                 {"isthmus_ticket", ticket},
                                                 {"isthmus_endpoints", json::array({endpoint})}});
      const auto asking = duo.ask_decode(prompt, transfer, 6);
      EXPECT_EQ(duo.finish(*asking).text(), support::fake_answer(prompt, 6)) << endpoint << " " << ticket;
    }
    json::Value transfer = duo.prefill(prompt, "real");
    transfer.set("isthmus_endpoints", json::array({endpoint}));
    const auto asking = duo.ask_decode(prompt, transfer, 6);
    EXPECT_EQ(duo.finish(*asking).text(), support::fake_answer(prompt, 6))
        << endpoint << " with a real ticket";
    duo.cancel("real");
  }
  EXPECT_TRUE(duo.settled());
}

}  // namespace
}  // namespace isthmus::faults
