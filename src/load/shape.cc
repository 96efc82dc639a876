// SPDX-License-Identifier: Apache-2.0
// Inverse transforms of uniform draws.
#include "load/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/rng.h"

namespace isthmus::load {
namespace {

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> tokens_of(std::string_view text) {
  const auto value = number<std::uint64_t>(text);
  return value && *value >= 1 && *value <= kTokensMax ? value : std::nullopt;
}

// The parts before and after the first `mark`; nothing without one.
std::optional<std::pair<std::string_view, std::string_view>> split(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + 1));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

double Draws::at(Of of, std::uint64_t index) const {
  return uniform_at(seed, point << 8 | static_cast<std::uint64_t>(of), index);
}

Result<std::vector<Duration>> poisson_arrivals(double rate, Duration window, const Draws& draws) {
  const double seconds = std::chrono::duration<double>(window).count();
  if (!(rate > 0) || !std::isfinite(rate)) return Error{Code::kInvalidArgument, "a rate must be above 0"};
  if (rate * seconds > static_cast<double>(kRequestsMax) / 2) {
    return Error{Code::kInvalidArgument, fmt::format("{:g} requests/s for {:g} s are more than {} requests",
                                                     rate, seconds, kRequestsMax / 2)};
  }
  std::vector<Duration> arrivals;
  double at = 0;
  for (std::uint64_t i = 0; i < kRequestsMax; ++i) {
    at -= std::log1p(-draws.at(Draws::Of::kGap, i)) / rate;  // An exponential gap.
    if (at >= seconds) break;
    arrivals.push_back(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(at)));
  }
  return arrivals;
}

Result<Distribution> Distribution::parse(std::string_view text) {
  const Error bad{Code::kInvalidArgument,
                  fmt::format("'{}' isn't fixed:N, uniform:A-B or lognormal:MEAN,SIGMA of 1 to {} tokens",
                              text.substr(0, 64), kTokensMax)};
  const auto named = split(text, ':');
  if (!named) return bad;
  Distribution made;
  made.text_ = text;
  if (named->first == "fixed") {
    const auto tokens = tokens_of(named->second);
    if (!tokens) return bad;
    made.low_ = made.high_ = *tokens;
    return made;
  }
  if (named->first == "uniform") {
    const auto ends = split(named->second, '-');
    const auto low = ends ? tokens_of(ends->first) : std::nullopt;
    const auto high = ends ? tokens_of(ends->second) : std::nullopt;
    if (!low || !high || *low > *high) return bad;
    made.kind_ = Kind::kUniform;
    made.low_ = *low;
    made.high_ = *high;
    return made;
  }
  const auto pair = split(named->second, ',');
  const auto mean = pair ? number<double>(pair->first) : std::nullopt;
  const auto sigma = pair ? number<double>(pair->second) : std::nullopt;
  constexpr double kSigmaMax = 5;
  const bool is_sound = mean && sigma && *mean >= 1 && *mean <= static_cast<double>(kTokensMax) &&
                        *sigma >= 0 && *sigma <= kSigmaMax;
  if (named->first != "lognormal" || !is_sound) return bad;
  made.kind_ = Kind::kLognormal;
  made.mean_ = *mean;
  made.sigma_ = *sigma;
  return made;
}

std::uint64_t Distribution::at(double u, double v) const {
  if (kind_ != Kind::kLognormal) {
    const auto span = static_cast<double>(high_ - low_ + 1);
    return low_ + std::min(static_cast<std::uint64_t>(u * span), high_ - low_);
  }
  // Box and Muller's normal draw; the mean of the lognormal is exp(mu + sigma^2 / 2).
  const double normal = std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v);
  const double mu = std::log(mean_) - sigma_ * sigma_ / 2;
  const double tokens = std::round(std::exp(mu + sigma_ * normal));
  return static_cast<std::uint64_t>(std::clamp(tokens, 1.0, static_cast<double>(kTokensMax)));
}

Result<Lengths> Lengths::of_pairs(std::string_view text) {
  std::vector<Length> pairs;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view whole = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view row = trimmed(whole.substr(0, whole.find('#')));
    if (row.empty()) continue;
    const auto parts = split(row, ' ');
    const auto prompt = parts ? tokens_of(parts->first) : std::nullopt;
    const auto output = parts ? tokens_of(trimmed(parts->second)) : std::nullopt;
    if (!prompt || !output || pairs.size() >= kRequestsMax) {
      return Error{Code::kInvalidArgument,
                   fmt::format("line {}: '{}' isn't PROMPT OUTPUT, two numbers from 1 to {}", line,
                               row.substr(0, 64), kTokensMax)};
    }
    pairs.push_back({*prompt, *output});
  }
  if (pairs.empty()) return Error{Code::kInvalidArgument, "it holds no line PROMPT OUTPUT"};
  return Lengths(std::move(pairs));
}

Length Lengths::at(const Draws& draws, std::uint64_t request) const {
  using Of = Draws::Of;
  if (!pairs_.empty()) {
    const double at = draws.at(Of::kPair, request) * static_cast<double>(pairs_.size());
    return pairs_[std::min(static_cast<std::size_t>(at), pairs_.size() - 1)];
  }
  return {prompt_->at(draws.at(Of::kPrompt, request), draws.at(Of::kPrompt2, request)),
          output_->at(draws.at(Of::kOutput, request), draws.at(Of::kOutput2, request))};
}

std::string Lengths::text() const {
  if (!pairs_.empty()) return fmt::format("{} pairs", pairs_.size());
  return fmt::format("{} > {}", prompt_->text(), output_->text());
}

std::string prompt_json(const Draws& draws, std::uint64_t request, std::uint64_t tokens) {
  constexpr double kFirst = 300, kCount = 29'700;
  std::string text = "[";
  for (std::uint64_t i = 0; i < tokens; ++i) {
    const double u = draws.at(Draws::Of::kToken, request * kTokensMax + i);
    fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : ",",
                   static_cast<std::uint32_t>(kFirst + u * kCount));
  }
  return text + "]";
}

}  // namespace isthmus::load
