// SPDX-License-Identifier: Apache-2.0
// The benches at a small size: every case runs and measures; timing isn't looked at.
#include "bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/ends.h"

namespace isthmus::bench {
namespace {

constexpr Options kSmall{.size_bytes = std::uint64_t{4} << 20, .runs = 1, .cases = {}};

std::vector<Record> records_of(void (*bench)(const Options&, const Sink&), const Options& options) {
  std::vector<Record> records;
  bench(options, {.record = [&](const Record& record) { records.push_back(record); },
                  .progress = [](const std::string&) {}});
  return records;
}

std::vector<std::string> names_of(const std::vector<Record>& records) {
  std::vector<std::string> names;
  for (const Record& record : records) names.push_back(record.name);
  return names;
}

TEST(BenchKv, MeasuresEveryCase) {
  const auto records = records_of(bench_kv, kSmall);
  EXPECT_EQ(names_of(records), kv_cases());
  for (const Record& record : records) {
    EXPECT_EQ(record.failure, "") << record.name;
    EXPECT_TRUE(record.ratio().has_value()) << record.name;
  }
}

TEST(BenchPlan, MeasuresEveryCase) {
  const auto records = records_of(bench_plan, kSmall);
  EXPECT_EQ(names_of(records), plan_cases());
  for (const Record& record : records) EXPECT_EQ(record.failure, "") << record.name;
}

TEST(BenchHandoff, MeasuresEveryCase) {
  const auto records = records_of(bench_handoff, kSmall);
  EXPECT_THAT(names_of(records), ::testing::IsSupersetOf(handoff_cases()));
  for (const Record& record : records) EXPECT_EQ(record.failure, "") << record.name;
}

TEST(BenchHandoff, RunsOnlyTheCasesAskedFor) {
  Options options = kSmall;
  options.cases = {"empty"};
  EXPECT_EQ(records_of(bench_handoff, options).size(), 1u);
}

TEST(Ends, AStorageThatIsNotThereIsNamed) {
  const auto ends = Ends::start({.source = "llamacpp:f17",
                                 .target = "openvino:f16",
                                 .geometry = {},
                                 .tokens = 1,
                                 .is_shared_memory = false});
  ASSERT_FALSE(ends.ok());
  EXPECT_THAT(ends.error().text(), ::testing::HasSubstr("llamacpp:f17"));
}

TEST(Ends, ABareCopyNeedsSharedMemoryAndItsRefusalLeavesThePairAnswering) {
  const EndsSpec spec{.source = "llamacpp:f16",
                      .target = "openvino:f16",
                      .geometry = {.layers = 1, .heads = 2},
                      .tokens = 40,
                      .is_shared_memory = false};
  const auto apart = Ends::start(spec);
  ASSERT_TRUE(apart.ok()) << apart.error().text();
  EXPECT_EQ((*apart)->plain_copy(1).code(), Code::kInvalidArgument);
  const auto handed = (*apart)->handoff(2);
  EXPECT_TRUE(handed.ok()) << handed.error().text();
}

}  // namespace
}  // namespace isthmus::bench
