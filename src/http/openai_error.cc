// SPDX-License-Identifier: Apache-2.0
// OpenAI's error object from our codes.
#include "http/openai_error.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "http/json.h"

namespace isthmus::http {
namespace {

std::string_view type(Code code) {
  switch (code) {
    case Code::kOk:
    case Code::kInvalidArgument:
    case Code::kMalformed:
    case Code::kNotFound:
    case Code::kUnsupported:
      return "invalid_request_error";
    case Code::kExhausted:
      return "rate_limit_error";
    case Code::kUnavailable:
    case Code::kAborted:
      return "service_unavailable";
    case Code::kDeadlineExceeded:
      return "timeout_error";
    case Code::kCancelled:
      return "request_cancelled";
    case Code::kIncompatible:
    case Code::kCorrupt:
    case Code::kInternal:
      return "server_error";
  }
  return "server_error";
}

}  // namespace

std::string error_json(const Error& error, std::string_view param) {
  const json::Value named = param.empty() ? json::Value() : json::Value(param);
  return json::object({{"error", json::object({{"message", error.detail},
                                               {"type", type(error.code)},
                                               {"param", named},
                                               {"code", name(error.code)}})}})
      .dump();
}

Response error_response(const Error& error, std::string_view param, Duration retry_after) {
  Response response{.status = http_status(error.code),
                    .headers = {{"Content-Type", "application/json"}},
                    .body = error_json(error, param)};
  const bool is_passing = error.code == Code::kExhausted || error.code == Code::kUnavailable;
  // Without a hint the shortest that the header can say: queues here turn over in less.
  const auto seconds =
      std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::seconds>(retry_after).count());
  if (is_passing) response.headers.emplace_back("Retry-After", std::to_string(seconds));
  return response;
}

}  // namespace isthmus::http
