// SPDX-License-Identifier: Apache-2.0
// Sampling order: penalties, temperature, min_p, top_k, top_p, draw. Sums run in f64 in a fixed order.
#include "engine/api/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace isthmus::engine {
namespace {

// Keeps these draws apart from any other use of the same seed.
constexpr std::uint64_t kSamplingStream = 0x73616d706c65;  // "sample"

struct Candidate {
  TokenId token = 0;
  double weight = 0;  // exp((logit − largest) / temperature).
};

// Heavier first; equal weights by lower id.
bool precedes(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

Status in_range(std::string_view field, double value, double lowest, double highest) {
  if (value >= lowest && value <= highest) return ok_status();
  return Error{Code::kInvalidArgument,
               fmt::format("{} is {}; it must be from {} to {}", field, value, lowest, highest)};
}

// The logits with penalties applied; corrupt on what no sane model gives.
Result<std::vector<float>> penalised(std::span<const float> logits, const SamplingParams& params,
                                     std::span<const TokenId> generated) {
  std::vector<float> out(logits.begin(), logits.end());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isnan(out[i]) || out[i] == std::numeric_limits<float>::infinity()) {
      return Error{
          Code::kCorrupt,
          fmt::format("logits: {} at token {}; the sequence's state is not to be trusted", out[i], i)};
    }
  }
  const bool has_penalty = params.presence_penalty != 0 || params.frequency_penalty != 0;
  std::vector<std::uint32_t> counts(has_penalty ? out.size() : 0, 0u);
  for (const TokenId token : generated) {
    if (token < 0 || static_cast<std::size_t>(token) >= out.size()) {
      return Error{Code::kInvalidArgument,
                   fmt::format("generated token {} is not in a vocabulary of {}", token, out.size())};
    }
    if (has_penalty) ++counts[static_cast<std::size_t>(token)];
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    out[i] -= params.presence_penalty + static_cast<float>(counts[i]) * params.frequency_penalty;
  }
  return out;
}

std::vector<Candidate> weigh(std::span<const float> logits, float largest, const SamplingParams& params) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((static_cast<double>(logits[i]) - largest) / params.temperature);
    if (weight > 0 && weight >= params.min_p) candidates.push_back({static_cast<TokenId>(i), weight});
  }
  return candidates;
}

double total_weight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// Keeps the top_k heaviest, and of those the shortest run that holds top_p of their weight; heaviest first.
void truncate(std::vector<Candidate>& candidates, const SamplingParams& params) {
  const bool limits_count = params.top_k != 0 && params.top_k < candidates.size();
  if (!limits_count && params.top_p >= 1) return;
  if (limits_count) {
    const auto end = candidates.begin() + params.top_k;
    std::partial_sort(candidates.begin(), end, candidates.end(), precedes);
    candidates.erase(end, candidates.end());
  }
  const double wanted = params.top_p * total_weight(candidates);
  // A heap gives the heaviest in turn without sorting a whole vocabulary.
  const auto follows = [](const Candidate& a, const Candidate& b) { return precedes(b, a); };
  std::vector<Candidate> kept;
  std::make_heap(candidates.begin(), candidates.end(), follows);
  double held = 0;
  while (!candidates.empty() && (kept.empty() || held < wanted || params.top_p >= 1)) {
    std::pop_heap(candidates.begin(), candidates.end(), follows);
    kept.push_back(candidates.back());
    held += candidates.back().weight;
    candidates.pop_back();
  }
  candidates = std::move(kept);
}

}  // namespace

Status validate(const SamplingParams& params) {
  ISTHMUS_TRY(in_range("temperature", params.temperature, 0, 2));
  ISTHMUS_TRY(in_range("top_p", params.top_p, 0, 1));
  ISTHMUS_TRY(in_range("min_p", params.min_p, 0, 1));
  ISTHMUS_TRY(in_range("presence_penalty", params.presence_penalty, -2, 2));
  ISTHMUS_TRY(in_range("frequency_penalty", params.frequency_penalty, -2, 2));
  return ok_status();
}

Result<TokenId> sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t position,
                       std::span<const TokenId> generated) {
  ISTHMUS_TRY(validate(params));
  if (logits.empty()) return Error{Code::kInvalidArgument, "no logits to sample from"};
  ISTHMUS_TRY(const std::vector<float> adjusted, penalised(logits, params, generated));
  const auto largest = std::max_element(adjusted.begin(), adjusted.end());  // The first of equals.
  if (!std::isfinite(*largest)) {
    return Error{Code::kCorrupt, "logits: every one is -inf; the sequence's state is not to be trusted"};
  }
  if (params.temperature == 0) return static_cast<TokenId>(largest - adjusted.begin());

  std::vector<Candidate> candidates = weigh(adjusted, *largest, params);
  truncate(candidates, params);
  const double target = uniform_at(params.seed, kSamplingStream, position) * total_weight(candidates);
  double passed = 0;
  for (const Candidate& candidate : candidates) {
    passed += candidate.weight;
    if (passed > target) return candidate.token;
  }
  return candidates.back().token;  // Only rounding leads here: the target is below the sum.
}

Scores score(std::span<const float> logits, TokenId token, std::uint32_t top) {
  ISTHMUS_CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size());
  const double base = log_sum(logits);
  const auto of = [&](TokenId id) {
    return Score{id, static_cast<double>(logits[static_cast<std::size_t>(id)]) - base};
  };
  Scores scores{of(token), {}};
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<std::ptrdiff_t>(top, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](TokenId a, TokenId b) {
    const float left = logits[static_cast<std::size_t>(a)], right = logits[static_cast<std::size_t>(b)];
    return left != right ? left > right : a < b;
  });
  std::transform(order.begin(), end, std::back_inserter(scores.top), of);
  return scores;
}

TokenId likeliest(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double log_sum(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(total);
}

}  // namespace isthmus::engine
