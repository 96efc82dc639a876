// SPDX-License-Identifier: Apache-2.0
// What the answers of workers that fail make of a trial. tests/canary tries real workers.
#include "doctor/pair.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "http/openai_error.h"
#include "http/server.h"

namespace isthmus::doctor {
namespace {

// Both workers at one address: they are ready, tokenize, give a ticket, and say `verdict`.
Result<PairReport> report_of(const std::function<http::Response()>& verdict) {
  net::Loop loop;
  auto server =
      http::serve(loop, {.host = "127.0.0.1", .port = 0}, {}, [&](std::shared_ptr<http::Exchange> exchange) {
        const std::string path = exchange->request().path;
        const auto say = [&](std::string body) { exchange->send({.status = 200, .body = std::move(body)}); };
        if (path == "/ready") return say(R"({"storage":"s"})");
        if (path == "/tokenize") return say(R"({"tokens":[1,2,3]})");
        if (path == "/v1/completions") return say(R"({"kv_transfer_params":{"isthmus_ticket":"t"}})");
        exchange->send(verdict());
      });
  if (!server.ok()) return server.error();
  Result<PairReport> report = Error{Code::kInternal, "not tried"};
  const net::Endpoint at = (*server)->endpoint();
  const PairTrial trial(loop, {.prefill = at, .decode = at}, [&](Result<PairReport> result) {
    report = std::move(result);
    loop.stop();
  });
  loop.run();
  return report;
}

TEST(PairTrial, TakesWhatWouldBeTheSameAgainForAVerdict) {
  for (const Code code : {Code::kIncompatible, Code::kUnsupported, Code::kInvalidArgument}) {
    const auto report = report_of([&] { return http::error_response({code, "why"}); });
    ASSERT_TRUE(report.ok()) << report.error().text();
    EXPECT_FALSE(report->passed);
    ASSERT_EQ(report->faults.size(), 1u);
    EXPECT_NE(report->faults[0].find("answers /isthmus/canary with why"), std::string::npos)
        << report->faults[0];
  }
}

TEST(PairTrial, TriesAgainWhatAWorkerFailedAt) {
  for (const Code code : {Code::kExhausted, Code::kUnavailable, Code::kAborted, Code::kDeadlineExceeded,
                          Code::kCorrupt, Code::kInternal}) {
    EXPECT_EQ(report_of([&] { return http::error_response({code, "why"}); }).code(), code);
  }
  EXPECT_EQ(report_of([] { return http::Response{.status = 500, .body = "<html>"}; }).code(),
            Code::kInternal);
  EXPECT_EQ(report_of([] { return http::Response{.status = 404, .body = ""}; }).code(), Code::kMalformed)
      << "it isn't a worker";
}

}  // namespace
}  // namespace isthmus::doctor
