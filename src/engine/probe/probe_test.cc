// SPDX-License-Identifier: Apache-2.0
// The probe against an engine that can lie in every way that the probe claims to name.
#include "engine/probe/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/probe/expectation.h"
#include "engine/probe/hypotheses.h"
#include "engine/probe/model_facts.h"
#include "engine/probe/test_model.h"
#include "kv/catalogue.h"

namespace isthmus::engine {
namespace {

const std::string& model_path() {
  static const std::string path = llama_model().write(testing::TempDir() + "probe_model.gguf");
  return path;
}

kv::Descriptor descriptor_of(const std::string& storage, const std::string& path = model_path()) {
  return describe(read_model_facts(path).value(), *kv::find_storage(storage).value()).value();
}

void store(std::span<std::byte> to, kv::Format format, float value) {
  switch (format) {
    case kv::Format::kF32:
      return store_le(to, value);
    case kv::Format::kF16:
      return store_le(to, std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)));
    case kv::Format::kBf16:
      return store_le(to, static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0x8000u) >> 16));
    default:
      return store_le(to, static_cast<std::uint8_t>(value));
  }
}

// Layers of a state, laid out as `truth` says, in pools of 16 blocks or of 512 rows.
class StoredLayers : public ExportedKv {
 public:
  StoredLayers(const kv::Descriptor& truth, std::span<const LayerRows> layers)
      : layout_(truth.layout(0, 0).value()) {
    const std::uint32_t block_tokens = truth.representation[0].block_tokens;
    binding_.first_row = block_tokens == 0 ? 7 : 0;
    binding_.valid = {0, layers[0].tokens};
    for (std::uint32_t i = 0; block_tokens != 0 && i * block_tokens < layers[0].tokens; ++i) {
      binding_.blocks.push_back((i * 5 + 3) % 16);  // Scattered.
    }
    for (std::uint32_t layer = 0; layer < layers.size(); ++layer) {
      add_pools(layer, block_tokens == 0 ? 512 : 16);
      for (const kv::DecodeForm& form : truth.representation[0].forms) {
        write(form, layer, form.component == "k" ? layers[layer].k : layers[layer].v, layers[layer],
              block_tokens);
      }
    }
  }
  std::span<const kv::Binding> bindings() const override { return {&binding_, 1}; }
  std::uint64_t bytes() const override { return 0; }

 private:
  void add_pools(std::uint32_t layer, std::uint64_t extent) {
    for (const kv::RegionLayout& region : layout_.regions()) {
      pools_.emplace_back(layout_.region_bytes(region.name, extent), std::byte{0});
      binding_.memory.push_back({.region = region.name,
                                 .layer = layer,
                                 .base = pools_.back().data(),
                                 .bytes = pools_.back().size(),
                                 .open_extent = extent});
    }
  }

  void put(const std::string& part_name, const kv::ElementIndex& index, float value) {
    const kv::PartLayout& part = *layout_.part(part_name).value();
    for (std::size_t i = 0; i < binding_.memory.size(); ++i) {
      if (binding_.memory[i].region != part.region || binding_.memory[i].layer != index.layer) continue;
      const std::uint64_t offset = kv::bit_offset(part, index, binding_.memory[i].open_extent) / 8;
      store(std::span(pools_[i]).subspan(offset), part.format, value);
    }
  }

  void write(const kv::DecodeForm& form, std::uint32_t layer, const std::vector<float>& values,
             const LayerRows& rows, std::uint32_t block_tokens) {
    for (std::uint32_t row = 0; row < rows.tokens * rows.heads; ++row) {
      const std::uint32_t token = row / rows.heads;
      kv::ElementIndex index{.layer = layer, .token = binding_.first_row + token, .head = row % rows.heads};
      if (block_tokens != 0) {
        index.block = binding_.blocks[token / block_tokens];
        index.slot = token % block_tokens;
      }
      const std::span<const float> values_of_row(values.data() + std::size_t{row} * rows.dim, rows.dim);
      const auto [lowest, highest] = std::minmax_element(values_of_row.begin(), values_of_row.end());
      const float scale = (*highest - *lowest) / 255, zero = -*lowest / scale;
      const bool is_plain = form.operation == kv::DecodeOperation::kPlain;
      if (!is_plain) put(form.component + ".s", index, scale);
      if (!is_plain) put(form.component + ".z", index, zero);
      for (index.dim = 0; index.dim < rows.dim; ++index.dim) {
        const float value = values_of_row[index.dim];
        put(form.component, index, is_plain ? value : std::round(value / scale + zero));
      }
    }
  }

