// SPDX-License-Identifier: Apache-2.0
// Prefill in one storage on some ranks, decode in another on others: the same tokens as one engine. Every
// storage of the catalogue that holds k and v, or latent and rope, stands at least once on each side.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/reference/reference.h"
#include "engine/reference/testing.h"
#include "kv/catalogue.h"
#include "kv/negotiate.h"
#include "transform/redistribute.h"

namespace isthmus::engine {
namespace {

constexpr std::size_t kPromptTokens = 64;  // Whole groups of every scale that spans tokens.
constexpr std::size_t kAnswerTokens = 8;

struct Ranks {
  std::uint32_t tensor = 1, pipeline = 1;
};
// For three heads: shares that are equal, unequal, and copies.
constexpr Ranks kRanks[] = {{1, 1}, {1, 2}, {2, 1}, {3, 2}, {6, 1}, {2, 3}};

// Rows logits: after the prompt, and after each token of the answer.
std::vector<float> answer(Engine& engine, SequenceId sequence, std::vector<float> row) {
  std::vector<float> rows = row;
  for (std::size_t i = 0; i < kAnswerTokens; ++i) {
    const TokenId next = static_cast<TokenId>(std::ranges::max_element(row) - row.begin());
    row = last_row(engine, sequence, {&next, 1});
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

ReferenceOptions options_of(ReferenceAttention attention, const std::string& storage, const Ranks& ranks) {
  ReferenceOptions options = test_options(attention);
  if (attention != ReferenceAttention::kMla) {
    options.shape.query_heads = 6;
    options.shape.kv_heads = 3;
  }
  options.storage = storage;
  options.tensor_ranks = ranks.tensor;
  options.pipeline_ranks = ranks.pipeline;
  options.kv_tokens = 512;
  return options;
}

Result<std::vector<float>> alone(const ReferenceOptions& options) {
  ISTHMUS_TRY(const auto engine, make_reference(options));
  ISTHMUS_TRY(const SequenceId sequence, engine->open(kPromptTokens + kAnswerTokens));
  return answer(*engine, sequence, last_row(*engine, sequence, test_prompt(kPromptTokens)));
}

// What the pair answers; the decoder computes no token of the prompt.
Result<std::vector<float>> handed_over(const ReferenceOptions& prefill, const ReferenceOptions& decode) {
  ISTHMUS_TRY(const auto source, make_reference(prefill));
  ISTHMUS_TRY(const auto target, make_reference(decode));
  const std::vector<TokenId> prompt = test_prompt(kPromptTokens);
  const kv::TokenRange tokens{0, prompt.size()};
  ISTHMUS_TRY(const SequenceId from, source->open(prompt.size()));
  ISTHMUS_TRY(const SequenceId to, target->open(prompt.size() + kAnswerTokens));
  const std::vector<float> row = last_row(*source, from, prompt);
  const kv::Verdict verdict = kv::negotiate(source->descriptor(), target->descriptor(), {});  // Lossless.
  ISTHMUS_TRY(auto plan, transform::Plan::make(source->descriptor(), target->descriptor(), verdict, tokens));
  ISTHMUS_TRY(const auto read, source->bindings(from, tokens));
  ISTHMUS_TRY(const auto written, target->bindings(to, tokens));
  ISTHMUS_TRY(transform::redistribute({.plan = std::make_shared<const transform::Plan>(std::move(plan)),
                                       .source = source->descriptor(),
                                       .target = target->descriptor(),
                                       .from = read,
                                       .to = written}));
  source->close(from);
  ISTHMUS_TRY(target->kv_sink()->adopt(to, tokens));
  std::vector<float> rows = answer(*target, to, row);
  if (target->usage().tokens_computed != kAnswerTokens)
    return Error{Code::kInternal, "the decoder computed a token of the prompt"};
  return rows;
}

bool is_holding(const kv::Storage& storage, std::initializer_list<std::string_view> components) {
  return std::ranges::equal(storage.forms, components, {}, &kv::DecodeForm::component);
}

// Storages by the numbers that they hold: between those of one entry nothing is rounded.
std::map<std::string, std::vector<std::string>> storages(ReferenceAttention attention) {
  std::map<std::string, std::vector<std::string>> by_numbers;
  for (const kv::Storage& storage : kv::catalogue()) {
    const bool fits = attention == ReferenceAttention::kMla ? is_holding(storage, {"latent", "rope"})
                                                            : is_holding(storage, {"k", "v"});
    if (!fits) continue;
    std::string numbers;
    for (const kv::DecodeForm& form : storage.forms) numbers += form.text() + "; ";
    for (const kv::StoredTransform& one : storage.transforms) numbers += one.component + " rotated; ";
    by_numbers[numbers].push_back(storage.name);
  }
  return by_numbers;
}

class Exactness : public testing::TestWithParam<ReferenceAttention> {};

TEST_P(Exactness, APairOfEqualNumbersAnswersAsOneEngine) {
  std::size_t crossed = 0;
  std::set<std::string> refused;
  std::size_t turn = 0;
  for (const auto& [numbers, names] : storages(GetParam())) {
    const auto expected = alone(options_of(GetParam(), names.front(), {}));
    if (!expected.ok()) {
      for (const std::string& name : names) refused.insert(name + ": " + expected.error().text());
      continue;
    }
    for (std::size_t i = 0; i < names.size(); ++i, ++turn) {
      const Ranks from = kRanks[turn % std::size(kRanks)], to = kRanks[(turn * 5 + 2) % std::size(kRanks)];
      const std::string& decode = names[(i + 1) % names.size()];
      SCOPED_TRACE(fmt::format("{} on {}x{} ranks > {} on {}x{}", names[i], from.tensor, from.pipeline,
                               decode, to.tensor, to.pipeline));
      const auto rows =
          handed_over(options_of(GetParam(), names[i], from), options_of(GetParam(), decode, to));
      ASSERT_TRUE(rows.ok()) << rows.error().text();
      EXPECT_TRUE(*rows == *expected);
      ++crossed;
    }
  }
  fmt::print("{} storages, each as prefill and as decode; not writable by the reference engine: {}\n",
             crossed, refused.empty() ? "none" : "");
  for (const std::string& why : refused) fmt::print("  {}\n", why);
  EXPECT_GE(crossed, 2u);
}

std::string kind_name(const testing::TestParamInfo<ReferenceAttention>& info) {
  constexpr const char* kNames[] = {"Full", "SlidingMix", "Mla"};
  return kNames[static_cast<std::size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, Exactness,
                         testing::Values(ReferenceAttention::kFull, ReferenceAttention::kSlidingMix,
                                         ReferenceAttention::kMla),
                         kind_name);

// One element of one head's row in another place: the answer must differ, or the test above sees nothing.
TEST(ReferenceDamage, AStateThatWasDamagedAnswersDifferently) {
  const ReferenceOptions options = options_of(ReferenceAttention::kFull, "llamacpp:f16", {});
  const auto engine = *make_reference(options);
  const SequenceId sequence = *engine->open(kPromptTokens + kAnswerTokens);
  const std::vector<float> row = last_row(*engine, sequence, test_prompt(kPromptTokens));
  const auto memory = *engine->bindings(sequence, {0, kPromptTokens});
  std::byte* const values = memory.front().groups.front().memory.front().base;
  std::swap_ranges(values, values + 2, values + 2);
  EXPECT_FALSE(answer(*engine, sequence, row) == *alone(options));
}

}  // namespace
}  // namespace isthmus::engine
