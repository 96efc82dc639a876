// SPDX-License-Identifier: Apache-2.0
// The two legs' bodies, byte for byte.
#include "router/shell/bodies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/core/core.h"
#include "router/core/test_fleet.h"

namespace isthmus::router::shell {
namespace {

using ::testing::HasSubstr;

JsonObjectText scanned(std::string_view text) {
  return JsonObjectText::scan(text).value();
}

TEST(Bodies, PrefillIsAskedForOneTokenWithoutStreaming) {
  EXPECT_EQ(prefill_body(scanned(
                R"({"model":"m", "prompt":"hi","stream":true,"stream_options":{"include_usage":true},)"
                R"("max_tokens":64,"min_tokens":3,"seed":7})")),
            R"({"model":"m", "prompt":"hi","stream":false,"max_tokens":1,"seed":7,)"
            R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}})");
  EXPECT_THAT(prefill_body(scanned(R"({"max_completion_tokens":9})")),
              HasSubstr(R"("max_completion_tokens":1)"));
  EXPECT_THAT(prefill_body(scanned(R"({})")), Not(HasSubstr("max_completion_tokens")));
}

TEST(Bodies, DecodeGetsTheClientsBytesAndTheTransferObject) {
  const std::string body =
      "{ \"messages\": [ {\"role\":\"user\",\"content\":\"h\\u00e4\"} ],\n \"stream\":true }";
  EXPECT_EQ(decode_body(scanned(body), R"({"isthmus_ticket":"t"})"),
            "{ \"messages\": [ {\"role\":\"user\",\"content\":\"h\\u00e4\"} ],\n \"stream\":true,"
            "\"kv_transfer_params\":{\"isthmus_ticket\":\"t\"} }");
  EXPECT_EQ(decode_body(scanned(body), {}), body);
}

TEST(Bodies, AClientsOwnTransferObjectNeverPasses) {
  const std::string body = R"({"kv_transfer_params":{"isthmus_ticket":"forged"},"prompt":"x"})";
  EXPECT_EQ(decode_body(scanned(body), {}), R"({"prompt":"x"})");
  EXPECT_EQ(decode_body(scanned(body), "{}"), R"({"kv_transfer_params":{},"prompt":"x"})");
  EXPECT_THAT(prefill_body(scanned(body)), Not(HasSubstr("forged")));
}

TEST(Bodies, TheTransferObjectIsRelayedVerbatimWithThePolicy) {
  const auto transfer = transfer_of(
      R"({"id":"x","kv_transfer_params": {"do_remote_prefill": true, "n": 9007199254740993, "é":null},)"
      R"("choices":[]})",
      fleet::OnFailure::kFail);
  ASSERT_TRUE(transfer.ok());
  EXPECT_EQ(*transfer,
            R"({"do_remote_prefill": true, "n": 9007199254740993, "é":null,"isthmus_on_failure":"fail"})");
}

TEST(Bodies, AnAnswerWithoutATransferObjectIsNoError) {
  EXPECT_EQ(*transfer_of(R"({"choices":[]})", fleet::OnFailure::kRecompute), std::nullopt);
  EXPECT_EQ(*transfer_of(R"({"kv_transfer_params":null})", fleet::OnFailure::kRecompute), std::nullopt);
  EXPECT_EQ(transfer_of(R"({"kv_transfer_params":"x"})", fleet::OnFailure::kRecompute).code(),
            Code::kMalformed);
  EXPECT_EQ(transfer_of("<html>", fleet::OnFailure::kRecompute).code(), Code::kMalformed);
}

TEST(Bodies, ReadsModelAndLoad) {
  const fleet::Fleet fleet = core::test_fleet("p1:prefill d1:decode");
  const auto inbound = read_inbound(scanned(R"({"prompt":"12345678901234567890","max_tokens":5})"), fleet);
  ASSERT_TRUE(inbound.ok());
  EXPECT_EQ(inbound->model, "m") << "the only model";
  EXPECT_EQ(inbound->prompt_tokens, 6u);
  EXPECT_EQ(inbound->output_tokens, 5u);
  EXPECT_EQ(read_inbound(scanned(R"({"model":3})"), fleet).error().detail, "'model' must be a string");
  EXPECT_EQ(read_inbound(scanned(R"({"model":"gpt"})"), fleet).error().detail, "no model 'gpt'; there are m");
  EXPECT_EQ(read_inbound(scanned(R"({"max_tokens":99999999})"), fleet)->output_tokens, 4096u);
}

}  // namespace
}  // namespace isthmus::router::shell
