// SPDX-License-Identifier: Apache-2.0
// Instruction sets: what can be chosen, what is refused, and that the choice is what runs.
#include "engine/llamacpp/instruction_set.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/llamacpp/test_engine.h"

namespace isthmus::engine::llamacpp {
namespace {

bool has_avx512() {
  return find_instruction_set("avx512").ok();
}

struct Outcome {
  std::string recipe;
  std::vector<float> logits;
  std::vector<std::byte> state;
};

Outcome run_with(const std::string& isa) {
  const auto engine = make_llamacpp({.model_path = ISTHMUS_MODEL,
                                     .threads = 1,
                                     .context_tokens = 256,
                                     .sequences_max = 1,
                                     .step_tokens_max = 256,
                                     .isa = isa});
  EXPECT_TRUE(engine.ok()) << engine.error().text();
  const auto sequence = (*engine)->open(128).value();
  Outcome outcome;
  outcome.recipe = (*engine)->descriptor().weights_recipe;
  outcome.logits = run(**engine, sequence, prompt(100));
  outcome.state = plane(*(*engine)->kv_source()->export_range(sequence, {0, 100}).value(), "K", 29);
  return outcome;
}

TEST(InstructionSet, WhatCannotBeHadIsRefusedWithWhatCan) {
  EXPECT_TRUE(find_instruction_set("native").ok());
  for (const std::string choice : {"portable", "avx2"}) {
    const auto refused = find_instruction_set(choice);
    ASSERT_EQ(refused.code(), Code::kUnsupported);
    EXPECT_NE(refused.error().detail.find("native"), std::string::npos);
    EXPECT_EQ(refused.error().detail.find(" and avx512 can be had") != std::string::npos, has_avx512())
        << refused.error().detail;
  }
  EXPECT_EQ(find_instruction_set("mmx").code(), Code::kInvalidArgument);
  EXPECT_EQ(make_llamacpp({.model_path = ISTHMUS_MODEL, .isa = "portable"}).code(), Code::kUnsupported);
}

TEST(InstructionSet, Avx512IsKeptFromAmx) {
  if (find_instruction_set("native")->name != "amx") GTEST_SKIP() << "not run: no AMX";
  const Outcome amx = run_with("native"), avx512 = run_with("avx512"), again = run_with("avx512");
  EXPECT_EQ(amx.recipe, "llamacpp.amx/gguf-q4_1");
  EXPECT_EQ(avx512.recipe, "llamacpp.avx512/gguf-q4_1");
  EXPECT_NE(amx.state, avx512.state);
  EXPECT_EQ(avx512.state, again.state);
  EXPECT_LT(kl(amx.logits, avx512.logits), 2e-2);
}

TEST(InstructionSet, WithoutAmxTheVectorsAreNativeToTheBit) {
  if (find_instruction_set("native")->name != "avx512") GTEST_SKIP() << "not run: AMX, or no AVX-512";
  const Outcome native = run_with("native"), avx512 = run_with("avx512");
  EXPECT_EQ(native.recipe, "llamacpp.avx512/gguf-q4_1");
  EXPECT_EQ(avx512.recipe, native.recipe);
  EXPECT_EQ(avx512.state, native.state);
  EXPECT_TRUE(same_bits(avx512.logits, native.logits));
}

}  // namespace
}  // namespace isthmus::engine::llamacpp
