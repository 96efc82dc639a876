// SPDX-License-Identifier: Apache-2.0
// Files of one checkpoint in unlike recipes, made of the test's model by llama.cpp's own quantiser: a state
// crosses between them if an operator says that they are, and under `bounded` once that was measured.
#include <gtest/gtest.h>
#include <llama.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crossing/measure.h"
#include "fleet/fleet.h"
#include "qualify/summary.h"

namespace isthmus::crossing {
namespace {

// The model in another recipe, for as long as this lives.
class Remade {
 public:
  explicit Remade(llama_ftype recipe)
      : path_(std::filesystem::temp_directory_path() /
              ("isthmus-lineage-" + std::to_string(recipe) + "-" + std::to_string(getpid()) + ".gguf")) {
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.nthread = 2;
    params.ftype = recipe;
    params.allow_requantize = true;
    is_made_ = llama_model_quantize(model_path().c_str(), path_.c_str(), &params) == 0;
  }
  ~Remade() { std::filesystem::remove(path_); }
  Remade(const Remade&) = delete;
  Remade& operator=(const Remade&) = delete;

  bool is_made() const { return is_made_; }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
  bool is_made_ = false;
};

using Engine = std::unique_ptr<engine::Engine>;

// What Q8_0 and F16 files of the model are to the model itself.
class Lineage : public testing::TestWithParam<llama_ftype> {
 protected:
  void SetUp() override { ASSERT_TRUE(remade_.is_made()); }

  Engine decoder() { return *make_engine({"openvino", "u8"}, 2); }
  Engine prefill(const std::string& lineage) {
    return *make_engine({"llamacpp", "f16"}, 2, {remade_.path(), lineage});
  }

  Remade remade_{GetParam()};
};

kv::VerdictKind verdict(const Engine& from, const Engine& to, kv::Exactness exactness,
                        std::vector<kv::Qualification> records = {}) {
  kv::Policy policy;
  policy.exactness = exactness;
  policy.qualifications = std::move(records);
  return kv::negotiate(from->descriptor(), to->descriptor(), policy).kind;
}

TEST_P(Lineage, IsWhatAnOperatorSaysAndNothingElse) {
  const Engine to = decoder(), unsaid = prefill("");
  const auto& own = to->descriptor().identity;
  const auto& other = unsaid->descriptor().identity;
  EXPECT_NE(own.lineage, other.lineage);
  EXPECT_EQ(own.config_digest, other.config_digest);
  EXPECT_EQ(own.tokenizer_digest, other.tokenizer_digest);
  EXPECT_EQ(verdict(unsaid, to, kv::Exactness::kUnqualified), kv::VerdictKind::kReject);

  const Engine said = prefill(own.lineage);
  EXPECT_NE(said->descriptor().weights_digest, to->descriptor().weights_digest);
  EXPECT_NE(said->descriptor().weights_recipe, to->descriptor().weights_recipe);
  EXPECT_EQ(verdict(said, to, kv::Exactness::kLossless), kv::VerdictKind::kReject);
  EXPECT_EQ(verdict(said, to, kv::Exactness::kBounded), kv::VerdictKind::kReject) << "nobody measured it";
  EXPECT_NE(verdict(said, to, kv::Exactness::kUnqualified), kv::VerdictKind::kReject);
}

TEST_P(Lineage, ThePairMayBeUsedOnceItWasMeasured) {
  const Engine to = decoder();
  const Engine from = prefill(to->descriptor().identity.lineage);
  std::vector<qualify::Measured> measured;
  qualify::Pair pair(*from, *to, kUnqualified);
  for (const std::size_t index : {5, 11}) {  // 32 and 100 tokens.
    const auto one = qualify::measure(pair, *from, *to, prompt(index));
    ASSERT_TRUE(one.ok()) << one.error().text();
    measured.push_back(*one);
  }
  const qualify::Summary summary = qualify::summarise(measured);
  EXPECT_TRUE(summary.is_within_bar) << summary.ratio.mean;
  EXPECT_LT(summary.pair.kl.mean, 0.1) << "it is the same model";
  const std::string text = qualify::record_text(qualify::record_of(
      from->descriptor(), to->descriptor(), summary.pair.kl.mean, summary.engines.kl.mean, summary.prompts));
  const auto records = fleet::parse_qualifications(text, "record.yaml");
  ASSERT_TRUE(records.ok()) << records.error().text();
  EXPECT_NE(verdict(from, to, kv::Exactness::kBounded, *records), kv::VerdictKind::kReject);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Lineage, testing::Values(LLAMA_FTYPE_MOSTLY_Q8_0, LLAMA_FTYPE_MOSTLY_F16),
                         [](const auto& each) {
                           return each.param == LLAMA_FTYPE_MOSTLY_Q8_0 ? "q8_0" : "f16";
                         });

// The other way round: the remade file decodes, on the engine that reads each recipe in its own way.
TEST(LineageOfDecoders, EachEngineReadsEachRecipe) {
  const Remade q8(LLAMA_FTYPE_MOSTLY_Q8_0), f16(LLAMA_FTYPE_MOSTLY_F16);
  for (const Remade* file : {&q8, &f16}) {
    ASSERT_TRUE(file->is_made());
    const Engine from = *make_engine({"llamacpp", "f16"}, 2);
    const auto to = make_engine({"openvino", "f16"}, 2, {file->path(), from->descriptor().identity.lineage});
    ASSERT_TRUE(to.ok()) << to.error().text();
    qualify::Pair pair(*from, **to, kUnqualified);
    const auto one = qualify::measure(pair, *from, **to, prompt(8));
    ASSERT_TRUE(one.ok()) << one.error().text();
    EXPECT_LT(one->pair.kl, 0.1) << file->path();
  }
}

}  // namespace
}  // namespace isthmus::crossing
