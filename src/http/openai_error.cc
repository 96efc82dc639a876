// SPDX-License-Identifier: Apache-2.0
// OpenAI's error object from our codes, and back.
#include "http/openai_error.h"

#include <fmt/format.h>

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

Code code_of(int status) {
  switch (status) {
    case 408:
    case 504:
      return Code::kDeadlineExceeded;
    case 409:
      return Code::kIncompatible;
    case 429:
      return Code::kExhausted;
    case 499:
      return Code::kAborted;
    case 503:
      return Code::kUnavailable;
    default:
      return status >= 400 && status < 500 ? Code::kInvalidArgument : Code::kInternal;
  }
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

std::string message_of(std::string_view body) {
  constexpr std::size_t kShownMax = 300;
  std::string message(body.substr(0, kShownMax));
  if (const auto parsed = json::parse(body); parsed.ok()) {
    const json::Value* found = parsed->find("error.message");
    if (found == nullptr) found = parsed->find("reason");
    if (found != nullptr && found->as_string() != nullptr) message = found->as_string()->substr(0, kShownMax);
  }
  return message;
}

Error error_of(const Response& answer) {
  Error error{code_of(answer.status), fmt::format("{} (status {})", message_of(answer.body), answer.status)};
  if (error.code != Code::kUnavailable && error.code != Code::kInternal) return error;  // Says it already.
  const auto parsed = json::parse(answer.body);
  if (!parsed.ok()) return error;
  const json::Value* code = parsed->find("error.code");
  if (code == nullptr || code->as_string() == nullptr) return error;
  const auto named = code_from_name(*code->as_string());
  if (named.has_value() && *named != Code::kOk) error.code = *named;
  return error;
}

}  // namespace isthmus::http
