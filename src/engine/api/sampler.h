// SPDX-License-Identifier: Apache-2.0
// Sampling without state: the token depends on logits, parameters, seed, position and the token history
// alone, so any worker draws the same one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"

namespace isthmus::engine {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy; ties go to the lowest token id.
  float top_p = 1.0f;
  std::uint32_t top_k = 0;  // 0: all.
  float min_p = 0.0f;
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::uint64_t seed = 0;
};

// invalid_argument, naming the OpenAI field, for a value out of range.
Status validate(const SamplingParams& params);

// `position`: absolute position of the token to be drawn. `generated`: tokens generated so far (for
// penalties). Errors: corrupt if the logits hold a NaN (a garbage state must not become text).
Result<TokenId> sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t position,
                       std::span<const TokenId> generated);

// How likely tokens are by the model alone: log softmax of the logits in f64, before penalties and
// temperature.
struct Score {
  TokenId token = 0;
  double log_probability = 0;
};
struct Scores {
  Score drawn;
  std::vector<Score> top;  // The likeliest, best first; equal ones by lower id.
};
// `token` must be one of the row, and `top` is cut to its length.
Scores score(std::span<const float> logits, TokenId token, std::uint32_t top);

// The largest logit's token, the first of equals. `logits` isn't empty, here and below.
TokenId likeliest(std::span<const float> logits);
// Log of the sum of exponentials: a logit less this is its token's log likelihood.
double log_sum(std::span<const float> logits);

}  // namespace isthmus::engine
