// SPDX-License-Identifier: Apache-2.0
// The fleet file: what is read, and how each mistake is named.
#include "fleet/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "fleet/suggest.h"

namespace isthmus::fleet {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr const char* kGood = R"yaml(
fleet: demo
key: file:fleet.key
models:
  smollm2: {policy: bounded, on_failure: fail, roundings_max: 2, non_finite: replace, slo: {ttft_p90: 2s}}
  other: {canary: off, lineage: [b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53]}
workers:
  - {name: p1, role: prefill, model: smollm2, url: "http://127.0.0.1:8001", engine: llamacpp}
  - {name: d1, role: decode, model: smollm2, url: "http://127.0.0.1:8002/", plane: west}
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

std::string detail_of(std::string_view text) {
  const auto fleet = parse_fleet(text, "", "f.yaml");
  if (fleet.ok()) return "parsed";
  return fleet.error().text();
}

// kGood with one text replaced.
std::string changed(std::string_view from, std::string_view to) {
  std::string text = kGood;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Fleet, ReadsModelsWorkersAndRecords) {
  const auto fleet = parse_fleet(kGood, "/etc/isthmus", "f.yaml");
  ASSERT_TRUE(fleet.ok()) << fleet.error().text();
  EXPECT_EQ(fleet->name, "demo");
  EXPECT_EQ(fleet->key_file, "/etc/isthmus/fleet.key");
  ASSERT_NE(fleet->find_model("smollm2"), nullptr);
  const Model& model = *fleet->find_model("smollm2");
  EXPECT_EQ(model.exactness, kv::Exactness::kBounded);
  EXPECT_EQ(model.on_failure, OnFailure::kFail);
  EXPECT_EQ(model.canary, Canary::kFirstContact);
  EXPECT_EQ(fleet->models[1].canary, Canary::kOff);
  EXPECT_THAT(model.lineage, ::testing::IsEmpty());
  EXPECT_THAT(fleet->models[1].lineage,
              ::testing::ElementsAre("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"));
  EXPECT_EQ(model.ttft_slo, Duration(seconds(2)));
  EXPECT_EQ(fleet->find_model("other")->exactness, kv::Exactness::kLossless);
  ASSERT_EQ(fleet->workers.size(), 2u);
  EXPECT_EQ(fleet->workers[0].role, Role::kPrefill);
  EXPECT_EQ(fleet->workers[1].url(), "http://127.0.0.1:8002");
  EXPECT_EQ(fleet->workers[1].plane, "west");
  const kv::Policy policy = fleet->policy(model);
  EXPECT_EQ(policy.roundings_max, 2u);
  EXPECT_EQ(policy.non_finite, kv::NonFinite::kReplace);
  ASSERT_EQ(policy.qualifications.size(), 1u);
  EXPECT_EQ(policy.qualifications[0].decode_recipe, "openvino/gguf-q4_1");
  EXPECT_DOUBLE_EQ(policy.qualifications[0].kl_engines, 1e-3);
  EXPECT_EQ(policy.qualifications[0].prompts, 20u);
}

TEST(Fleet, NamesLineAndPathOfAMisspeltKeyAndSuggestsTheRightOne) {
  EXPECT_EQ(detail_of(changed("role: prefill", "rol: prefill")),
            "invalid_argument: f.yaml:8: workers[0]: unknown key 'rol', did you mean 'role'?");
  EXPECT_EQ(
      detail_of(changed("on_failure: fail", "on_failrue: fail")),
      "invalid_argument: f.yaml:5: models.smollm2: unknown key 'on_failrue', did you mean 'on_failure'?");
  EXPECT_THAT(detail_of(changed("fleet: demo", "fleet: demo\nzzzzzz: 1")),
              HasSubstr("unknown key 'zzzzzz'; known are fleet, key, tls, dialer, models, workers, "
                        "qualifications, prices"));
}

TEST(Fleet, ReadsTheFilesOfTlsWhichAreAllNeeded) {
  EXPECT_FALSE(parse_fleet(kGood, "", "f.yaml")->tls.has_value());
  const std::string with =
      changed("fleet: demo", "fleet: demo\ntls: {certificate: a.pem, key: a.key, authority: /ca.pem}");
  const auto fleet = parse_fleet(with, "/etc/isthmus", "f.yaml");
  ASSERT_TRUE(fleet.ok()) << fleet.error().text();
  EXPECT_EQ(fleet->tls, (net::TlsFiles{"/etc/isthmus/a.pem", "/etc/isthmus/a.key", "/ca.pem"}));
  EXPECT_THAT(detail_of(changed("fleet: demo", "fleet: demo\ntls: {certificate: a.pem, key: a.key}")),
              HasSubstr("tls: 'authority' is missing"));
}

TEST(Fleet, RefusesEachBadValueByItsPath) {
  const std::vector<std::array<std::string_view, 3>> cases = {
      {"role: prefill", "role: prefil", "workers[0].role: unknown value 'prefil', did you mean 'prefill'?"},
      {"policy: bounded", "policy: exact",
       "models.smollm2.policy: unknown value 'exact'; known are lossless"},
      {"roundings_max: 2", "roundings_max: -1", "roundings_max: '-1' isn't a whole number of at most 16"},
      {"ttft_p90: 2s", "ttft_p90: 2", "slo.ttft_p90: '2' isn't a time"},
      {"ttft_p90: 2s", "ttft_p90: 0s", "slo.ttft_p90: '0s' isn't a time"},
      {"name: d1", "name: p1", "workers[1].name: a worker named 'p1' exists already"},
      {"127.0.0.1:8002/", "127.0.0.1:8001", "workers[1].url: worker 'p1' has the same url"},
      {"http://127.0.0.1:8001", "https://127.0.0.1:8001",
       "workers[0].url: 'https://127.0.0.1:8001' must be http"},
      {"127.0.0.1:8001", "127.0.0.1", "workers[0].url: 'http://127.0.0.1' must be http://HOST:PORT"},
      {"127.0.0.1:8002/", "127.0.0.1:8002/v1", "workers[1].url"},
      {"name: p1, role: prefill, model: smollm2", "name: p1, role: prefill, model: smollm",
       "workers[0].model: no model 'smollm' under models, did you mean 'smollm2'?"},
      {"key: file:fleet.key", "key: 0123456789abcdef", "key: '01234567' must be file:PATH"},
      {"key: file:fleet.key\n", "", "'key' is missing"},
      {"fleet: demo", "fleet: demo\nfleet: twice", "'fleet' is given twice"},
      {"kl_pair: 0.0011", "kl_pair: nan", "qualifications[0].kl_pair: 'nan' isn't a number of at least 0"},
      {"    prompts: 20\n", "", "qualifications[0]: 'prompts' is missing"},
      {"name: d1", "name: 'd 1'", "workers[1].name: 'd 1' isn't a name"},
      {"db53]", "DB53]", "models.other.lineage[0]: 'b179c9523d0e6a0f"},
      {"db53]", "db5]", "isn't a SHA-256: 64 digits 0-9 a-f"},
      {"db53]", "db53, b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53]",
       "c8c15e5bc70ea373728110db53' is given twice"},
      {"[b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53]", "[]",
       "models.other.lineage: is empty"},
  };
  for (const auto& [from, to, expected] : cases) {
    EXPECT_THAT(detail_of(changed(from, to)), HasSubstr(std::string(expected))) << to;
  }
}

TEST(Fleet, RefusesTextThatIsNotYamlWithItsLine) {
  EXPECT_THAT(detail_of("fleet: demo\nkey: [unclosed\n"), HasSubstr("malformed: f.yaml:"));
  EXPECT_THAT(detail_of(""), HasSubstr("'fleet' is missing"));
  EXPECT_THAT(detail_of("- 1\n- 2\n"), HasSubstr("must be a map, is a list"));
  EXPECT_THAT(detail_of("fleet: [x]\n"), HasSubstr("must be a text, is a list"));
}

TEST(Fleet, RefusesMoreWorkersThanItsBound) {
  std::string text = "fleet: demo\nkey: file:k\nmodels: {m: {}}\nworkers:\n";
  for (std::size_t i = 0; i <= kWorkersMax; ++i) text += "  - {}\n";
  EXPECT_THAT(detail_of(text), HasSubstr("exhausted: f.yaml:5: workers: 257 entries are more than 256"));
}

TEST(Fleet, NeverCrashesOnACutOffOrDamagedFile) {
  const std::string good = kGood;
  for (std::size_t length = 0; length < good.size(); ++length) {
    (void)parse_fleet(good.substr(0, length), "", "f.yaml");
    std::string damaged = good;
    damaged[length] = static_cast<char>(damaged[length] ^ 0x15);
    (void)parse_fleet(damaged, "", "f.yaml");
  }
}

class FleetFiles : public ::testing::Test {
 protected:
  FleetFiles() : folder_(std::filesystem::path(::testing::TempDir()) / "isthmus_fleet_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~FleetFiles() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ / file) << text;
    return (folder_ / file).string();
  }
  std::filesystem::path folder_;
};

constexpr const char* kRecord =
    "{prefill_recipe: a, decode_recipe: b, lineage: c, wire_form: d, decode_form: e, kl_pair: 1, kl_engines: "
    "2, "
    "prompts: 3}";

TEST_F(FleetFiles, ReadsRecordsFromFilesBesideTheFleetFile) {
  write("one.yaml", kRecord);
  write("two.yaml", std::string("- ") + kRecord + "\n- " + kRecord + "\n");
  const auto path = write("fleet.yaml",
                          "fleet: f\nkey: file:k\nmodels: {m: {}}\nworkers: []\n"
                          "qualifications: [one.yaml, two.yaml]\n");
  const auto fleet = load_fleet(path);
  ASSERT_TRUE(fleet.ok()) << fleet.error().text();
  EXPECT_EQ(fleet->qualifications.size(), 3u);
  EXPECT_EQ(fleet->key_file, (folder_ / "k").string());
}

TEST_F(FleetFiles, APlanesPricesAreThoseOfItsWorkersAndOfNobodyElse) {
  kv::Prices edge = kv::Prices::reference(1);
  edge.link = 12;
  edge.codecs = {{"f16", 400, 900, 800}};
  write("edge.prices", edge.text());
  write("bad.prices", "link 12\n");
  const std::string head =
      "fleet: f\nkey: file:k\nmodels: {m: {}}\nworkers:\n"
      "  - {name: p1, role: prefill, model: m, url: \"http://10.0.0.1:1\", plane: edge}\n"
      "  - {name: p2, role: prefill, model: m, url: \"http://10.0.0.2:1\", plane: core}\n"
      "  - {name: p3, role: prefill, model: m, url: \"http://10.0.0.3:1\"}\n";
  const auto fleet = load_fleet(write("fleet.yaml", head + "prices:\n  edge: edge.prices\n"));
  ASSERT_TRUE(fleet.ok()) << fleet.error().text();
  ASSERT_NE(fleet->prices_of("p1"), nullptr);
  EXPECT_EQ(*fleet->prices_of("p1"), edge);
  for (const char* other : {"p2", "p3", "p4", ""}) EXPECT_EQ(fleet->prices_of(other), nullptr) << other;

  const auto bad = load_fleet(write("bad.yaml", head + "prices:\n  edge: bad.prices\n"));
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().detail, HasSubstr("bad.yaml:9: prices.edge: bad.prices: prices, line 1: "));
  const auto absent = load_fleet(write("absent.yaml", head + "prices:\n  edge: none.prices\n"));
  EXPECT_EQ(absent.code(), Code::kNotFound);
  EXPECT_THAT(absent.error().detail, HasSubstr("absent.yaml:9: prices.edge: "));
  EXPECT_THAT(load_fleet(write("list.yaml", head + "prices: [edge.prices]\n")).error().detail,
              HasSubstr("prices: must be a map, is a list"));
}

