// SPDX-License-Identifier: Apache-2.0
// Does the unlike pair answer like its decoder alone, and would this test notice if it didn't?
// KL(decoder alone ‖ pair), teacher-forced along the decoder's own 64 greedy tokens, full vocabulary, f64,
// mean over positions 1-63 and prompts; position 0 is the producer's and is reported apart.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/digest.h"
#include "crossing/damage.h"
#include "crossing/pair.h"
#include "engine/llamacpp/llamacpp.h"
#include "engine/llamacpp/tokenizer.h"
#include "engine/openvino/openvino.h"
#include "kv/negotiate.h"

namespace isthmus::crossing {
namespace {

constexpr std::size_t kForced = 64;
// One below, at and above each block (32), tile and chunk (256) and step (512); three over 600.
constexpr std::size_t kLengths[] = {3,   5,   9,   16,  31,  32,  33,  48,  63,  64,  65,  100,  127,
                                    128, 129, 200, 255, 256, 257, 400, 511, 512, 513, 801, 1200, 2000};
constexpr double kRatioMax = 1.5;     // Pair against the engines' own distance.
constexpr double kDamageFactor = 10;  // What each kind of damage must do at least.

// The record that the bounded policy would need is what this test writes.
const kv::Policy kUnqualified{
    .exactness = kv::Exactness::kUnqualified, .roundings_max = 1, .qualifications = {}};

std::string model_path() {
  return std::getenv("ISTHMUS_TEST_MODEL");
}

// Everything that is loaded once: engines, prompts, and the baselines of each decoder.
struct Bench {
  std::unique_ptr<engine::Engine> prefill;
  std::map<std::string, std::unique_ptr<engine::Engine>> decoders;
  Tokens corpus;

  static Bench& instance() {
    static Bench bench;
    return bench;
  }

  engine::Engine& decoder(const std::string& kv_type) {
    auto& engine = decoders[kv_type];
    if (!engine) {
      engine = *engine::openvino::make_openvino({.gguf_path = model_path(),
                                                 .kv_type = kv_type,
                                                 .threads = 2,
                                                 .kv_tokens = 4608,
                                                 .sequences_max = 4});
    }
    return *engine;
  }

  // Each prompt begins elsewhere in the corpus, which is read round and round.
  Tokens prompt(std::size_t index) const {
    Tokens tokens;
    for (std::size_t i = 0; i < kLengths[index]; ++i)
      tokens.push_back(corpus[(index * 71 + i) % corpus.size()]);
    return tokens;
  }

