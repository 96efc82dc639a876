// SPDX-License-Identifier: Apache-2.0
// Architectures in both engines: small models with random weights, the shipped model's tokenizer, and all
// that makes the architecture another one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "crossing/measure.h"
#include "engine/probe/gguf.h"
#include "engine/probe/model_facts.h"
#include "engine/probe/probe.h"
#include "engine/probe/test_model.h"
#include "qualify/summary.h"

namespace isthmus::crossing {
namespace {

// The file of a model, for as long as this lives.
class Written {
 public:
  explicit Written(engine::TestModel model)
      : path_(std::filesystem::temp_directory_path() /
              ("isthmus-" + model.architecture + "-" + std::to_string(getpid()) + ".gguf")) {
    const engine::GgufFile shipped = engine::GgufFile::open(model_path()).value();
    model.tokenizer = &shipped;
    model.reach = 0.7;  // So that the elements of K and V are about 1.
    model.write(path_.string(), true);
  }
  ~Written() { std::filesystem::remove(path_); }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

engine::TestModel biased_qwen3_model() {
  engine::TestModel model = engine::qwen3_model();
  model.has_biases = true;
  return model;
}

class Models : public testing::TestWithParam<engine::TestModel> {
 protected:
  Written file_{GetParam()};
};

TEST_P(Models, EachEngineKeepsWhatTheWeightsSay) {
  for (const Form& form :
       {Form{"llamacpp", "f16"}, Form{"llamacpp", "f32_v_transposed"}, Form{"llamacpp", "q8_0"},
        Form{"openvino", "f32"}, Form{"openvino", "f16"}, Form{"openvino", "u8"}}) {
    const auto engine = make_engine(form, 2, {file_.path(), ""});
    ASSERT_TRUE(engine.ok()) << form.text() << ": " << engine.error().text();
    const auto report = engine::probe_meaning(**engine, file_.path(), engine::probe_tolerance(**engine));
    ASSERT_TRUE(report.ok()) << form.text() << ": " << report.error().text();
    RecordProperty(form.engine + "_" + form.kv_type, report->text());
    if (form.kv_type.starts_with("f32")) {  // Nothing is rounded: only the order of sums differs.
      EXPECT_LT(std::max(report->k_error, report->v_error), 5e-6) << form.text() << ": " << report->text();
    }
  }
}

TEST_P(Models, APairAnswersLikeItsDecoderAlone) {
  const auto from = make_engine({"llamacpp", "f16"}, 2, {file_.path(), ""});
  ASSERT_TRUE(from.ok()) << from.error().text();
  for (const std::string kv_type : {"u8", "f16"}) {
    const auto to = make_engine({"openvino", kv_type}, 2, {file_.path(), ""});
    ASSERT_TRUE(to.ok()) << to.error().text();
    qualify::Pair pair(**from, **to, kUnqualified);
    std::vector<qualify::Measured> measured;
    for (const std::size_t index : {5, 11}) {  // 32 and 100 tokens.
      const auto one = qualify::measure(pair, **from, **to, prompt(index));
      ASSERT_TRUE(one.ok()) << one.error().text();
      measured.push_back(*one);
    }
    const qualify::Summary summary = qualify::summarise(measured);
    RecordProperty("kl_ratio_" + kv_type, std::to_string(summary.ratio.mean));
    EXPECT_TRUE(summary.is_within_bar) << summary.pair.kl.mean << " against " << summary.engines.kl.mean;
    EXPECT_LT(summary.pair.kl.mean, 0.01);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Models,
                         testing::Values(engine::qwen2_model(), engine::qwen3_model(), engine::gemma_model(),
                                         biased_qwen3_model()),
                         [](const auto& each) {
                           return each.param.architecture + (each.param.has_biases ? "_biased" : "");
                         });

}  // namespace
}  // namespace isthmus::crossing
