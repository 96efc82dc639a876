// SPDX-License-Identifier: Apache-2.0
// Arrivals, lengths and percentiles against what mathematics says of them.
#include "load/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "http/json.h"
#include "load/statistics.h"

namespace isthmus::load {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> gaps_of(const std::vector<Duration>& arrivals) {
  std::vector<double> gaps;
  Duration before{0};
  for (const Duration at : arrivals) {
    gaps.push_back(std::chrono::duration<double>(at - before).count());
    before = at;
  }
  return gaps;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double variance_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum / static_cast<double>(values.size() - 1);
}

TEST(Arrivals, GapsAreExponential) {
  constexpr double kRate = 50;
  const auto arrivals = poisson_arrivals(kRate, seconds(400), {.seed = 7});
  ASSERT_TRUE(arrivals.ok());
  ASSERT_TRUE(std::ranges::is_sorted(*arrivals));
  EXPECT_LT(arrivals->back(), Duration(seconds(400)));
  EXPECT_NEAR(static_cast<double>(arrivals->size()), 20'000, 3 * std::sqrt(20'000.0));
  const std::vector<double> gaps = gaps_of(*arrivals);
  EXPECT_NEAR(mean_of(gaps), 1 / kRate, 0.03 / kRate);
  EXPECT_NEAR(variance_of(gaps), 1 / (kRate * kRate), 0.06 / (kRate * kRate));
  for (const double times : {0.1, 0.5, 1.0, 2.0, 4.0}) {
    const auto above = std::ranges::count_if(gaps, [&](double gap) { return gap > times / kRate; });
    EXPECT_NEAR(static_cast<double>(above) / static_cast<double>(gaps.size()), std::exp(-times), 0.011);
  }
}

// Gaps of the right distribution could still follow each other in a wrong way.
TEST(Arrivals, CountsOfSecondsArePoissonAndGapsIndependent) {
  const auto arrivals = poisson_arrivals(20, seconds(2000), {.seed = 3});
  ASSERT_TRUE(arrivals.ok());
  std::vector<double> counts(2000);
  for (const Duration at : *arrivals)
    ++counts[static_cast<std::size_t>(std::chrono::floor<seconds>(at).count())];
  EXPECT_NEAR(variance_of(counts) / mean_of(counts), 1, 0.1);
  const std::vector<double> gaps = gaps_of(*arrivals);
  const double mean = mean_of(gaps);
  double together = 0;
  for (std::size_t i = 1; i < gaps.size(); ++i) together += (gaps[i] - mean) * (gaps[i - 1] - mean);
  EXPECT_NEAR(together / static_cast<double>(gaps.size()) / variance_of(gaps), 0, 0.02);
}

TEST(Arrivals, ASeedRepeatsAndPointsOfItDiffer) {
  const auto once = poisson_arrivals(10, seconds(20), {.seed = 1, .point = 2});
  ASSERT_TRUE(once.ok());
  EXPECT_EQ(*once, *poisson_arrivals(10, seconds(20), {.seed = 1, .point = 2}));
  EXPECT_NE(*once, *poisson_arrivals(10, seconds(20), {.seed = 1, .point = 3}));
  EXPECT_NE(*once, *poisson_arrivals(10, seconds(20), {.seed = 2, .point = 2}));
}

TEST(Arrivals, RatesThatCannotBeAreRefused) {
  for (const double rate : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e6})
    EXPECT_EQ(poisson_arrivals(rate, seconds(60), {}).code(), Code::kInvalidArgument) << rate;
}

TEST(Distribution, ReadsWhatItIsToDraw) {
  EXPECT_EQ(Distribution::parse("fixed:256")->at(0.9, 0.1), 256u);
  const auto uniform = *Distribution::parse("uniform:10-12");
  EXPECT_EQ(uniform.at(0, 0), 10u);
  EXPECT_EQ(uniform.at(0.34, 0), 11u);
  EXPECT_EQ(uniform.at(0.999999, 0), 12u);
  const auto lognormal = *Distribution::parse("lognormal:100,0");
  EXPECT_EQ(lognormal.at(0.3, 0.8), 100u);
  for (const char* text : {"", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:1e3", "fixed:9999999",
                           "uniform:5-4", "uniform:5", "uniform:0-4", "lognormal:100", "lognormal:0.5,1",
                           "lognormal:100,-1", "lognormal:100,nan", "zipf:2"}) {
    const auto refused = Distribution::parse(text);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(refused.error().detail, HasSubstr("uniform:A-B"));
  }
}

