// SPDX-License-Identifier: Apache-2.0
// Does the unlike pair answer like its decoder alone, and would this test notice if it didn't?
// The first crossing over all prompts, with the state moving while prefill runs. All pairs: matrix_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "crossing/damage.h"
#include "crossing/measure.h"
#include "qualify/pair.h"
#include "qualify/summary.h"

namespace isthmus::crossing {
namespace {

constexpr double kDamageFactor = 10;  // What each kind of damage must do at least.

// Everything that is loaded once.
struct Bench {
  std::unique_ptr<engine::Engine> prefill = *make_engine({"llamacpp", "f16"}, 2);
  std::map<std::string, std::unique_ptr<engine::Engine>> decoders;

  static Bench& instance() {
    static Bench bench;
    return bench;
  }

  engine::Engine& decoder(const std::string& kv_type) {
    auto& engine = decoders[kv_type];
    if (!engine) engine = *make_engine({"openvino", kv_type}, 2);
    return *engine;
  }
};

struct CrossedRows {
  Logits pair;     // First row the producer's, the others the decoder's.
  Logits prefill;  // The producer going on alone.
};

CrossedRows rows_of_pair(qualify::Pair& pair, engine::Engine& decoder, const Tokens& prompt,
                         const Tokens& forced,
                         const std::function<void(const kv::Binding&)>& before_adopt = {}) {
  const std::uint64_t computed = decoder.usage().tokens_computed;
  Result<qualify::HandedOver> handed = pair.hand_over(prompt, prompt.size() + kForced, before_adopt);
  EXPECT_TRUE(handed.ok()) << handed.error().text();
  if (!handed.ok()) return {};
  EXPECT_EQ(decoder.usage().tokens_computed, computed) << "the decoder computed a prompt token";
  return {*qualify::rows_after(decoder, handed->sequence, handed->first_row, forced),
          *qualify::rows_after(*Bench::instance().prefill, handed->source, handed->first_row, forced)};
}

class Crossing : public testing::TestWithParam<const char*> {};

TEST_P(Crossing, ThePairAnswersLikeItsDecoderAlone) {
  Bench& bench = Bench::instance();
  engine::Engine& decoder = bench.decoder(GetParam());
  const std::size_t vocabulary = decoder.info().vocabulary;
  qualify::Pair pair(*bench.prefill, decoder, kUnqualified);
  std::vector<qualify::Measured> measured;
  fmt::print(
      "llamacpp:f16 -> openvino:{}   KL in nats, mean over positions 1-63\n{:>7} {:>12} {:>12} {:>12}\n",
      GetParam(), "tokens", "pair", "engines", "position 0");
  for (std::size_t i = 0; i < qualify::prompt_lengths().size(); ++i) {
    const Tokens tokens = prompt(i);
    const Tokens forced = own_tokens(decoder, tokens);
    const qualify::Reference alone = reference(decoder, tokens, forced);
    const CrossedRows crossed = rows_of_pair(pair, decoder, tokens, forced);
    ASSERT_EQ(crossed.pair.size(), kForced * vocabulary);
    const qualify::Difference of_pair = alone.difference(crossed.pair);
    const qualify::Difference of_prefill = alone.difference(crossed.prefill);
    fmt::print("{:>7} {:>12.3e} {:>12.3e} {:>12.3e}\n", tokens.size(), of_pair.kl, of_prefill.kl,
               of_pair.first_kl);
    measured.push_back({tokens.size(), alone.surprise(), of_pair, of_prefill});
  }
  const qualify::Summary summary = qualify::summarise(measured);
  fmt::print("{:>7} {:>12.3e} {:>12.3e} {:>12.3e}   pair/engines {:.2f}, bar {}\n", "mean",
             summary.pair.kl.mean, summary.engines.kl.mean, summary.pair.first_kl.mean, summary.ratio.mean,
             kv::kKlRatioMax);
  EXPECT_TRUE(summary.is_within_bar) << summary.ratio.mean;
}

TEST_P(Crossing, EachKindOfDamageIsSeen) {
  Bench& bench = Bench::instance();
  engine::Engine& decoder = bench.decoder(GetParam());
  qualify::Pair pair(*bench.prefill, decoder, kUnqualified);
  const Tokens tokens = prompt(15);
  const Tokens forced = own_tokens(decoder, tokens);
  const qualify::Reference alone = reference(decoder, tokens, forced);
  const double honest = alone.difference(rows_of_pair(pair, decoder, tokens, forced).pair).kl;
  for (const Damage& damage : damages(decoder.descriptor())) {
    const CrossedRows rows = rows_of_pair(pair, decoder, tokens, forced, [&](const kv::Binding& memory) {
      damage.apply(decoder.descriptor(), memory);
    });
    const double kl = alone.difference(rows.pair).kl;
    fmt::print("openvino:{} {:<28} KL {:.3e}, {:.0f} times the honest pair's\n", GetParam(), damage.name, kl,
               kl / honest);
    EXPECT_GE(kl, kDamageFactor * honest) << damage.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, Crossing, testing::Values("f32", "u8"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace isthmus::crossing
