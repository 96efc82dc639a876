// SPDX-License-Identifier: Apache-2.0
// Records: ratio and bar, JSON lines, table.
#include "bench/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "http/json.h"

namespace isthmus::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Record sample(double value, double reference, Bar bar) {
  Record record{.bench = "handoff", .name = "tcp direct", .unit = "GB/s"};
  record.value = summarise({value - 1, value, value + 1});
  record.reference = "plain loop";
  record.reference_value = summarise({reference});
  record.bar = bar;
  return record;
}

TEST(Summary, MedianIsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(summarise({3, 1, 2})->median, 2);
  EXPECT_EQ(summarise({4, 1, 2, 3})->median, 2.5);
  EXPECT_EQ(summarise({3, 1, 2})->min, 1);
  EXPECT_EQ(summarise({3, 1, 2})->max, 3);
  EXPECT_EQ(summarise({3, 1, 2})->runs, 3u);
  EXPECT_FALSE(summarise({}).has_value());
}

TEST(Record, IsOkWhenTheRatioReachesItsBar) {
  EXPECT_EQ(sample(8, 10, {Bar::Kind::kAtLeast, 0.8}).ok(), true);
  EXPECT_EQ(sample(7.9, 10, {Bar::Kind::kAtLeast, 0.8}).ok(), false);
  EXPECT_EQ(sample(40, 10, {Bar::Kind::kAtMost, 4}).ok(), true);
  EXPECT_EQ(sample(41, 10, {Bar::Kind::kAtMost, 4}).ok(), false);
}

TEST(Record, ThatFailedIsNotOkWhateverItMeasured) {
  Record record = sample(10, 10, {Bar::Kind::kAtLeast, 0.8});
  record.failure = "corrupt: tile 3";
  EXPECT_EQ(record.ok(), false);
  EXPECT_TRUE(is_any_missed({record}));
  record.bar = {};
  EXPECT_EQ(record.ok(), false);
}

TEST(Record, WithABarAndWithoutFiguresIsNotOk) {
  Record record = sample(10, 10, {Bar::Kind::kAtLeast, 0.8});
  record.reference_value = {};
  EXPECT_EQ(record.ok(), false);
  record = sample(10, 0, {Bar::Kind::kAtMost, 4});
  EXPECT_EQ(record.ok(), false);
  record = sample(10, std::numeric_limits<double>::quiet_NaN(), {Bar::Kind::kAtMost, 4});
  EXPECT_EQ(record.ok(), false);
}

TEST(Record, ThatWasNotRunIsNeitherOkNorMissed) {
  Record record = sample(10, 10, {Bar::Kind::kAtLeast, 0.8});
  record.not_run = "no AMX";
  EXPECT_EQ(record.ok(), std::nullopt);
  EXPECT_FALSE(is_any_missed({record}));
}

TEST(Record, WithoutABarHasNoVerdict) {
  Record record = sample(10, 10, {});
  record.bar = {};
  EXPECT_EQ(record.ok(), std::nullopt);
}

TEST(JsonLine, HasExactlyTheAgreedMembersInOrder) {
  const auto line = json::parse(to_json(sample(8, 10, {Bar::Kind::kAtLeast, 0.8})));
  ASSERT_TRUE(line.ok());
  std::vector<std::string> names;
  for (const auto& member : *line->as_object()) names.push_back(member.first);
  EXPECT_THAT(names, ElementsAre("bench", "case", "value", "unit", "reference", "reference_value", "ratio",
                                 "bar", "ok", "runs", "min", "max"));
}

TEST(JsonLine, SaysWhatWasMeasured) {
  EXPECT_EQ(to_json(sample(8, 10, {Bar::Kind::kAtLeast, 0.8})),
            R"({"bench":"handoff","case":"tcp direct","value":8.0,"unit":"GB/s","reference":"plain loop",)"
            R"("reference_value":10.0,"ratio":0.8,"bar":">= 0.8","ok":true,"runs":3,"min":7.0,"max":9.0})");
}

TEST(JsonLine, SaysWhyThereIsNothing) {
  Record record{.bench = "handoff", .name = "shm", .unit = "GB/s"};
  record.not_run = "no memfd";
  EXPECT_EQ(to_json(record),
            R"({"bench":"handoff","case":"shm","value":null,"unit":"GB/s","reference":)"
            R"("not run: no memfd","reference_value":null,"ratio":null,"bar":null,"ok":null,)"
            R"("runs":0,"min":null,"max":null})");
  record.not_run = "";
  record.failure = "peer lost";
  EXPECT_THAT(to_json(record), HasSubstr(R"("reference":"failed: peer lost")"));
  EXPECT_THAT(to_json(record), HasSubstr(R"("ok":false)"));
}

TEST(Table, ShowsTheSameVerdictsAsTheLines) {
  Record failed{.bench = "handoff", .name = "shm", .unit = "GB/s"};
  failed.failure = "peer lost";
  Record skipped{.bench = "handoff", .name = "amx", .unit = "GB/s"};
  skipped.not_run = "no AMX here";
  const std::string table = to_table({sample(8, 10, {Bar::Kind::kAtLeast, 0.8}),
                                      sample(7, 10, {Bar::Kind::kAtLeast, 0.8}), failed, skipped});
  EXPECT_THAT(table, HasSubstr("0.80  >= 0.8  ok"));
  EXPECT_THAT(table, HasSubstr("0.70  >= 0.8  MISSED"));
  EXPECT_THAT(table, HasSubstr("FAILED  failed: peer lost"));
  EXPECT_THAT(table, HasSubstr("not run not run: no AMX here"));
}

}  // namespace
}  // namespace isthmus::bench