TEST(Distribution, DrawsHaveTheMeanAndSpreadThatTheyAreNamedFor) {
  constexpr std::uint64_t kDraws = 40'000;
  const auto lengths =
      Lengths(*Distribution::parse("lognormal:200,0.5"), *Distribution::parse("uniform:1-9"));
  std::vector<double> logs, prompts, outputs;
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const Length length = lengths.at({.seed = 5}, i);
    prompts.push_back(static_cast<double>(length.prompt));
    logs.push_back(std::log(prompts.back()));
    outputs.push_back(static_cast<double>(length.output));
    seen.insert(length.output);
  }
  EXPECT_NEAR(mean_of(prompts), 200, 2);
  EXPECT_NEAR(std::sqrt(variance_of(logs)), 0.5, 0.01);
  EXPECT_NEAR(mean_of(outputs), 5, 0.05);
  EXPECT_EQ(seen.size(), 9u);
}

TEST(Lengths, OfAFileAreItsPairs) {
  const auto lengths = Lengths::of_pairs("# prompt output\n100 5\n\n 2000   300 # long\r\n");
  ASSERT_TRUE(lengths.ok()) << lengths.error().text();
  std::uint64_t longs = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const Length length = lengths->at({}, i);
    longs += length == Length{2000, 300} ? 1 : 0;
    ASSERT_TRUE(length == (Length{2000, 300}) || length == (Length{100, 5}));
  }
  EXPECT_NEAR(static_cast<double>(longs), 500, 60);
  EXPECT_THAT(Lengths::of_pairs("1 2\n3\n").error().detail, HasSubstr("line 2"));
  EXPECT_THAT(Lengths::of_pairs("1 2\n3 0").error().detail, HasSubstr("line 2"));
  EXPECT_FALSE(Lengths::of_pairs("# nothing\n").ok());
}

TEST(Prompt, IsSoManyTokensAndNoTwoBeginAlike) {
  const Draws draws{.seed = 9};
  std::set<std::int64_t> firsts;
  for (std::uint64_t request = 0; request < 50; ++request) {
    const auto ids = json::parse(prompt_json(draws, request, 7));
    ASSERT_TRUE(ids.ok());
    ASSERT_EQ(ids->as_array()->size(), 7u);
    for (const json::Value& id : *ids->as_array()) {
      EXPECT_GE(*id.as_int(), 300);
      EXPECT_LT(*id.as_int(), 30'000);
    }
    firsts.insert(*ids->as_array()->front().as_int());
  }
  EXPECT_GT(firsts.size(), 45u);
  EXPECT_EQ(prompt_json(draws, 3, 9), prompt_json(draws, 3, 9));
}

TEST(Percentile, IsTheNearestRank) {
  const std::vector<double> five = {15, 20, 35, 40, 50};
  EXPECT_EQ(percentile(five, 5), 15);
  EXPECT_EQ(percentile(five, 30), 20);
  EXPECT_EQ(percentile(five, 40), 20);
  EXPECT_EQ(percentile(five, 50), 35);
  EXPECT_EQ(percentile(five, 100), 50);
  EXPECT_EQ(percentile({7}, 1), 7);
  std::vector<double> hundred(100);
  std::iota(hundred.begin(), hundred.end(), 1);
  for (const double percent : {1.0, 50.0, 90.0, 99.0, 100.0})
    EXPECT_EQ(percentile(hundred, percent), percent);
  EXPECT_EQ(percentile(hundred, 99.5), 100);
  const std::vector<double> ten = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(percentile(ten, 90), 9);
}

TEST(Spread, IsOfUnsortedValues) {
  const Spread spread = spread_of({50, 15, 40, 20, 35});
  EXPECT_EQ(spread.count, 5u);
  EXPECT_EQ(spread.mean, 32);
  EXPECT_EQ(spread.p50, 35);
  EXPECT_EQ(spread.p90, 50);
  EXPECT_EQ(spread.max, 50);
  EXPECT_EQ(spread_of({}).count, 0u);
  EXPECT_THAT(quantiles({4, 1, 3, 2}, 4), ElementsAre(1, 1, 2, 3, 4));
  EXPECT_TRUE(quantiles({}, 4).empty());
}

}  // namespace
}  // namespace isthmus::load
