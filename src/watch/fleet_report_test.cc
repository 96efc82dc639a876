// SPDX-License-Identifier: Apache-2.0
// What the report adds to fleet's findings: parse errors as findings, workers as they answer, verdicts of
// pairs.
#include "watch/fleet_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "http/json.h"
#include "kv/sample.h"
#include "wire/descriptor_codec.h"

namespace isthmus::watch {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFleet = R"yaml(fleet: demo
key: file:fleet.key
models:
  m: {policy: lossless}
workers:
  - {name: p1, role: prefill, model: m, url: "http://10.0.0.1:8001", engine: llamacpp}
  - {name: d1, role: decode, model: m, url: "http://10.0.0.2:8001", engine: openvino}
)yaml";

Result<http::Response> ready(const std::string& model, const std::string& engine,
                             const std::string& storage) {
  return http::Response{
      200, {}, json::object({{"model", model}, {"engine", engine}, {"storage", storage}}).dump()};
}
Result<http::Response> descriptor(const std::string& storage) {
  const auto bytes = wire::encode_descriptor(kv::sample::descriptor(storage));
  return http::Response{200, {}, std::string(text_of(bytes.value()))};
}

FleetReport judged(const Answers& answers, const std::string& text = kFleet) {
  FleetReport report;
  report.fleet_name = "demo";
  const auto fleet = fleet::parse_fleet(text, "", "f.yaml");
  EXPECT_TRUE(fleet.ok());
  judge_live(*fleet, fleet::Source(text), answers, report);
  return report;
}

TEST(FleetReportLive, GoodWorkersGiveAVerdictForEachPair) {
  const FleetReport report = judged({ready("m", "llamacpp", "llamacpp:f16"), descriptor("llamacpp:f16"),
                                     ready("m", "openvino", "openvino:f32"), descriptor("openvino:f32")});
  EXPECT_TRUE(report.findings.empty());
  ASSERT_EQ(report.pairs.size(), 1u);
  EXPECT_EQ(report.pairs[0].verdict, "redistribute+convert");
  EXPECT_EQ(report.pairs[0].target, "openvino:f32");
  EXPECT_THAT(report.text(), HasSubstr("good, and all workers agree"));
}

TEST(FleetReportLive, APairThatThePolicyForbidsIsFoundWithItsReason) {
  const Answers answers{ready("m", "llamacpp", "llamacpp:f16"), descriptor("llamacpp:f16"),
                        ready("m", "openvino", "openvino:u8"), descriptor("openvino:u8")};
  const FleetReport report = judged(answers);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].severity, fleet::Severity::kWarning);
  EXPECT_EQ(report.findings[0].line, 7);
  EXPECT_THAT(report.findings[0].text, HasSubstr("p1 can't hand over to d1: policy.exactness"));
  std::string fails = kFleet;
  fails.replace(fails.find("lossless"), 8, "lossless, on_failure: fail");
  EXPECT_EQ(judged(answers, fails).findings.at(0).severity, fleet::Severity::kError);
}

TEST(FleetReportLive, WorkersThatAreDownOrOthersThanTheFileSaysAreFound) {
  const Error refused{Code::kUnavailable, "Connection refused"};
  const FleetReport down =
      judged({refused, refused, http::Response{503, {}, "loading"}, descriptor("openvino:f32")});
  ASSERT_EQ(down.findings.size(), 2u);
  EXPECT_THAT(down.findings[0].text, HasSubstr("worker p1 can't be reached: Connection refused"));
  EXPECT_EQ(down.findings[0].line, 6);
  EXPECT_THAT(down.findings[1].text, HasSubstr("worker d1 isn't ready: status 503 loading"));
  EXPECT_TRUE(down.pairs.empty());

  const FleetReport other = judged({ready("x", "llamacpp", "s"), http::Response{404, {}, ""},
                                    ready("m", "llamacpp", "s"), http::Response{200, {}, "garbage"}});
  ASSERT_EQ(other.findings.size(), 4u);
  EXPECT_THAT(other.findings[0].text, HasSubstr("worker p1 serves 'x'"));
  EXPECT_THAT(other.findings[1].text, HasSubstr("worker p1 gives no descriptor: status 404"));
  EXPECT_THAT(other.findings[2].text, HasSubstr("worker d1 runs llamacpp"));
  EXPECT_THAT(other.findings[3].text, HasSubstr("worker d1 gives no descriptor: malformed"));
}

TEST(FleetReportFile, AParseErrorIsAFindingWithLineAndPath) {
  const std::string path = ::testing::TempDir() + "broken_fleet.yaml";
  std::string text = kFleet;
  text.replace(text.find("role: decode"), 12, "role: decod");
  std::ofstream(path) << text;
  const auto report = check_fleet_file(path, false, std::chrono::seconds(1));
  std::filesystem::remove(path);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->findings.size(), 1u);
  EXPECT_EQ(report->findings[0].line, 7);
  EXPECT_EQ(report->findings[0].path, "workers[1].role");
  EXPECT_THAT(report->findings[0].text, HasSubstr("did you mean 'decode'?"));
  EXPECT_THAT(report->text(), HasSubstr("1 error, 0 warnings"));
  EXPECT_EQ(json::parse(report->to_json())->require<std::uint64_t>("errors").value(), 1u);
  EXPECT_EQ(check_fleet_file(path, false, std::chrono::seconds(1)).code(), Code::kNotFound);
}

}  // namespace
}  // namespace isthmus::watch
