// SPDX-License-Identifier: Apache-2.0
// `isthmus kv explain` on storage names.
#include "cli/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/qualification_data.h"

namespace isthmus::cli {
namespace {

using ::testing::HasSubstr;

ExplainCommand pair(std::string source, std::string target, kv::Exactness exactness) {
  ExplainCommand command;
  command.source = std::move(source);
  command.target = std::move(target);
  command.exactness = exactness;
  return command;
}

TEST(Explain, SaysThatAPairMayCrossAndWhatChanges) {
  const auto explanation = explain(pair("llamacpp:f16", "openvino:f32", kv::Exactness::kLossless));
  ASSERT_TRUE(explanation.ok()) << explanation.error().text();
  EXPECT_FALSE(explanation->is_rejected);
  EXPECT_THAT(explanation->text, HasSubstr("redistribute"));
}

TEST(Explain, SaysThatALossyPairIsRejectedUnderLossless) {
  const auto explanation = explain(pair("llamacpp:f16", "openvino:u8", kv::Exactness::kLossless));
  ASSERT_TRUE(explanation.ok()) << explanation.error().text();
  EXPECT_TRUE(explanation->is_rejected);
  EXPECT_FALSE(explain(pair("llamacpp:f16", "openvino:u8", kv::Exactness::kBounded))->is_rejected);
}

TEST(Explain, NamesWhatIsUnknown) {
  EXPECT_EQ(explain(pair("llamacpp:f17", "openvino:u8", kv::Exactness::kBounded)).code(), Code::kNotFound);
  ExplainCommand command = pair("llamacpp:f16", "openvino:u8", kv::Exactness::kBounded);
  command.model_path = "/no/such/file.gguf";
  EXPECT_EQ(explain(command).code(), Code::kNotFound);
  command.model_path.clear();
  command.fleet_file = "/no/such/fleet.yaml";
  EXPECT_EQ(explain(command).code(), Code::kNotFound);
}

TEST(Explain, WithPricesSaysWhereEachStepRuns) {
  ExplainCommand command = pair("llamacpp:f16", "openvino:u8", kv::Exactness::kUnqualified);
  EXPECT_THAT(explain(command)->json, HasSubstr("\"ways\":null"));
  command.prices = "reference";
  command.tokens = 300;
  const auto explanation = explain(command);
  ASSERT_TRUE(explanation.ok()) << explanation.error().text();
  EXPECT_THAT(explanation->text, HasSubstr("steps for 300 tokens, by prices "));
  EXPECT_THAT(explanation->text, HasSubstr("  convert     producer"));
  EXPECT_THAT(explanation->json, HasSubstr("\"way\":\"producer\""));
  command.prices = "/no/such/prices";
  EXPECT_EQ(explain(command).code(), Code::kNotFound);
}

TEST(QualificationData, EveryCompiledInRecordParses) {
  const auto records = built_in_qualifications();
  ASSERT_TRUE(records.ok()) << records.error().text();
  EXPECT_GE(records->size(), qualification_files().size());
}

}  // namespace
}  // namespace isthmus::cli
