// SPDX-License-Identifier: Apache-2.0
// Means, their intervals, and the record as the fleet reads it.
#include "qualify/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "fleet/fleet.h"

namespace isthmus::qualify {
namespace {

Measured prompt_with(double kl_pair, double kl_engines) {
  return {.tokens = 10,
          .surprise_alone = std::log(2.0),
          .pair = {.kl = kl_pair, .first_kl = 0.5, .agreement = 1, .surprise = std::log(3.0)},
          .engines = {.kl = kl_engines, .first_kl = 0.5, .agreement = 0.5, .surprise = 0}};
}

TEST(Summary, OfEqualPromptsIsTheirFigureWithoutAnInterval) {
  const std::vector<Measured> prompts(7, prompt_with(0.25, 0.5));
  const Summary summary = summarise(prompts);
  EXPECT_EQ(summary.prompts, 7u);
  for (const double bound : {summary.ratio.mean, summary.ratio.low, summary.ratio.high})
    EXPECT_DOUBLE_EQ(bound, 0.5);
  EXPECT_DOUBLE_EQ(summary.pair.kl.high, 0.25);
  EXPECT_DOUBLE_EQ(summary.engines.agreement.low, 0.5);
  EXPECT_NEAR(summary.perplexity_alone, 2, 1e-12);
  EXPECT_NEAR(summary.pair.perplexity_ratio.mean, 3, 1e-12);
  EXPECT_TRUE(summary.is_within_bar);
}

TEST(Summary, TheBarIsOfMeans) {
  EXPECT_TRUE(summarise(std::vector{prompt_with(3, 1), prompt_with(0, 1)}).is_within_bar);
  EXPECT_FALSE(summarise(std::vector{prompt_with(3, 1), prompt_with(0.1, 1)}).is_within_bar);
  EXPECT_TRUE(summarise(std::vector{prompt_with(0, 0)}).is_within_bar) << "nobody differs";
  const Summary from_nothing = summarise(std::vector{prompt_with(1e-9, 0)});
  EXPECT_FALSE(from_nothing.is_within_bar) << "the pair alone differs";
  EXPECT_EQ(from_nothing.ratio.mean, 1e9);
}

// Of 0, 1, …, 99 the mean's standard error is 2.9: the percentiles of its draws lie near 1.96 of that.
TEST(Estimate, IntervalIsThatOfTheMean) {
  std::vector<Measured> prompts;
  for (int i = 0; i < 100; ++i) prompts.push_back(prompt_with(i, 1));
  const Estimate kl = estimate(prompts, [](const Measured& one) { return one.pair.kl; });
  EXPECT_DOUBLE_EQ(kl.mean, 49.5);
  EXPECT_NEAR(kl.low, 49.5 - 1.96 * 2.9, 1);
  EXPECT_NEAR(kl.high, 49.5 + 1.96 * 2.9, 1);
  const Estimate again = estimate(prompts, [](const Measured& one) { return one.pair.kl; });
  EXPECT_EQ(kl.low, again.low);
}

// A draw takes both figures of a prompt: prompts that differ by a hundred times in both tell the ratio
// exactly.
TEST(Estimate, IntervalOfTheRatioIsOverPromptsAsTheyAre) {
  std::vector<Measured> prompts;
  for (int i = 1; i <= 100; ++i) prompts.push_back(prompt_with(1.25 * i, i));
  const Summary even = summarise(prompts);
  for (const double bound : {even.ratio.mean, even.ratio.low, even.ratio.high})
    EXPECT_NEAR(bound, 1.25, 1e-12);
  EXPECT_GT(even.pair.kl.high, 1.1 * even.pair.kl.low);
  prompts.push_back(prompt_with(500, 100));
  const Summary odd = summarise(prompts);
  EXPECT_LT(odd.ratio.low, odd.ratio.mean);
  EXPECT_GT(odd.ratio.high, odd.ratio.mean);
}

TEST(Record, IsReadByTheFleetAsItWasWritten) {
  const kv::Qualification record{
      .prefill_recipe = "a/gguf-f16",
      .decode_recipe = "b/gguf-q4_1",
      .lineage = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
      .wire_form = "k codes=f16 op=q",
      .decode_form = "k codes=u8 op=(q-z)*s;v codes=f16 op=q",
      .kl_pair = 0.0025,
      .kl_engines = 0.005,
      .prompts = 26};
  const auto read = fleet::parse_qualifications(record_text(record), "record.yaml");
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(*read, std::vector{record});
}

}  // namespace
}  // namespace isthmus::qualify