 private:
  Bench() {
    prefill = *engine::llamacpp::make_llamacpp(
        {.model_path = model_path(), .threads = 2, .context_tokens = 4608, .sequences_max = 4});
    const auto tokenizer = *engine::llamacpp::make_tokenizer(model_path());
    std::ifstream file(ISTHMUS_CROSSING_PROMPTS);
    std::stringstream text;
    text << file.rdbuf();
    corpus = *tokenizer->encode(text.str(), false, false);
  }
};

// The decoder's own greedy tokens: the slow part, one forward a token, so kept between runs in the build
// folder.
Tokens own_tokens(engine::Engine& engine, const std::string& kv_type, const Tokens& prompt) {
  std::string key = engine.info().version + engine.descriptor().digest().hex() + kv_type;
  for (const engine::TokenId token : prompt) key += fmt::format(" {}", token);
  const std::filesystem::path path = std::filesystem::path("crossing_baselines") / digest128(key).hex();
  Tokens tokens;
  if (std::ifstream file(path); file) {
    for (engine::TokenId token = 0; file >> token;) tokens.push_back(token);
    if (tokens.size() == kForced) return tokens;
  }
  const engine::SequenceId sequence = *engine.open(prompt.size() + kForced);
  const Logits last = *run_prompt(engine, sequence, prompt);
  tokens = *run_greedy(engine, sequence, last, kForced);
  engine.close(sequence);
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  for (const engine::TokenId token : tokens) file << token << ' ';
  return tokens;
}

// Rows 0..63: after the prompt, and after each of the first 63 forced tokens.
Logits rows_alone(engine::Engine& engine, const Tokens& prompt, const Tokens& forced) {
  const engine::SequenceId sequence = *engine.open(prompt.size() + kForced);
  Logits rows = *run_prompt(engine, sequence, prompt);
  const Logits more = *run_forced(engine, sequence, std::span(forced).first(kForced - 1));
  engine.close(sequence);
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

double mean_kl(const Logits& p, const Logits& q, std::size_t vocabulary, std::size_t from = 1) {
  double sum = 0;
  for (std::size_t i = from; i < kForced; ++i) {
    sum += kl_divergence(std::span(p).subspan(i * vocabulary, vocabulary),
                         std::span(q).subspan(i * vocabulary, vocabulary));
  }
  return sum / static_cast<double>(kForced - from);
}

struct CrossedRows {
  Logits pair;     // First row the producer's, the others the decoder's.
  Logits prefill;  // The producer going on alone.
};

CrossedRows rows_of_pair(Pair& pair, engine::Engine& decoder, const Tokens& prompt, const Tokens& forced,
                         const std::function<void(const kv::Binding&)>& before_adopt = {}) {
  const std::uint64_t computed = decoder.usage().tokens_computed;
  Result<HandedOver> handed = pair.hand_over(prompt, prompt.size() + kForced, before_adopt);
  EXPECT_TRUE(handed.ok()) << handed.error().text();
  if (!handed.ok()) return {};
  EXPECT_EQ(decoder.usage().tokens_computed, computed) << "the decoder computed a prompt token";
  CrossedRows rows{handed->first_row, handed->first_row};
  const auto go_on = [&](engine::Engine& engine, engine::SequenceId sequence, Logits& into) {
    const Logits more = *run_forced(engine, sequence, std::span(forced).first(kForced - 1));
    engine.close(sequence);
    into.insert(into.end(), more.begin(), more.end());
  };
  go_on(decoder, handed->sequence, rows.pair);
  go_on(*Bench::instance().prefill, handed->source, rows.prefill);
  return rows;
}

// spec/qualification.md.
std::string qualification_yaml(const kv::Descriptor& source, const kv::Descriptor& target, double pair_kl,
                               double engines_kl) {
  std::string text =
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# Written by crossing_test with ISTHMUS_WRITE_QUALIFICATION set; see spec/qualification.md.\n";
  text += fmt::format("prefill_recipe: {}\ndecode_recipe: {}\nlineage: {}\n", source.weights_recipe,
                      target.weights_recipe, source.identity.lineage);
  text +=
      fmt::format("wire_form: \"{}\"\ndecode_form: \"{}\"\n", kv::qualification_form(source.representation),
                  kv::qualification_form(target.representation));
  text += fmt::format("kl_pair: {:.4e}\nkl_engines: {:.4e}\nprompts: {}\n", pair_kl, engines_kl,
                      std::size(kLengths));
  return text;
}

void write_record(const std::string& kv_type, const engine::Engine& decoder, double pair_kl,
                  double engines_kl) {
  const char* folder = std::getenv("ISTHMUS_WRITE_QUALIFICATION");
  if (folder == nullptr) return;
  const Bench& bench = Bench::instance();
  std::ofstream file(std::filesystem::path(folder) / fmt::format("llamacpp-f16_openvino-{}.yaml", kv_type));
  file << qualification_yaml(bench.prefill->descriptor(), decoder.descriptor(), pair_kl, engines_kl);
}

class Crossing : public testing::TestWithParam<const char*> {};

TEST_P(Crossing, ThePairAnswersLikeItsDecoderAlone) {
  Bench& bench = Bench::instance();
  engine::Engine& decoder = bench.decoder(GetParam());
  const std::size_t vocabulary = decoder.info().vocabulary;
  Pair pair(*bench.prefill, decoder, kUnqualified);
  double pair_sum = 0, engines_sum = 0, first_sum = 0;
  fmt::print(
      "llamacpp:f16 -> openvino:{}   KL in nats, mean over positions 1-63\n{:>7} {:>12} {:>12} {:>12}\n",
      GetParam(), "tokens", "pair", "engines", "position 0");
  for (std::size_t i = 0; i < std::size(kLengths); ++i) {
    const Tokens prompt = bench.prompt(i);
    const Tokens forced = own_tokens(decoder, GetParam(), prompt);
    const Logits alone = rows_alone(decoder, prompt, forced);
    const CrossedRows crossed = rows_of_pair(pair, decoder, prompt, forced);
    ASSERT_EQ(crossed.pair.size(), alone.size());
    const double kl_pair = mean_kl(alone, crossed.pair, vocabulary);
    const double kl_engines = mean_kl(alone, crossed.prefill, vocabulary);
    const double kl_first =
        kl_divergence(std::span(alone).first(vocabulary), std::span(crossed.pair).first(vocabulary));
    fmt::print("{:>7} {:>12.3e} {:>12.3e} {:>12.3e}\n", prompt.size(), kl_pair, kl_engines, kl_first);
    pair_sum += kl_pair;
    engines_sum += kl_engines;
    first_sum += kl_first;
  }
  const auto count = static_cast<double>(std::size(kLengths));
  fmt::print("{:>7} {:>12.3e} {:>12.3e} {:>12.3e}   pair/engines {:.2f}, bar {}\n", "mean", pair_sum / count,
             engines_sum / count, first_sum / count, pair_sum / engines_sum, kRatioMax);
  EXPECT_LE(pair_sum, kRatioMax * engines_sum);
  write_record(GetParam(), decoder, pair_sum / count, engines_sum / count);
}

TEST_P(Crossing, EachKindOfDamageIsSeen) {
  Bench& bench = Bench::instance();
  engine::Engine& decoder = bench.decoder(GetParam());
  const std::size_t vocabulary = decoder.info().vocabulary;
  Pair pair(*bench.prefill, decoder, kUnqualified);
  const Tokens prompt = bench.prompt(15);
  const Tokens forced = own_tokens(decoder, GetParam(), prompt);
  const Logits alone = rows_alone(decoder, prompt, forced);
  const double honest = mean_kl(alone, rows_of_pair(pair, decoder, prompt, forced).pair, vocabulary);
  for (const Damage& damage : damages(decoder.descriptor())) {
    const CrossedRows rows = rows_of_pair(pair, decoder, prompt, forced, [&](const kv::Binding& memory) {
      damage.apply(decoder.descriptor(), memory);
    });
    const double kl = mean_kl(alone, rows.pair, vocabulary);
    fmt::print("openvino:{} {:<28} KL {:.3e}, {:.0f} times the honest pair's\n", GetParam(), damage.name, kl,
               kl / honest);
    EXPECT_GE(kl, kDamageFactor * honest) << damage.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, Crossing, testing::Values("f32", "u8"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace isthmus::crossing