  kv::Layout layout_;
  std::vector<std::vector<std::byte>> pools_;
  kv::Binding binding_;
};

// Stores as `truth` says, what `change` makes of the right rows, and claims to store as `claim` says.
class FakeEngine : public Engine, public KvSource {
 public:
  explicit FakeEngine(kv::Descriptor truth, std::string model = model_path())
      : claim(truth), path(std::move(model)), truth_(std::move(truth)) {
    update_info();
  }

  std::function<void(LayerRows&, const Layer0&)> change = [](LayerRows&, const Layer0&) {};
  std::function<void(LayerRows&)> make_second;  // Of layer 1, given what layer 0 holds.
  // Of a layer, given what the file says.
  std::function<double(std::uint32_t, double)> theta = [](std::uint32_t, double stated) { return stated; };
  kv::Descriptor claim;
  std::string path;  // Of the model that it runs.
  bool is_source = true;

  void update_info() {
    info_.name = "fake";
    info_.vocabulary = TestModel::kVocabulary;
    info_.context_tokens_max = 512;
    info_.step_tokens_max = 24;
    info_.block_tokens = claim.representation[0].block_tokens;
  }
  const EngineInfo& info() const override { return info_; }
  const kv::Descriptor& descriptor() const override { return claim; }
  EngineUsage usage() const override { return {.sequences = open_ ? 1u : 0u}; }
  Result<SequenceId> open(std::uint64_t) override {
    open_ = true;
    tokens_.clear();
    return SequenceId{1};
  }
  void close(SequenceId) override { open_ = false; }
  std::uint64_t length(SequenceId) const override { return tokens_.size(); }
  Result<StepOutput> step(std::span<const StepItem> items) override {
    if (items[0].tokens.size() > info_.step_tokens_max) return Error{Code::kInvalidArgument, "too many"};
    tokens_.insert(tokens_.end(), items[0].tokens.begin(), items[0].tokens.end());
    return StepOutput{};
  }
  KvSource* kv_source() override { return is_source ? this : nullptr; }
  KvSink* kv_sink() override { return nullptr; }

  Result<std::unique_ptr<ExportedKv>> export_range(SequenceId, kv::TokenRange) override {
    const std::string pairing = truth_.groups[0].components[0].value_transforms[0].substr(5);  // "rope:..."
    const RopeBases bases = read_rope_bases(path).value();
    std::vector<LayerRows> layers;
    for (std::uint32_t layer = 0; layer < bases.of_layer.size(); ++layer) {
      layers.push_back(rows_of(layer, theta(layer, bases.of_layer[layer]), pairing));
    }
    if (make_second) make_second(layers[1] = layers[0]);
    return std::unique_ptr<ExportedKv>(std::make_unique<StoredLayers>(truth_, layers));
  }

 private:
  // Any layer is one, as long as no two are alike: layer 0 of tokens further on.
  LayerRows rows_of(std::uint32_t layer, double rope_theta, const std::string& pairing) const {
    std::vector<TokenId> tokens = tokens_;
    for (TokenId& token : tokens) token = (token + static_cast<TokenId>(layer)) % TestModel::kVocabulary;
    Layer0 made = project_layer0(path, tokens).value();
    made.rope_theta = rope_theta;
    LayerRows rows{.tokens = made.shape.tokens,
                   .heads = made.shape.heads,
                   .dim = made.shape.dim,
                   .k = kept(made, made.k, pairing, rope_theta),
                   .v = made.v};
    change(rows, made);
    return rows;
  }

  kv::Descriptor truth_;
  EngineInfo info_;
  std::vector<TokenId> tokens_;
  bool open_ = false;
};

