// SPDX-License-Identifier: Apache-2.0
// One answer as it comes: when its tokens came, and how it ended. Every request gets exactly one outcome.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "http/message.h"
#include "load/shape.h"

namespace isthmus::load {

enum class Outcome : std::uint8_t {
  kOk,            // Whole, [DONE] at its end, and its usage is right.
  kRefused429,    // In OpenAI's error shape, with Retry-After.
  kRefused503,    // As that; Retry-After isn't asked for.
  kRefusedOther,  // Another status than 200, in OpenAI's error shape.
  kUntyped,       // Refused without a type that a client could act on.
  kFailed,        // A typed error within the stream.
  kBroken,        // The answer began and then ended early, or isn't server-sent events.
  kWrong,         // Ended well, but its usage isn't what was asked for and seen.
  kNoAnswer,      // No connection, or it ended before the answer began.
  kTimedOut,
  kUnsent,  // All connections were busy when it was due.
  kCut,     // Under way when the run was stopped.
};
inline constexpr std::size_t kOutcomeCount = 12;
// "ok", "429", "503", "other refusal", ...
std::string_view name(Outcome outcome);

using Counts = std::array<std::uint64_t, kOutcomeCount>;
inline std::uint64_t& count_of(Counts& counts, Outcome outcome) {
  return counts[static_cast<std::size_t>(outcome)];
}
inline std::uint64_t count_of(const Counts& counts, Outcome outcome) {
  return counts[static_cast<std::size_t>(outcome)];
}

struct Ending {
  Outcome outcome = Outcome::kBroken;
  std::string detail;  // What happened, for people; "" if ok.
};

// Fed in order: head, pieces, end. The usage must say that the prompt had as many tokens as were asked; an
// answer that ends for its length must have as many tokens as were asked, any other at most so many; a piece
// of text is one token or more.
class AnswerReader {
 public:
  explicit AnswerReader(const Length& asked) : asked_(asked) {}

  void head(int status, const http::Headers& headers);
  void piece(std::string_view bytes, Instant at);
  Ending end(const Status& status);

  std::optional<Instant> first_token, last_token;  // Pieces with text in them.
  std::vector<Duration> gaps;                      // Between two of those.
  std::uint64_t tokens = 0;                        // As the usage says.
  bool is_early = false;                           // It ended by itself, before the length asked for.
  Duration retry_after{0};                         // Of a refusal.

 private:
  void line(std::string_view text, Instant at);
  void event(std::string_view json, Instant at);
  void note_text(Instant at);
  Ending refusal() const;
  Ending whole() const;

  Length asked_;
  int status_ = 0;
  bool is_stream_ = false, has_retry_after_ = false;
  std::string body_;     // Of a refusal.
  std::string partial_;  // The line that isn't whole yet.
  std::string fault_;    // The first thing that isn't as it must be.
  std::string failure_;  // A typed error event.
  bool is_done_ = false;
  std::uint64_t pieces_ = 0;  // With text.
  std::string finish_reason_;
  std::optional<std::uint64_t> prompt_tokens_, completion_tokens_;
};

}  // namespace isthmus::load
