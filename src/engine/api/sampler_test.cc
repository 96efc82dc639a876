// SPDX-License-Identifier: Apache-2.0
// Sampling: determinism, truncation edges, refusals.
#include "engine/api/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace isthmus::engine {
namespace {

constexpr std::array<float, 5> kLogits{1.0f, 3.0f, 3.0f, -2.0f, 0.5f};

std::map<TokenId, int> histogram(const SamplingParams& params, std::span<const float> logits, int draws) {
  std::map<TokenId, int> counts;
  for (int position = 0; position < draws; ++position) {
    ++counts[sample(logits, params, static_cast<std::uint64_t>(position), {}).value()];
  }
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualLogits) {
  EXPECT_EQ(sample(kLogits, {.temperature = 0}, 7, {}).value(), 1);
}

TEST(Sampler, ADrawDependsOnSeedAndPositionAlone) {
  std::vector<TokenId> first, second, other_seed;
  for (std::uint64_t position = 0; position < 64; ++position) {
    first.push_back(sample(kLogits, {.seed = 5}, position, {}).value());
    second.push_back(sample(kLogits, {.seed = 5}, position, {}).value());
    other_seed.push_back(sample(kLogits, {.seed = 6}, position, {}).value());
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other_seed);
}

TEST(Sampler, DrawsAreTheSameInEveryProcessAndBuild) {
  std::vector<TokenId> drawn;
  drawn.reserve(12);
  for (std::uint64_t position = 0; position < 12; ++position) {
    drawn.push_back(sample(kLogits, {.temperature = 2.0f, .seed = 42}, position, {}).value());
  }
  EXPECT_EQ(drawn, (std::vector<TokenId>{2, 1, 3, 1, 1, 1, 2, 2, 1, 2, 3, 2}));
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const auto counts = histogram({.seed = 11}, kLogits, 20'000);
  for (const auto& [token, count] : counts) {
    const double expected = std::exp(score(kLogits, token, 0).drawn.log_probability);
    EXPECT_NEAR(count / 20'000.0, expected, 0.015) << token;
  }
  EXPECT_EQ(counts.size(), kLogits.size());
}

TEST(Sampler, LowTemperatureSharpensAndHighTemperatureFlattens) {
  EXPECT_LT(histogram({.temperature = 0.2f}, kLogits, 4'000).size(), 4u);
  const auto flat = histogram({.temperature = 2.0f}, kLogits, 4'000);
  EXPECT_GT(flat.at(0), 4'000 * 0.09);
}

TEST(Sampler, TopKOneIsGreedyAtAnyTemperature) {
  const auto counts = histogram({.temperature = 2.0f, .top_k = 1}, kLogits, 200);
  EXPECT_EQ(counts, (std::map<TokenId, int>{{1, 200}}));
}

TEST(Sampler, TopKCutsTiesByLowerId) {
  const std::array<float, 4> equal{0, 0, 0, 0};
  const auto counts = histogram({.top_k = 2}, equal, 500);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(0) && counts.contains(1));
}

TEST(Sampler, TopKBeyondTheVocabularyKeepsAll) {
  EXPECT_EQ(histogram({.temperature = 2.0f, .top_k = 500}, kLogits, 4'000).size(), kLogits.size());
}

TEST(Sampler, TopPZeroKeepsExactlyOneToken) {
  EXPECT_EQ(histogram({.top_p = 0.0f}, kLogits, 200), (std::map<TokenId, int>{{1, 200}}));
}

TEST(Sampler, TopPKeepsTheShortestRunThatReachesIt) {
  const std::array<float, 3> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_EQ(histogram({.top_p = 0.49f}, logits, 500).size(), 1u);
  EXPECT_EQ(histogram({.top_p = 0.79f}, logits, 500).size(), 2u);
  EXPECT_EQ(histogram({.top_p = 0.81f}, logits, 500).size(), 3u);
}

TEST(Sampler, TopPCountsTheWeightThatTopKLeft) {
  // Of {0.5, 0.3}, 0.6 of the weight is 0.48: the first token alone. Of all three it would be two tokens.
  const std::array<float, 3> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_EQ(histogram({.top_p = 0.6f, .top_k = 2}, logits, 500).size(), 1u);
  EXPECT_EQ(histogram({.top_p = 0.6f}, logits, 500).size(), 2u);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheLikeliest) {
  const std::array<float, 3> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_EQ(histogram({.min_p = 0.5f}, logits, 500).size(), 2u);  // 0.3/0.5 stays, 0.2/0.5 goes.
  EXPECT_EQ(histogram({.min_p = 1.0f}, logits, 500).size(), 1u);
}

TEST(Sampler, PenaltiesLowerGeneratedTokens) {
  const std::array<TokenId, 3> generated{1, 1, 2};
  EXPECT_EQ(sample(kLogits, {.temperature = 0, .frequency_penalty = 1.0f}, 0, generated).value(), 2);
  EXPECT_EQ(
      sample(kLogits, {.temperature = 0, .presence_penalty = 2.0f}, 0, std::span(generated).first(2)).value(),
      2);
  EXPECT_EQ(
      sample(kLogits, {.temperature = 0, .presence_penalty = 2.0f, .frequency_penalty = 2.0f}, 0, generated)
          .value(),
      0);
}

TEST(Sampler, NanAndInfiniteLogitsAreCorrupt) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits(kLogits.begin(), kLogits.end());
    logits[3] = bad;
    for (const float temperature : {0.0f, 1.0f}) {
      const auto drawn = sample(logits, {.temperature = temperature}, 0, {});
      ASSERT_FALSE(drawn.ok());
      EXPECT_EQ(drawn.code(), Code::kCorrupt);
      EXPECT_NE(drawn.error().detail.find("token 3"), std::string::npos) << drawn.error().detail;
    }
  }
}

TEST(Sampler, MaskedLogitsAreNeverDrawnAndAllMaskedIsCorrupt) {
  const float masked = -std::numeric_limits<float>::infinity();
  const std::array<float, 3> logits{masked, 0, masked};
  EXPECT_EQ(histogram({.temperature = 2.0f}, logits, 100), (std::map<TokenId, int>{{1, 100}}));
  const std::array<float, 2> all{masked, masked};
  EXPECT_EQ(sample(all, {}, 0, {}).code(), Code::kCorrupt);
}

TEST(Sampler, EachFieldOutOfRangeIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<SamplingParams, std::string>> cases{
      {{.temperature = -0.1f}, "temperature"},
      {{.temperature = 2.1f}, "temperature"},
      {{.temperature = nan}, "temperature"},
      {{.top_p = -0.1f}, "top_p"},
      {{.top_p = 1.1f}, "top_p"},
      {{.min_p = 2}, "min_p"},
      {{.presence_penalty = 3}, "presence_penalty"},
      {{.frequency_penalty = -3}, "frequency_penalty"}};
  for (const auto& [params, field] : cases) {
    const Status status = validate(params);
    ASSERT_FALSE(status.ok()) << field;
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.error().detail.rfind(field, 0), 0u) << status.error().detail;
    EXPECT_EQ(sample(kLogits, params, 0, {}).code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(validate({}).ok());
}

TEST(Sampler, TokensOutsideTheVocabularyAreRefused) {
  const std::array<TokenId, 1> outside{5}, negative{-1};
  EXPECT_EQ(sample(kLogits, {}, 0, outside).code(), Code::kInvalidArgument);
  EXPECT_EQ(sample(kLogits, {}, 0, negative).code(), Code::kInvalidArgument);
  EXPECT_EQ(sample({}, {}, 0, {}).code(), Code::kInvalidArgument);
}

TEST(Sampler, LogProbabilitiesSumToOneAndTheLikeliestComeFirst) {
  const Scores all = score(kLogits, 3, 9);
  ASSERT_EQ(all.top.size(), kLogits.size());
  double total = 0;
  for (std::size_t i = 0; i < all.top.size(); ++i) {
    total += std::exp(all.top[i].log_probability);
    if (i > 0) EXPECT_GE(all.top[i - 1].log_probability, all.top[i].log_probability);
    EXPECT_EQ(score(kLogits, all.top[i].token, 0).drawn.log_probability, all.top[i].log_probability);
  }
  EXPECT_NEAR(total, 1.0, 1e-12);
  EXPECT_EQ(all.drawn.token, 3);
  const std::array<float, 3> equal{1, 2, 2};
  const Scores two = score(equal, 0, 2);
  EXPECT_EQ(two.top[0].token, 1);
  EXPECT_EQ(two.top[1].token, 2);
  EXPECT_TRUE(score(equal, 0, 0).top.empty());
}

}  // namespace
}  // namespace isthmus::engine
