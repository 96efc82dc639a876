// SPDX-License-Identifier: Apache-2.0
// A state that crosses between two engines of one KV type changes no bit of what follows.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/llamacpp/test_engine.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::size_t kSteps = 64;
constexpr std::uint64_t kContext = 768;

// Forced single-token steps; all logits. `beside` takes the same steps, in the same forwards.
std::vector<std::vector<float>> decode(Engine& engine, SequenceId sequence, std::size_t steps = kSteps,
                                       std::span<const SequenceId> beside = {}) {
  std::vector<std::vector<float>> rows;
  for (const TokenId token : prompt(steps, 7)) {
    std::vector<StepItem> items{{.sequence = sequence, .tokens = {&token, 1}, .logits = 1}};
    for (const SequenceId other : beside)
      items.push_back({.sequence = other, .tokens = {&token, 1}, .logits = 1});
    const auto output = engine.step(items);
    EXPECT_TRUE(output.ok()) << output.error().text();
    const auto own = output->logits.first(engine.info().vocabulary);
    rows.emplace_back(own.begin(), own.end());
  }
  return rows;
}

std::size_t equal_steps(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  std::size_t equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += same_bits(a[i], b[i]) ? 1 : 0;
  return equal;
}

double mean_kl(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += kl(a[i], b[i]);
  return sum / static_cast<double>(a.size());
}

// Runs a prompt in one engine, hands it to another whole and in tiles of 256, and goes on in all.
void expect_exact(const std::string& kv_type, const std::vector<std::size_t>& prompts) {
  const auto source = make(kContext, 1, kv_type, 512), target = make(kContext, 1, kv_type, 512);
  for (const std::size_t tokens : prompts) {
    const auto from = source->open(kContext).value();
    const auto all = prompt(tokens);
    const std::size_t head = std::min<std::size_t>(tokens - 2, 500);  // No chunk of one token.
    run(*source, from, std::span(all).first(head), 0);
    run(*source, from, std::span(all).subspan(head), 0);
    const auto whole = hand_over(*source, from, *target, kContext);
    const auto from_whole = decode(*target, whole);
    target->close(whole);
    const auto tiled = hand_over(*source, from, *target, kContext, 256);
    const auto expected = decode(*source, from);
    EXPECT_EQ(equal_steps(expected, from_whole), kSteps) << kv_type << ", " << tokens << " tokens";
    EXPECT_EQ(equal_steps(expected, decode(*target, tiled)), kSteps)
        << kv_type << ", " << tokens << " tokens in tiles";
    target->close(tiled);
    source->close(from);
  }
}

TEST(LlamaExactness, F16CrossesWithoutAChangedBit) {
  expect_exact("f16", {31, 32, 33, 255, 256, 257, 511, 512, 513});
}

TEST(LlamaExactness, Q8CrossesWithoutAChangedBit) {
  expect_exact("q8_0", {33, 512});
}

TEST(LlamaExactness, NeitherNeighboursNorHolesNorBatchesChangeABitOfDecoding) {
  constexpr std::size_t kFewSteps = 12;
  const auto source = make(512, 1, "f16", 512), target = make(1024, 10, "f16", 512);
  const auto from = source->open(220).value();
  run(*source, from, prompt(200), 0);
  const auto leaves = target->open(50).value();
  run(*target, leaves, prompt(50, 3), 0);
  std::vector<SequenceId> beside;
  for (int i = 0; i < 7; ++i) {
    beside.push_back(target->open(40).value());
    run(*target, beside.back(), prompt(20, 5 + i), 0);
  }
  target->close(leaves);
  // Its first 50 cells lie before the neighbours', the others behind.
  const auto alone = hand_over(*source, from, *target, 220);
  const auto together = hand_over(*source, from, *target, 220);
  const auto expected = decode(*source, from, kFewSteps);
  EXPECT_EQ(equal_steps(expected, decode(*target, alone, kFewSteps)), kFewSteps);
  EXPECT_EQ(equal_steps(expected, decode(*target, together, kFewSteps, beside)), kFewSteps);
}

TEST(LlamaExactness, TransposedValuesCrossWithoutMoreThanFlashAttentionItselfChanges) {
  const auto source = make(256, 1), target = make(256, 1, "f16_v_transposed"),
             alone = make(256, 1, "f16_v_transposed");
  const auto tokens = prompt(120);
  const auto from = source->open(200).value(), to = target->open(200).value(), own = alone->open(200).value();
  run(*source, from, tokens, 0);
  run(*alone, own, tokens, 0);
  const auto state = source->kv_source()->export_range(from, {0, tokens.size()}).value();
  const auto binding = target->kv_sink()->bind(to, {0, tokens.size()}).value().front();
  ASSERT_NO_FATAL_FAILURE(
      copy_elements(source->descriptor(), state->bindings().front(), target->descriptor(), binding));
  ASSERT_TRUE(target->kv_sink()->adopt(to, {0, tokens.size()}).ok());
  const auto reference = decode(*source, from);
  const double crossed = mean_kl(reference, decode(*target, to));
  const double by_itself = mean_kl(reference, decode(*alone, own));
  RecordProperty("kl_crossed", std::to_string(crossed));
  RecordProperty("kl_by_itself", std::to_string(by_itself));
  EXPECT_LE(crossed, 1.5 * by_itself);
  EXPECT_LT(crossed, 1e-2);
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
