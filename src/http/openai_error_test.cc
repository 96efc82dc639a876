// SPDX-License-Identifier: Apache-2.0
// Errors as they are answered, and as who asked reads them.
#include "http/openai_error.h"

#include <gtest/gtest.h>

#include <string>

namespace isthmus::http {
namespace {

Code code_of(int status, const std::string& body) {
  return error_of({.status = status, .headers = {}, .body = body}).code;
}

TEST(OpenAiError, HasTheShapeAndTheHeaders) {
  const Response response = error_response({Code::kExhausted, "queue full: 64 requests"});
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(header(response.headers, "retry-after"), "1");
  EXPECT_EQ(response.body, R"({"error":{"message":"queue full: 64 requests","type":"rate_limit_error",)"
                           R"("param":null,"code":"exhausted"}})");
  EXPECT_EQ(error_json({Code::kInvalidArgument, "'n' must be 1"}, "n"),
            R"({"error":{"message":"'n' must be 1","type":"invalid_request_error",)"
            R"("param":"n","code":"invalid_argument"}})");
  EXPECT_EQ(header(error_response({Code::kUnavailable, ""}).headers, "Retry-After"), "1");
  EXPECT_EQ(header(error_response({Code::kInternal, ""}).headers, "Retry-After"), "");
}

TEST(OpenAiError, IsReadByStatusThenByName) {
  EXPECT_EQ(code_of(400, "x"), Code::kInvalidArgument);
  EXPECT_EQ(code_of(404, "x"), Code::kInvalidArgument);
  EXPECT_EQ(code_of(409, "x"), Code::kIncompatible);
  EXPECT_EQ(code_of(429, "x"), Code::kExhausted);
  EXPECT_EQ(code_of(500, "x"), Code::kInternal);
  EXPECT_EQ(code_of(502, R"({"error":{"message":"m","code":"corrupt"}})"), Code::kCorrupt);
  EXPECT_EQ(code_of(503, R"({"error":{"message":"m","code":"exhausted"}})"), Code::kExhausted);
  EXPECT_EQ(code_of(503, "busy"), Code::kUnavailable);
  EXPECT_EQ(code_of(504, "x"), Code::kDeadlineExceeded);
  EXPECT_EQ(code_of(500, R"({"error":{"code":"ok"}})"), Code::kInternal);
}

TEST(OpenAiError, SaysWhatTheWorkerSaid) {
  EXPECT_EQ(error_of({503, {}, R"({"error":{"message":"KV pool is full"}})"}).detail,
            "KV pool is full (status 503)");
  EXPECT_EQ(error_of({500, {}, "<html>"}).detail, "<html> (status 500)");
}

// What one worker answers with, another reads as the same, but for faults of the request.
TEST(OpenAiError, IsReadAsItWasMade) {
  for (std::uint8_t number = 1; number < kCodeCount; ++number) {
    const Code code{number};
    const bool is_requests_own =
        code == Code::kInvalidArgument || code == Code::kMalformed || code == Code::kNotFound;
    const Code expected = is_requests_own            ? Code::kInvalidArgument
                          : code == Code::kCancelled ? Code::kAborted
                                                     : code;
    EXPECT_EQ(error_of(error_response({code, "why"})).code, expected) << name(code);
  }
}

}  // namespace
}  // namespace isthmus::http
