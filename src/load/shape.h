// SPDX-License-Identifier: Apache-2.0
// What is asked, and when: arrivals, lengths and prompts of a seed. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/time.h"

namespace isthmus::load {

inline constexpr std::uint64_t kTokensMax = std::uint64_t{1} << 20;    // Of one prompt or answer.
inline constexpr std::uint64_t kRequestsMax = std::uint64_t{1} << 20;  // Of one run.

// Everything random about one run. Two runs of one seed and point draw alike; unlike points of a seed have
// nothing in common, so that no prompt of one is in a server's cache because of another.
struct Draws {
  std::uint64_t seed = 1;
  std::uint64_t point = 0;  // Below 2^56.
  enum class Of : std::uint8_t { kGap, kPrompt, kPrompt2, kOutput, kOutput2, kPair, kToken };
  double at(Of of, std::uint64_t index) const;  // [0, 1)
};

// Times from the start at which requests are due, in order: a Poisson process of `rate` arrivals a second
// within [0, window). invalid_argument if `rate` isn't above 0 or more than kRequestsMax are to be expected.
Result<std::vector<Duration>> poisson_arrivals(double rate, Duration window, const Draws& draws);

// How long one side of requests is, in tokens; 1 to kTokensMax.
class Distribution {
 public:
  // "fixed:N", "uniform:A-B" (both ends included), "lognormal:MEAN,SIGMA" (mean in tokens, SIGMA of the
  // natural logarithm). invalid_argument saying which forms there are.
  static Result<Distribution> parse(std::string_view text);
  // `u` and `v`: independent draws in [0, 1).
  std::uint64_t at(double u, double v) const;
  const std::string& text() const { return text_; }

 private:
  enum class Kind : std::uint8_t { kFixed, kUniform, kLognormal } kind_ = Kind::kFixed;
  std::uint64_t low_ = 1, high_ = 1;
  double mean_ = 1, sigma_ = 0;
  std::string text_;
};

struct Length {
  std::uint64_t prompt = 0, output = 0;  // Tokens.
  friend bool operator==(const Length&, const Length&) = default;
};

class Lengths {
 public:
  // Of two independent distributions.
  Lengths(Distribution prompt, Distribution output)
      : prompt_(std::move(prompt)), output_(std::move(output)) {}
  // Of a file's text: "PROMPT OUTPUT" a line, # begins a comment; requests take a line at random.
  // invalid_argument with the line's number.
  static Result<Lengths> of_pairs(std::string_view text);

  Length at(const Draws& draws, std::uint64_t request) const;
  std::string text() const;  // "fixed:256 > fixed:32"

 private:
  explicit Lengths(std::vector<Length> pairs) : pairs_(std::move(pairs)) {}
  std::optional<Distribution> prompt_, output_;
  std::vector<Length> pairs_;
};

// Token ids of a request's prompt as JSON, "[301,29999]". All within what vocabularies of 30,000 and more
// have as ordinary tokens.
std::string prompt_json(const Draws& draws, std::uint64_t request, std::uint64_t tokens);

}  // namespace isthmus::load
