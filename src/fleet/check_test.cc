// SPDX-License-Identifier: Apache-2.0
// Each finding: where it points, and that a good file has none.
#include "fleet/check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "net/test_authority.h"

namespace isthmus::fleet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kGood = R"yaml(fleet: demo
key: file:fleet.key
models:
  small: {policy: bounded, slo: {ttft_p90: 2s}}
workers:
  - {name: p1, role: prefill, model: small, url: "http://10.0.0.1:8001", engine: llamacpp}
  - {name: d1, role: decode, model: small, url: "http://10.0.0.2:8001", engine: openvino}
qualifications:
  - prefill_recipe: llamacpp/gguf-q4_1
    decode_recipe: openvino/gguf-q4_1
    lineage: abc
    wire_form: k codes=f16
    decode_form: k codes=u8
    kl_pair: 0.0011
    kl_engines: 1e-3
    prompts: 20
)yaml";

class FleetCheck : public ::testing::Test {
 protected:
  FleetCheck() {
    std::string path = ::testing::TempDir() + "fleet-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
    write_key(std::string(64, 'a') + "\n");
  }
  ~FleetCheck() override { std::filesystem::remove_all(folder_); }

  void write_key(const std::string& text, mode_t mode = 0600) {
    std::ofstream(folder_ + "/fleet.key") << text;
    EXPECT_EQ(chmod((folder_ + "/fleet.key").c_str(), mode), 0);
  }
  // "6 error workers[0].url: text" of each finding of kGood with one text replaced.
  std::vector<std::string> found(std::string_view from = "", std::string_view to = "") {
    std::string text = kGood;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto fleet = parse_fleet(text, folder_, "f.yaml");
    EXPECT_TRUE(fleet.ok()) << fleet.error().text();
    std::vector<std::string> lines;
    for (const Finding& finding : check_fleet(*fleet, Source(text))) {
      EXPECT_FALSE(finding.advice.empty());
      lines.push_back(
          fmt::format("{} {} {}: {}", finding.line, name(finding.severity), finding.path, finding.text));
    }
    return lines;
  }

  std::string folder_;
};

