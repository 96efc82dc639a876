// SPDX-License-Identifier: Apache-2.0
// Architectures in both engines: small models with random weights, the shipped model's tokenizer, and all
// that makes the architecture another one.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "crossing/measure.h"
#include "engine/probe/described.h"
#include "engine/probe/probe.h"
#include "engine/probe/test_model.h"
#include "qualify/summary.h"

namespace isthmus::crossing {
namespace {

engine::TestModel biased_qwen3_model() {
  engine::TestModel model = engine::qwen3_model();
  model.has_biases = true;
  return model;
}

class Models : public testing::TestWithParam<engine::TestModel> {
 protected:
  engine::WrittenModel file_{GetParam(), model_path()};
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

// In steps of many tokens, then of one; all of K and V that the engine keeps, by layer.
std::vector<engine::LayerRows> all_layers(engine::Engine& engine, const Tokens& tokens, std::size_t decoded) {
  const auto run = [&](engine::SequenceId sequence, std::span<const engine::TokenId> some) {
    const engine::StepItem item{.sequence = sequence, .tokens = some, .logits = 0};
    const auto output = engine.step({&item, 1});
    EXPECT_TRUE(output.ok()) << output.error().text();
  };
  const engine::SequenceId sequence = engine.open(tokens.size()).value();
  run(sequence, std::span(tokens).first(tokens.size() - decoded));
  for (std::size_t i = tokens.size() - decoded; i < tokens.size(); ++i) {
    run(sequence, std::span(tokens).subspan(i, 1));
  }
  const auto state = engine.kv_source()->export_range(sequence, {0, tokens.size()}).value();
  std::vector<engine::LayerRows> layers;
  for (std::uint32_t layer = 0; layer < engine.descriptor().groups[0].layers.size(); ++layer) {
    layers.push_back(
        engine::read_layer(engine.descriptor(), state->bindings()[0], layer, {0, tokens.size()}).value());
  }
  engine.close(sequence);
  return layers;
}

// The prompt is four times as long as the window of the one that has one. A window of one token less
// changes layer 1 by a seventh.
TEST_P(Models, BothEnginesComputeTheSameInEveryLayer) {
  const auto one = make_engine({"llamacpp", "f32_v_transposed"}, 2, {file_.path(), ""});
  ASSERT_TRUE(one.ok()) << one.error().text();
  const auto other = make_engine({"openvino", "f32"}, 2, {file_.path(), ""});
  ASSERT_TRUE(other.ok()) << other.error().text();
  const auto expected = all_layers(**one, prompt(11), 20), found = all_layers(**other, prompt(11), 20);
  ASSERT_EQ(expected.size(), found.size());
  double largest = 0;
  for (std::size_t layer = 0; layer < found.size(); ++layer) {
    const double k = engine::relative_error(found[layer].k, expected[layer].k);
    const double v = engine::relative_error(found[layer].v, expected[layer].v);
    EXPECT_LT(std::max(k, v), 1e-3) << "layer " << layer << ": K " << k << ", V " << v;
    largest = std::max({largest, k, v});
  }
  RecordProperty("largest", std::to_string(largest));
}

TEST_P(Models, APairAnswersLikeItsDecoderAlone) {
  for (const auto& [prefill, decode] : {std::pair{Form{"llamacpp", "f16"}, Form{"openvino", "u8"}},
                                        {Form{"llamacpp", "f16"}, Form{"openvino", "f16"}},
                                        {Form{"openvino", "u8"}, Form{"llamacpp", "f16"}}}) {
    const auto from = make_engine(prefill, 2, {file_.path(), ""});
    ASSERT_TRUE(from.ok()) << from.error().text();
    const auto to = make_engine(decode, 2, {file_.path(), ""});
    ASSERT_TRUE(to.ok()) << to.error().text();
    qualify::Pair pair(**from, **to, kUnqualified);
    std::vector<qualify::Measured> measured;
    for (const std::size_t index : {3, 11}) {  // 16 and 100 tokens, and 64 that follow.
      const auto one = qualify::measure(pair, **from, **to, prompt(index));
      ASSERT_TRUE(one.ok()) << one.error().text();
      measured.push_back(*one);
    }
    const qualify::Summary summary = qualify::summarise(measured);
    RecordProperty("kl_ratio_" + prefill.kv_type + "_" + decode.kv_type, std::to_string(summary.ratio.mean));
    EXPECT_TRUE(summary.is_within_bar) << summary.pair.kl.mean << " against " << summary.engines.kl.mean;
    EXPECT_LT(summary.pair.kl.mean, 0.01);
    EXPECT_LT(summary.engines.kl.mean, 0.01);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Models,
                         testing::Values(engine::qwen2_model(), engine::qwen3_model(), engine::gemma_model(),
                                         biased_qwen3_model(), engine::gemma3_model()),
                         [](const auto& each) {
                           return each.param.architecture + (each.param.has_biases ? "_biased" : "");
                         });

}  // namespace
}  // namespace isthmus::crossing
