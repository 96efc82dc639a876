// SPDX-License-Identifier: Apache-2.0
// What a run says of samples that are known.
#include "load/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/json.h"
#include "load/overload.h"

namespace isthmus::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Sample whole(Duration due, Duration ttft, Duration last_token, Duration e2e) {
  return {.due = due,
          .asked = {.prompt = 100, .output = 11},
          .outcome = Outcome::kOk,
          .tokens = 11,
          .ttft = ttft,
          .last_token = last_token,
          .e2e = e2e};
}

Measured ten_seconds() {
  Measured measured;
  measured.shape.rate = 2;
  measured.window = seconds(10);
  return measured;
}

TEST(Slo, IsReadAndSaid) {
  const auto slo = Slo::parse("ttft=1.5s,tpot=50ms");
  ASSERT_TRUE(slo.ok());
  EXPECT_EQ(*slo->ttft, Duration(milliseconds(1500)));
  EXPECT_EQ(*slo->tpot, Duration(milliseconds(50)));
  EXPECT_FALSE(slo->e2e);
  EXPECT_EQ(slo->text(), "ttft 1500 ms, tpot 50 ms");
  EXPECT_EQ(Slo::parse("")->text(), "");
  for (const char* text :
       {"ttft", "ttft=", "ttft=2", "ttft=-1s", "ttft=0s", "ttft=nans", "ttft=1s,ttft=2s", "x=1s"})
    EXPECT_THAT(Slo::parse(text).error().detail, HasSubstr("isn't ttft=")) << text;
}

TEST(Sample, IsGoodIfItKeepsEveryObjective) {
  const Sample sample = whole(seconds(1), milliseconds(500), milliseconds(1500), milliseconds(1600));
  EXPECT_EQ(*sample.tpot(), Duration(milliseconds(100)));
  const auto keeps = [&](const char* slo) { return sample.keeps(*Slo::parse(slo)); };
  EXPECT_TRUE(keeps(""));
  EXPECT_TRUE(keeps("ttft=500ms,tpot=100ms,e2e=1600ms"));
  EXPECT_FALSE(keeps("ttft=499ms"));
  EXPECT_FALSE(keeps("ttft=1s,tpot=99ms"));
  EXPECT_FALSE(keeps("e2e=1599ms"));
  Sample refused = sample;
  refused.outcome = Outcome::kRefused429;
  EXPECT_FALSE(refused.keeps({}));
}

TEST(Report, CountsRatesOverTheTimeToTheLastAnswersEnd) {
  Measured measured = ten_seconds();
  measured.slo = *Slo::parse("ttft=1s");
  measured.samples = {whole(seconds(0), milliseconds(200), seconds(1), seconds(1)),
                      whole(seconds(9), milliseconds(1200), seconds(11), seconds(11)),
                      {.due = seconds(3), .outcome = Outcome::kRefused429, .e2e = milliseconds(4)},
                      {.due = seconds(9), .outcome = Outcome::kTimedOut, .e2e = seconds(60)}};
  const Report report = report_of(measured);
  EXPECT_DOUBLE_EQ(report.elapsed_s, 20);  // A request that timed out has served nobody.
  EXPECT_EQ(report.requests, 4u);
  EXPECT_EQ(count_of(report.counts, Outcome::kOk), 2u);
  EXPECT_EQ(report.good, 1u);
  EXPECT_DOUBLE_EQ(report.goodput, 1 / 20.0);
  EXPECT_DOUBLE_EQ(report.ok_rate, 2 / 20.0);
  EXPECT_DOUBLE_EQ(report.output_tokens_per_s, 22 / 20.0);
  EXPECT_DOUBLE_EQ(report.ttft.p50, 0.2);
  EXPECT_DOUBLE_EQ(report.ttft.p99, 1.2);
  EXPECT_DOUBLE_EQ(report.refusal.p99, 0.004);
  EXPECT_TRUE(report.invalid.empty());
}