TEST_F(FleetCheck, AGoodFileHasNoFindings) {
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(FleetCheck, TheKeyFileMustBeThereHaveKeysFormAndBePrivate) {
  std::filesystem::remove(folder_ + "/fleet.key");
  EXPECT_THAT(found(), ElementsAre(HasSubstr("2 error key: ")));
  write_key("abc");
  EXPECT_THAT(found(), ElementsAre(HasSubstr("must hold 64 hex digits, it holds 3 characters")));
  write_key(std::string(64, 'x'));
  EXPECT_THAT(found(), ElementsAre(HasSubstr("and not only hex digits")));
  write_key(std::string(64, 'a'), 0644);
  EXPECT_THAT(found(), ElementsAre(HasSubstr("2 warning key: " + folder_ + "/fleet.key has mode 0644")));
  std::filesystem::remove(folder_ + "/fleet.key");
  std::filesystem::create_directory(folder_ + "/fleet.key");
  EXPECT_THAT(found(), ElementsAre(HasSubstr("isn't a regular file")));
}

TEST_F(FleetCheck, FilesOfTlsMustBeWhatPeersTake) {
  net::TestAuthority authority, other;
  const auto tls = [](const net::TlsFiles& files) {
    return fmt::format("key: file:fleet.key\ntls: {{certificate: {}, key: {}, authority: {}}}",
                       files.certificate, files.key, files.authority);
  };
  net::TlsFiles files = authority.issue("w1");
  EXPECT_THAT(found("key: file:fleet.key", tls(files)), IsEmpty());
  EXPECT_EQ(chmod(files.key.c_str(), 0644), 0);
  EXPECT_THAT(found("key: file:fleet.key", tls(files)),
              ElementsAre(HasSubstr("3 warning tls.key: " + files.key + " has mode 0644")));
  files = authority.issue("w2");
  files.authority = other.issue("w2").authority;
  EXPECT_THAT(found("key: file:fleet.key", tls(files)), ElementsAre(HasSubstr("would refuse it")));
  files.certificate += "x";
  EXPECT_THAT(found("key: file:fleet.key", tls(files)), ElementsAre(HasSubstr("No such file")));
}

TEST_F(FleetCheck, RolesMustCoverEachModel) {
  EXPECT_THAT(found("role: decode", "role: prefill"),
              ElementsAre(HasSubstr("4 error models.small: no worker decodes this model")));
  EXPECT_THAT(found("role: prefill", "role: decode"),
              ElementsAre(HasSubstr("4 warning models.small: no worker prefills this model")));
  EXPECT_THAT(found("workers:\n", "  big.er: {}\nworkers:\n"),
              ElementsAre(HasSubstr("5 warning models.big.er: no worker serves this model")));
  EXPECT_THAT(found("role: prefill", "role: both"), IsEmpty());
}

TEST_F(FleetCheck, APrefillWorkerNeedsADecodeWorkerInItsPlane) {
  EXPECT_THAT(
      found("engine: llamacpp", "plane: east"),
      ElementsAre(HasSubstr("6 warning workers[0].plane: no decode worker of small is in plane 'east'")));
}

TEST_F(FleetCheck, PricesOfAPlaneWithoutWorkersAreDoubted) {
  std::ofstream(folder_ + "/edge.prices") << kv::Prices::reference(1).text();
  EXPECT_THAT(found("workers:\n", "prices: {edge: edge.prices}\nworkers:\n"),
              ElementsAre(HasSubstr("5 warning prices.edge: no worker is in plane 'edge'")));
}

TEST_F(FleetCheck, AnUnlikePairUnderBoundedNeedsARecord) {
  EXPECT_THAT(found("openvino/gguf", "other/gguf"),
              ElementsAre(HasSubstr("9 warning qualifications: no record from llamacpp to openvino")));
  EXPECT_THAT(found("engine: openvino", "engine: llamacpp"), IsEmpty());
}

TEST_F(FleetCheck, PoliciesAndSlosThatSayLittleAreDoubted) {
  EXPECT_THAT(found("policy: bounded", "policy: unqualified"),
              ElementsAre(HasSubstr("4 warning models.small.policy: unqualified")));
  EXPECT_THAT(found("policy: bounded", "policy: bounded, roundings_max: 0"),
              ElementsAre(HasSubstr("4 warning models.small.roundings_max: ")));
  EXPECT_THAT(found("2s", "2ms"), ElementsAre(HasSubstr("4 warning models.small.slo.ttft_p90: 2 ms")));
  EXPECT_THAT(found("2s", "20m"), ElementsAre(HasSubstr("1200000 ms to the first token is longer")));
}

TEST_F(FleetCheck, UrlsMustBePlacesToCall) {
  EXPECT_THAT(found("10.0.0.1", "0.0.0.0"), ElementsAre(HasSubstr("6 error workers[0].url: ")));
  EXPECT_THAT(found("http://10.0.0.1:8001", "http://localhost:8000"),
              ElementsAre(HasSubstr("6 warning workers[0].url: port 8000")));
}

TEST_F(FleetCheck, TwoNamesOfThisMachineAreOnePlace) {
  std::string text = kGood;
  for (const auto& [from, to] : {std::pair{"10.0.0.1", "localhost"}, {"10.0.0.2", "127.0.0.1"}})
    text.replace(text.find(from), 8, to);
  const auto fleet = parse_fleet(text, folder_, "f.yaml");
  ASSERT_TRUE(fleet.ok());
  const auto findings = check_fleet(*fleet, Source(text));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].line, 7);
  EXPECT_THAT(findings[0].text, HasSubstr("are the same place"));
}

}  // namespace
}  // namespace isthmus::fleet
