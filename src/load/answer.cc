// SPDX-License-Identifier: Apache-2.0
// Server-sent events of OpenAI's completions.
#include "load/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "http/json.h"

namespace isthmus::load {
namespace {

constexpr std::size_t kLineBytesMax = std::size_t{1} << 20;
constexpr std::size_t kBodyBytesMax = std::size_t{64} << 10;
constexpr int kTooManyRequests = 429, kServiceUnavailable = 503;

std::string text_at(const json::Value& value, std::string_view path) {
  const json::Value* found = value.find(path);
  const std::string* text = found != nullptr ? found->as_string() : nullptr;
  return text != nullptr ? *text : "";
}

// "exhausted: too many requests", or "" if `value` isn't an error in OpenAI's shape.
std::string error_text(const json::Value& value) {
  const std::string message = text_at(value, "error.message"), type = text_at(value, "error.type");
  if (message.empty() || type.empty()) return "";
  const std::string code = text_at(value, "error.code");
  return fmt::format("{}: {}", code.empty() ? type : code, message);
}

}  // namespace

std::string_view name(Outcome outcome) {
  constexpr std::array<std::string_view, kOutcomeCount> kNames = {
      "ok",     "429",   "503",       "other refusal", "untyped refusal", "failed in stream",
      "broken", "wrong", "no answer", "timed out",     "unsent",          "cut short"};
  return kNames.at(static_cast<std::size_t>(outcome));
}

void AnswerReader::head(int status, const http::Headers& headers) {
  status_ = status;
  is_stream_ = status == 200 && http::header(headers, "Content-Type").starts_with("text/event-stream");
  const std::string_view text = http::header(headers, "Retry-After");
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  constexpr std::int64_t kHourSeconds = 3600;
  has_retry_after_ = error == std::errc() && end == text.data() + text.size() && seconds >= 0;
  if (has_retry_after_) retry_after = std::chrono::seconds(std::min(seconds, kHourSeconds));
}

void AnswerReader::piece(std::string_view bytes, Instant at) {
  if (!is_stream_) {
    body_ += bytes.substr(0, kBodyBytesMax - std::min(kBodyBytesMax, body_.size()));
    return;
  }
  while (!bytes.empty() && fault_.empty()) {
    const std::size_t end = bytes.find('\n');
    partial_ += bytes.substr(0, end);
    if (partial_.size() > kLineBytesMax) fault_ = fmt::format("a line of more than {} bytes", kLineBytesMax);
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    std::string whole = std::exchange(partial_, {});
    if (whole.ends_with('\r')) whole.pop_back();
    line(whole, at);
  }
}

void AnswerReader::line(std::string_view text, Instant at) {
  constexpr std::string_view kData = "data:";
  if (!text.starts_with(kData)) return;  // Blank lines, comments and names of events.
  text.remove_prefix(kData.size());
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (is_done_) {
    fault_ = "an event after [DONE]";
  } else if (text == "[DONE]") {
    is_done_ = true;
  } else {
    event(text, at);
  }
}

void AnswerReader::event(std::string_view json, Instant at) {
  const Result<json::Value> value = json::parse(json);
  if (!value.ok()) {
    fault_ = "an event isn't JSON: " + value.error().detail;
    return;
  }
  if (value->member("error") != nullptr) {
    failure_ = error_text(*value);
    if (failure_.empty()) fault_ = "an error event without message and type";
    return;
  }
  const std::string reason = text_at(*value, "choices.0.finish_reason");
  if (!text_at(*value, "choices.0.text").empty()) note_text(at);
  if (!reason.empty()) {
    finish_reason_ = reason;
    if (!first_token) first_token = last_token = at;  // Tokens that show as no text, or none at all.
  }
  for (const auto& [path, into] : {std::pair("usage.prompt_tokens", &prompt_tokens_),
                                   {"usage.completion_tokens", &completion_tokens_}}) {
    const json::Value* found = value->find(path);
    if (found != nullptr) *into = found->as_uint();
  }
  tokens = completion_tokens_.value_or(pieces_);
}

void AnswerReader::note_text(Instant at) {
  ++pieces_;
  if (last_token) gaps.push_back(at - *last_token);
  if (!first_token) first_token = at;
  last_token = at;
}

Ending AnswerReader::refusal() const {
  const Result<json::Value> value = json::parse(body_);
  const std::string text = value.ok() ? error_text(*value) : "";
  if (text.empty()) return {Outcome::kUntyped, fmt::format("{} without an error in OpenAI's shape", status_)};
  if (status_ == kTooManyRequests && !has_retry_after_) return {Outcome::kUntyped, "429 without Retry-After"};
  const std::string detail = fmt::format("{} {}", status_, text);
  if (status_ == kTooManyRequests) return {Outcome::kRefused429, detail};
  if (status_ == kServiceUnavailable) return {Outcome::kRefused503, detail};
  return {Outcome::kRefusedOther, detail};
}

// The stream has ended with [DONE] and without an error.
Ending AnswerReader::whole() const {
  const auto wrong = [](std::string detail) { return Ending{Outcome::kWrong, std::move(detail)}; };
  if (!prompt_tokens_ || !completion_tokens_) return wrong("no usage in the stream");
  if (*prompt_tokens_ != asked_.prompt)
    return wrong(fmt::format("{} prompt tokens were asked, usage says {}", asked_.prompt, *prompt_tokens_));
  if (pieces_ > *completion_tokens_)
    return wrong(fmt::format("{} pieces of text, usage says {} tokens", pieces_, *completion_tokens_));
  const bool has_length = finish_reason_ == "length" ? *completion_tokens_ == asked_.output
                                                     : *completion_tokens_ <= asked_.output;
  if (!has_length || finish_reason_.empty()) {
    return wrong(fmt::format("{} tokens were asked, usage says {} with finish_reason '{}'", asked_.output,
                             *completion_tokens_, finish_reason_));
  }
  return {Outcome::kOk, ""};
}

Ending AnswerReader::end(const Status& status) {
  if (!status.ok()) {
    if (status.code() == Code::kDeadlineExceeded) return {Outcome::kTimedOut, status.error().detail};
    return {status_ == 0 ? Outcome::kNoAnswer : Outcome::kBroken, status.error().detail};
  }
  if (status_ != 200) return refusal();
  if (!is_stream_) return {Outcome::kBroken, "200 without server-sent events"};
  if (!fault_.empty()) return {Outcome::kBroken, fault_};
  if (!failure_.empty()) return {Outcome::kFailed, failure_};
  if (!is_done_) return {Outcome::kBroken, "the stream ended without [DONE]"};
  const Ending ending = whole();
  is_early = ending.outcome == Outcome::kOk && *completion_tokens_ < asked_.output;
  return ending;
}

}  // namespace isthmus::load