TEST_F(FleetFiles, NamesAFileThatIsMissingAndTheLineThatAsksForIt) {
  const auto path = write(
      "fleet.yaml", "fleet: f\nkey: file:k\nmodels: {m: {}}\nworkers: []\nqualifications: [absent.yaml]\n");
  const auto fleet = load_fleet(path);
  ASSERT_FALSE(fleet.ok());
  EXPECT_EQ(fleet.code(), Code::kNotFound);
  EXPECT_THAT(fleet.error().detail, HasSubstr("fleet.yaml:5: qualifications[0]: "));
  EXPECT_THAT(fleet.error().detail, HasSubstr("absent.yaml can't be read: No such file"));
  EXPECT_EQ(load_fleet((folder_ / "none.yaml").string()).code(), Code::kNotFound);
  EXPECT_EQ(load_fleet(folder_.string()).code(), Code::kNotFound);
}

TEST(FleetFile, OfTheDemoLoads) {
  const auto fleet = load_fleet(DEMO_FLEET_FILE);
  ASSERT_TRUE(fleet.ok()) << fleet.error().text();
  EXPECT_EQ(fleet->models.at(0).exactness, kv::Exactness::kBounded);
  EXPECT_EQ(fleet->workers.size(), 2u);
}

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("role", "role"), 0u);
  EXPECT_EQ(edit_distance("rol", "role"), 1u);
  EXPECT_EQ(edit_distance("rloe", "role"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
}

}  // namespace
}  // namespace isthmus::fleet