std::string refusal(FakeEngine& engine) {
  engine.update_info();
  const auto report = probe_meaning(engine, engine.path, {0.02, 0.02});
  EXPECT_EQ(engine.usage().sequences, 0u);
  if (report.ok()) return "passed: " + report->text();
  EXPECT_EQ(report.code(), Code::kIncompatible);
  return report.error().detail;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

TEST(Expectation, FirstPositionIsUnrotatedAndLengthsAreKept) {
  const std::vector<TokenId> tokens{3, 9, 27};
  const Layer0 layer = project_layer0(model_path(), tokens).value();
  const LayerRows rows = expected_layer0(model_path(), tokens, "interleaved").value();
  const std::size_t row = std::size_t{2} * 64;
  EXPECT_TRUE(std::equal(layer.k.begin(), layer.k.begin() + row, rows.k.begin()));
  EXPECT_FALSE(std::equal(layer.k.begin() + row, layer.k.end(), rows.k.begin() + row));
  EXPECT_EQ(layer.v, rows.v);
  for (std::size_t i = 0; i < layer.k.size(); i += 2) {
    EXPECT_NEAR(std::hypot(layer.k[i], layer.k[i + 1]), std::hypot(rows.k[i], rows.k[i + 1]), 1e-5);
  }
  // The slowest pair of the second token turns by theta^(-62/64).
  const double angle = std::pow(50'000.0, -62.0 / 64);
  EXPECT_NEAR(rows.k[row + 62], layer.k[row + 62] * std::cos(angle) - layer.k[row + 63] * std::sin(angle),
              1e-6);
}

// Row r of a matrix of layer 0 times the normalised embedding of `token`.
double projected(int token, std::uint64_t stream, int r, double epsilon = 1e-5) {
  const auto embedding = random_floats(256 * 512, 1), norm = random_floats(256, 2),
             weight = random_floats(256 * 512, stream);
  double squares = 0, sum = 0;
  for (int i = 0; i < 256; ++i) squares += embedding[token * 256 + i] * embedding[token * 256 + i];
  for (int i = 0; i < 256; ++i) {
    sum += embedding[token * 256 + i] / std::sqrt(squares / 256 + epsilon) * norm[i] * weight[r * 256 + i];
  }
  return sum;
}

TEST(Expectation, ProjectionsFollowFromTheWeights) {
  EXPECT_NEAR(project_layer0(model_path(), std::vector<TokenId>{5})->v[100], projected(5, 4, 100), 1e-4);
}

TEST(Expectation, ProjectionsHaveTheirBiases) {
  const std::string path = qwen2_model().write(testing::TempDir() + "expected_qwen2.gguf");
  const Layer0 layer = project_layer0(path, std::vector<TokenId>{5}).value();
  EXPECT_NEAR(layer.k[77], projected(5, 3, 77) + random_floats(128, 103)[77], 1e-4);
  EXPECT_NEAR(layer.v[100], projected(5, 4, 100) + random_floats(128, 104)[100], 1e-4);
  // Rope turns elements 31 and 63 of the first head by one step of theta^(-62/64).
  const Layer0 two = project_layer0(path, std::vector<TokenId>{3, 5}).value();
  const LayerRows rows = expected_layer0(path, std::vector<TokenId>{3, 5}, "halves").value();
  const double angle = std::pow(50'000.0, -62.0 / 64);
  EXPECT_NEAR(rows.k[128 + 31], two.k[128 + 31] * std::cos(angle) - two.k[128 + 63] * std::sin(angle), 1e-6);
  const LayerRows other = expected_layer0(path, std::vector<TokenId>{3, 5}, "interleaved").value();
  EXPECT_EQ(other.k[128 + 62], rows.k[128 + 31]);
  EXPECT_EQ(other.k[128 + 63], rows.k[128 + 63]);
}

// A scale of 16 on embeddings is a 256th of the epsilon to their norm: 6e-5 of a row here.
TEST(Expectation, EmbeddingsAreScaledBeforeTheirNorm) {
  const std::string path = gemma_model().write(testing::TempDir() + "expected_gemma.gguf");
  const double scaled = project_layer0(path, std::vector<TokenId>{5})->v[100];
  EXPECT_NEAR(scaled / projected(5, 4, 100, 1e-5 / 256), 1, 1e-6);
  EXPECT_GT(std::abs(scaled / projected(5, 4, 100) - 1), 2e-5);
}

TEST(Expectation, RowsOfHeadsAreNormalised) {
  const std::string path = qwen3_model().write(testing::TempDir() + "expected_qwen3.gguf");
  const Layer0 layer = project_layer0(path, std::vector<TokenId>{5}).value();
  const auto gain = random_floats(128, 5, 0.5, 1);
  double squares = 0;  // Of the second head.
  for (int r = 128; r < 256; ++r) squares += std::pow(projected(5, 3, r), 2);
  for (const int r : {128, 200, 255}) {
    EXPECT_NEAR(layer.k[r], projected(5, 3, r) / std::sqrt(squares / 128 + 1e-5) * gain[r - 128], 1e-5);
  }
  EXPECT_NEAR(layer.v[200], projected(5, 4, 200), 1e-4) << "V has no norm";
}

TEST(Expectation, UnknownModelsAndPairingsAreRefused) {
  const std::vector<TokenId> tokens{5}, outside{512};
  EXPECT_EQ(expected_layer0(model_path(), tokens, "spiral").code(), Code::kInvalidArgument);
  EXPECT_EQ(expected_layer0(model_path(), outside, "halves").code(), Code::kInvalidArgument);
  GgufWriter scaled = llama_model().writer();
  scaled.f32("llama.rope.scaling.factor", 2);
  llama_model().add_tensors(scaled);
  const std::string path = write_file(testing::TempDir() + "scaled.gguf", scaled.bytes());
  EXPECT_EQ(expected_layer0(path, tokens, "halves").code(), Code::kUnsupported);
  GgufWriter empty = llama_model().writer();
  EXPECT_EQ(expected_layer0(write_file(path, empty.bytes()), tokens, "halves").code(), Code::kMalformed);
}

TEST(Probe, HonestEnginesPassInEveryStorage) {
  for (const auto& [storage, bound] :
       {std::pair{"llamacpp:f32", 1e-6}, std::pair{"llamacpp:f16", 1e-3}, std::pair{"llamacpp:bf16", 4e-3},
        std::pair{"openvino:f32", 1e-6}, std::pair{"openvino:u8", 1e-2}}) {
    FakeEngine engine(descriptor_of(storage));
    const auto report = probe_meaning(engine, model_path(), {bound, bound});
    ASSERT_TRUE(report.ok()) << storage << ": " << report.error().text();
    EXPECT_EQ(report->tokens, engine.info().block_tokens == 0 ? 40u : 69u);
    EXPECT_EQ(engine.usage().sequences, 0u);
  }
}

struct ValueLie {
  std::string claim;
  std::function<void(LayerRows&, const Layer0&)> change;
};

TEST(Probe, WhatWasDoneToTheValuesIsNamed) {
  const std::vector<ValueLie> lies{
      {"K and V are swapped", [](LayerRows& rows, const Layer0&) { std::swap(rows.k, rows.v); }},
      {"rope pairing is halves, the descriptor says interleaved",
       [](LayerRows& rows, const Layer0& layer) { rows.k = in_halves_order(layer.shape, rows.k); }},
      {"rope turns pairs of halves",
       [](LayerRows& rows, const Layer0& layer) {
         rows.k = rotate(layer.shape, layer.k, {.theta = layer.rope_theta, .pairs_halves = true});
       }},
      {"K is stored before rotation", [](LayerRows& rows, const Layer0& layer) { rows.k = layer.k; }},
      {"rope theta is 10000, the file says 50000",
       [](LayerRows& rows, const Layer0& layer) { rows.k = rotate(layer.shape, layer.k, {.theta = 1e4}); }},
      {"positions count from 1",
       [](LayerRows& rows, const Layer0& layer) {
         rows.k = rotate(layer.shape, layer.k, {.theta = layer.rope_theta, .first_position = 1});
       }},
      {"heads are stored rotated by 1; the same for V",
       [](LayerRows& rows, const Layer0&) {
         for (std::vector<float>* values : {&rows.k, &rows.v}) {
           for (std::size_t i = 0; i < values->size(); i += 128) {
             std::rotate(values->begin() + i, values->begin() + i + 64, values->begin() + i + 128);
           }
         }
       }},
      {"V is rotated like K",
       [](LayerRows& rows, const Layer0& layer) {
         rows.v = rotate(layer.shape, layer.v, {.theta = layer.rope_theta});
       }},
      {"V of layer 0 is off by 1 (tolerance 0.02): values are 2 times",
       [](LayerRows& rows, const Layer0&) {
         for (float& value : rows.v) value *= 2;
       }},
      {"no known mistake explains it",
       [](LayerRows& rows, const Layer0&) { rows.k = random_floats(rows.k.size(), 9); }},
      {"no known mistake explains it",
       [](LayerRows& rows, const Layer0&) { rows.v[5] = std::numeric_limits<float>::quiet_NaN(); }},
  };
  for (const ValueLie& lie : lies) {
    FakeEngine engine(descriptor_of("openvino:f32"));
    engine.change = lie.change;
    const std::string detail = refusal(engine);
    EXPECT_NE(detail.find(lie.claim), std::string::npos) << lie.claim << ": " << detail;
  }
}

std::vector<float> step_left_out(const std::vector<Omission>& omissions, const std::string& step) {
  const auto found = std::ranges::find(omissions, step, &Omission::step);
  return omissions.at(static_cast<std::size_t>(found - omissions.begin())).rows;
}

std::string path_of(const TestModel& model) {
  return model.write(testing::TempDir() + "probe_" + model.architecture + ".gguf");
}

TEST(ProbeOfArchitectures, HonestEnginesPassInEveryStorage) {
  TestModel biased = llama_model(), normed = qwen3_model();
  biased.has_biases = normed.has_biases = true;
  for (const TestModel& model :
       {qwen2_model(), qwen3_model(), gemma_model(), gemma3_model(), biased, normed}) {
    const std::string path = path_of(model);
    for (const auto& [storage, bound] : {std::pair{"llamacpp:f32", 1e-6}, std::pair{"llamacpp:f16", 1e-3},
                                         std::pair{"openvino:f32", 1e-6}, std::pair{"openvino:u8", 1e-2}}) {
      FakeEngine engine(descriptor_of(storage, path), path);
      const auto report = probe_meaning(engine, path, {bound, bound});
      EXPECT_TRUE(report.ok()) << model.architecture << storage << ": " << report.error().text();
    }
  }
}

void expect_refusals(const TestModel& model, const std::vector<ValueLie>& lies) {
  const std::string path = path_of(model);
  for (const ValueLie& lie : lies) {
    FakeEngine engine(descriptor_of("openvino:f32", path), path);
    engine.change = lie.change;
    const std::string detail = refusal(engine);
    EXPECT_NE(detail.find(lie.claim), std::string::npos) << lie.claim << ": " << detail;
  }
}

TEST(ProbeOfArchitectures, WhatIsLeftOutOrPairedOtherwiseIsNamed) {
  const std::vector<ValueLie> lies_of_all{
      {"rope pairing is interleaved, the descriptor says halves",
       [](LayerRows& rows, const Layer0& layer) { rows.k = in_interleaved_order(layer.shape, rows.k); }},
      {"rope turns pairs of neighbours although the weights are in halves order",
       [](LayerRows& rows, const Layer0& layer) {
         rows.k = rotate(layer.shape, layer.k, {.theta = layer.rope_theta});
       }},
      {"K is stored before rotation", [](LayerRows& rows, const Layer0& layer) { rows.k = layer.k; }},
      {"V is rotated like K",
       [](LayerRows& rows, const Layer0& layer) {
         rows.v = rotate(layer.shape, layer.v, {.theta = layer.rope_theta, .pairs_halves = true});
       }},
      {"positions count from 1",
       [](LayerRows& rows, const Layer0& layer) {
         rows.k = kept(layer, layer.k, "halves", layer.rope_theta, 1);
       }},
  };
  expect_refusals(qwen2_model(), lies_of_all);
  expect_refusals(qwen3_model(), lies_of_all);
  expect_refusals(gemma_model(), lies_of_all);
  expect_refusals(gemma3_model(), lies_of_all);
  expect_refusals(qwen2_model(),
                  {{"rows are stored without blk.0.attn_k.bias",
                    [](LayerRows& rows, const Layer0& layer) {
                      rows.k = kept(layer, step_left_out(layer.k_without, "blk.0.attn_k.bias"), "halves",
                                    layer.rope_theta);
                    }},
                   {"rows are stored without blk.0.attn_v.bias", [](LayerRows& rows, const Layer0& layer) {
                      rows.v = step_left_out(layer.v_without, "blk.0.attn_v.bias");
                    }}});
  expect_refusals(
      qwen3_model(),
      {{"rows are stored without blk.0.attn_k_norm.weight", [](LayerRows& rows, const Layer0& layer) {
          rows.k = kept(layer, step_left_out(layer.k_without, "blk.0.attn_k_norm.weight"), "halves",
                        layer.rope_theta);
        }}});
}

// Each 64 elements times the orthonormal Sylvester matrix, element by element.
std::vector<float> hadamard64(const std::vector<float>& rows) {
  std::vector<float> out(rows.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < 64; ++j) {
      sum += (std::popcount((i % 64) & j) % 2 == 0 ? 1 : -1) * rows[i / 64 * 64 + j];
    }
    out[i] = static_cast<float>(sum / 8);
  }
  return out;
}

TEST(Probe, HadamardRotatedRowsAreNamed) {
  FakeEngine engine(descriptor_of("llamacpp:f32"));
  engine.change = [](LayerRows& rows, const Layer0&) { rows.k = hadamard64(rows.k); };
  const std::string detail = refusal(engine);
  EXPECT_NE(detail.find("rows are stored after hadamard:64"), std::string::npos) << detail;
}

TEST(Probe, DescribedHadamardIsExpectedAndItsAbsenceNamed) {
  kv::Descriptor rotated = descriptor_of("llamacpp:f32");
  for (kv::Component& component : rotated.groups[0].components) {
    component.value_transforms.emplace_back("hadamard:64");
  }
  FakeEngine engine(rotated);
  engine.change = [](LayerRows& rows, const Layer0&) {
    rows.k = hadamard64(rows.k);
    rows.v = hadamard64(rows.v);
  };
  const auto report = probe_meaning(engine, model_path(), {1e-5, 1e-5});
  EXPECT_TRUE(report.ok()) << report.error().text();
  engine.change = [](LayerRows&, const Layer0&) {};
  const std::string detail = refusal(engine);
  EXPECT_NE(detail.find("without the hadamard:64 that the descriptor says; the same for V"),
            std::string::npos)
      << detail;
  engine.change = [](LayerRows& rows, const Layer0& layer) {
    rows.k = hadamard64(in_halves_order(layer.shape, rows.k));
    rows.v = hadamard64(rows.v);
  };
  EXPECT_NE(refusal(engine).find("rope pairing is halves, the descriptor says interleaved"),
            std::string::npos);
}

// Layer 0 of Gemma 3 is a local one, layer 5 isn't.
TEST(ProbeOfArchitectures, ARopeOfAnotherKindOfLayerIsNamed) {
  const std::string path = path_of(gemma3_model());
  const auto refusal_of = [&](std::uint32_t lying, double lie) {
    FakeEngine engine(descriptor_of("llamacpp:f16", path), path);
    engine.theta = [=](std::uint32_t layer, double stated) { return layer == lying ? lie : stated; };
    return refusal(engine);
  };
  EXPECT_EQ(refusal_of(5, 1e6).find("passed"), 0u);
  EXPECT_NE(refusal_of(0, 1e6).find("rope theta is 1000000, the file says 10000"), std::string::npos)
      << refusal_of(0, 1e6);
  for (const auto& [layer, lie, claim] :
       {std::tuple{4u, 1e6, "K of layer 4: rows of one token are off"},
        {4u, 1e6, "(tolerance 0.04): rope theta is 1000000, the file says 10000"},
        {5u, 1e4, "(tolerance 0.04): rope theta is 10000, the file says 1000000"},
        {5u, 2e4, "(tolerance 0.04): no known base explains it"}}) {
    const std::string detail = refusal_of(layer, lie);
    EXPECT_NE(detail.find(claim), std::string::npos) << claim << ": " << detail;
  }
}

struct LayoutLie {
  std::string storage, claim;
  std::function<void(kv::Descriptor&)> change;
};

TEST(Probe, WhatTheLayoutMisstatesIsNamed) {
  const auto text = [](const std::string& from, const std::string& to) {
    return [=](kv::Descriptor& lie) {
      lie.representation[0].layout_text = replaced(lie.representation[0].layout_text, from, to);
    };
  };
  const auto blocks = [](std::uint32_t size) {
    return [=](kv::Descriptor& lie) { lie.representation[0].block_tokens = size; };
  };
  const auto format = [](const std::string& from, const std::string& to, kv::Format code) {
    return [=](kv::Descriptor& lie) {
      lie.representation[0].layout_text = replaced(lie.representation[0].layout_text, ":" + from, ":" + to);
      for (kv::DecodeForm& form : lie.representation[0].forms) form.codes = code;
    };
  };
  const std::vector<LayoutLie> lies{
      {"openvino:f32", "blocks hold 32 tokens, the descriptor says 16", blocks(16)},
      {"openvino:f32", "blocks hold 32 tokens, the descriptor says 64", blocks(64)},
      {"openvino:u8", "blocks hold 32 tokens, the descriptor says 128", blocks(128)},
      {"openvino:f32", "the order is \"head slot\", the descriptor says \"slot head\"",
       text("head slot", "slot head")},
      {"llamacpp:f16", "elements are f16, the descriptor says bf16",
       format("f16", "bf16", kv::Format::kBf16)},
      {"llamacpp:bf16", "elements are bf16, the descriptor says f16",
       format("bf16", "f16", kv::Format::kF16)},
      {"openvino:f32", "elements are f32, the descriptor says f16", format("f32", "f16", kv::Format::kF16)},
      {"openvino:u8", "scale and zero point lie the other way round",
       [](kv::Descriptor& lie) {
         std::string& layout = lie.representation[0].layout_text;
         layout = replaced(replaced(replaced(layout, ".s:", ".x:"), ".z:", ".s:"), ".x:", ".z:");
       }},
      {"openvino:u8", "elements are u8, the descriptor says i8",
       [](kv::Descriptor& lie) {
         std::string& layout = lie.representation[0].layout_text;
         layout = replaced(replaced(layout, "k:u8", "k:i8"), "v:u8", "v:i8");
         for (kv::DecodeForm& form : lie.representation[0].forms) form.codes = kv::Format::kI8;
       }},
  };
  for (const LayoutLie& lie : lies) {
    FakeEngine engine(descriptor_of(lie.storage));
    lie.change(engine.claim);
    const std::string detail = refusal(engine);
    EXPECT_NE(detail.find(lie.claim), std::string::npos) << lie.claim << ": " << detail;
  }
}

TEST(Probe, WhatIsOddAboutALaterLayerIsNamed) {
  struct Odd {
    std::string claim;
    std::function<void(LayerRows&)> make;
  };
  const std::vector<Odd> odd{
      {"K of layer 1: the same numbers as in layer 0", [](LayerRows& rows) { std::ranges::reverse(rows.v); }},
      {"V of layer 1: the same numbers as in layer 0", [](LayerRows& rows) { std::ranges::reverse(rows.k); }},
      {"V of layer 1: the same numbers as in layer 1",
       [](LayerRows& rows) {
         std::ranges::reverse(rows.k);
         rows.v = rows.k;
       }},
      {"K of layer 1: every element is 3", [](LayerRows& rows) { std::ranges::fill(rows.k, 3.0f); }},
      {"V of layer 1: nothing but zeros at position 17",
       [](LayerRows& rows) {
         std::ranges::reverse(rows.k);
         std::ranges::reverse(rows.v);
         std::fill_n(rows.v.begin() + 17 * 128, 128, 0.0f);
       }},
      {"K of layer 1: element 4001 is inf",
       [](LayerRows& rows) { rows.k[4001] = std::numeric_limits<float>::infinity(); }},
  };
  for (const Odd& layer : odd) {
    FakeEngine engine(descriptor_of("openvino:f32"));
    engine.make_second = layer.make;
    const std::string detail = refusal(engine);
    EXPECT_NE(detail.find(layer.claim), std::string::npos) << layer.claim << ": " << detail;
  }
}

TEST(Probe, TransposedValuesAreNamedAndSoAreThoseThatAreNot) {
  for (const auto& [truth, claim] : {std::pair{"llamacpp:f16", "llamacpp:f16_v_transposed"},
                                     std::pair{"llamacpp:f16_v_transposed", "llamacpp:f16"}}) {
    FakeEngine engine(descriptor_of(truth));
    engine.claim = descriptor_of(claim);
    const std::string detail = refusal(engine);
    EXPECT_NE(detail.find("V of layer 0 is off by"), std::string::npos) << detail;
    EXPECT_EQ(detail.find("K of layer 0"), std::string::npos) << detail;
    EXPECT_NE(detail.find(std::string(truth) == "llamacpp:f16"
                              ? "the order is \"tok head dim v\", the descriptor says \"head dim tok v\""
                              : "the order is \"head dim tok v\", the descriptor says \"tok head dim v\""),
              std::string::npos)
        << detail;
  }
}

TEST(Probe, StatementsThatTheFileContradictsAreNamed) {
  FakeEngine theta(descriptor_of("openvino:f32"));
  theta.claim.identity.rope_theta = 1e6;
  EXPECT_NE(refusal(theta).find("identity.rope_theta is 1000000 in the descriptor, 50000 in the file"),
            std::string::npos);
  FakeEngine heads(descriptor_of("openvino:f32"));
  for (kv::Component& component : heads.claim.groups[0].components) component.heads = 4;
  EXPECT_NE(refusal(heads).find("4 heads of 64 in the descriptor, 2 of 64 in the file"), std::string::npos);
}

TEST(Probe, AnEngineWithoutASourceIsUnsupported) {
  FakeEngine engine(descriptor_of("openvino:f32"));
  engine.is_source = false;
  EXPECT_EQ(probe_meaning(engine, model_path(), {0.01, 0.01}).code(), Code::kUnsupported);
}

TEST(ReadLayer, PlacesOutsideTheBindingAreRefused) {
  const kv::Descriptor descriptor = descriptor_of("openvino:f32");
  LayerRows rows = expected_layer0(model_path(), std::vector<TokenId>(40, 7), "interleaved").value();
  const StoredLayers stored(descriptor, {&rows, 1});
  EXPECT_EQ(read_layer(descriptor, stored.bindings().front(), 0, {0, 40})->k, rows.k);
  EXPECT_EQ(read_layer(descriptor, stored.bindings().front(), 0, {0, 41}).code(), Code::kInvalidArgument);
  EXPECT_EQ(read_layer(descriptor, stored.bindings().front(), 2, {0, 40}).code(), Code::kInvalidArgument);
  kv::Binding broken = stored.bindings().front();
  broken.blocks[1] = 16;
  EXPECT_EQ(read_layer(descriptor, broken, 0, {0, 40}).code(), Code::kIncompatible);
  broken = stored.bindings().front();
  broken.memory[0].open_extent = 8;  // Block 8 has bytes, but isn't one of the pool's.
  EXPECT_EQ(read_layer(descriptor, broken, 0, {0, 40}).code(), Code::kIncompatible);
  broken = stored.bindings().front();
  broken.blocks.pop_back();
  EXPECT_EQ(read_layer(descriptor, broken, 0, {0, 40}).code(), Code::kIncompatible);
  broken = stored.bindings().front();
  broken.memory[0].bytes -= 1;
  broken.blocks[0] = 15;
  EXPECT_EQ(read_layer(descriptor, broken, 0, {0, 40}).code(), Code::kIncompatible);
  broken = stored.bindings().front();
  broken.memory.pop_back();
  EXPECT_EQ(read_layer(descriptor, broken, 0, {0, 40}).code(), Code::kIncompatible);
}

}  // namespace
}  // namespace isthmus::engine