TEST(Report, OfAShortRunHasItsWholeWindow) {
  Measured measured = ten_seconds();
  measured.samples = {whole(seconds(0), milliseconds(200), seconds(1), seconds(1))};
  EXPECT_DOUBLE_EQ(report_of(measured).goodput, 0.1);
}

TEST(Report, OfALateGeneratorIsInvalid) {
  Measured measured = ten_seconds();
  measured.samples.assign(100, whole(seconds(0), milliseconds(200), seconds(1), seconds(1)));
  measured.samples[0].lag = seconds(1);  // One of a hundred is above the 99th percentile.
  EXPECT_TRUE(report_of(measured).invalid.empty());
  measured.samples[1].lag = kLagMax + milliseconds(1);
  EXPECT_THAT(report_of(measured).invalid, ElementsAre(HasSubstr("late by 21 ms")));
  measured.shape.rate.reset();  // In the closed loop nothing is due before it is sent.
  EXPECT_TRUE(report_of(measured).invalid.empty());
}

TEST(Report, OfRequestsThatWereNotSentIsInvalid) {
  Measured measured = ten_seconds();
  measured.samples = {{.outcome = Outcome::kUnsent}};
  EXPECT_THAT(report_of(measured).invalid, ElementsAre(HasSubstr("--connections")));
  measured.samples.clear();
  measured.is_cut = true;
  EXPECT_THAT(report_of(measured).invalid, ElementsAre(HasSubstr("stopped")));
}

TEST(Report, SaysAllToMachinesAndPeople) {
  Measured measured = ten_seconds();
  measured.slo = *Slo::parse("ttft=1s");
  measured.samples = {whole(seconds(0), milliseconds(200), seconds(1), seconds(1)),
                      {.due = seconds(3), .outcome = Outcome::kBroken}};
  measured.first_of[Outcome::kBroken] = "the stream ended without [DONE]";
  const Report report = report_of(measured);
  const auto json = json::parse(to_json(report, "2 requests/s"));
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(*json->find("bench")->as_string(), "serve");
  EXPECT_EQ(*json->find("case")->as_string(), "2 requests/s");
  EXPECT_EQ(json->find("ratio")->as_double(), 0.05);
  EXPECT_EQ(json->find("counts.ok")->as_uint(), 1u);
  EXPECT_EQ(json->find("counts.broken")->as_uint(), 1u);
  EXPECT_EQ(json->find("ttft_s.p99")->as_double(), 0.2);
  EXPECT_TRUE(json->find("itl_s")->is_null());
  EXPECT_EQ(json->find("ttft_quantiles_s")->as_array()->size(), 101u);
  EXPECT_EQ(json->find("valid")->as_bool(), true);
  EXPECT_EQ(json->as_object()->size(), json::parse(to_json(Report{}, "x"))->as_object()->size());
  EXPECT_THAT(table_row(report, "2 requests/s"), HasSubstr("200"));
  EXPECT_EQ(table_head().size(), 2 * table_row(report, "x").size());
  EXPECT_THAT(remarks(report), HasSubstr("1 x broken, the first: the stream ended without [DONE]"));
}

TEST(Capacity, IsWhereMoreAtOnceServesNoMore) {
  CapacitySearch search;
  Report report;
  for (const auto& [concurrency, rate] : {std::pair(1u, 2.0), {2u, 3.6}, {4u, 5.0}, {8u, 5.2}}) {
    ASSERT_EQ(search.next(), concurrency);
    report.ok_rate = rate;
    search.tried(report);
  }
  EXPECT_EQ(search.next(), std::nullopt);
  EXPECT_EQ(search.capacity(), 5.2);
}

TEST(Capacity, OfAServerThatAnswersNothingIsNone) {
  CapacitySearch search;
  search.tried({});
  EXPECT_EQ(search.next(), std::nullopt);
  EXPECT_EQ(search.capacity(), 0);
}

}  // namespace
}  // namespace isthmus::load
