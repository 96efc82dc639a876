// SPDX-License-Identifier: Apache-2.0
// What the tests of the reference engine share.
#pragma once

#include <span>
#include <vector>

#include "base/rng.h"
#include "engine/reference/reference.h"

namespace isthmus::engine {

inline std::vector<TokenId> test_prompt(std::size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  for (std::size_t i = 0; i < tokens; ++i) prompt[i] = static_cast<TokenId>(uniform_at(5, 0, i) * 128);
  return prompt;
}

inline std::vector<float> last_row(Engine& engine, SequenceId sequence, std::span<const TokenId> tokens) {
  const StepItem item{.sequence = sequence, .tokens = tokens, .logits = 1};
  const auto output = *engine.step({&item, 1});
  return {output.logits.begin(), output.logits.end()};
}

// A small model of each kind of attention, in a storage that can hold it.
inline ReferenceOptions test_options(ReferenceAttention attention) {
  ReferenceOptions options;
  options.shape.attention = attention;
  if (attention != ReferenceAttention::kMla) return options;
  options.shape.kv_heads = 1;
  options.shape.dim = 128;
  options.storage = "vllm:mla_bf16";
  return options;
}

}  // namespace isthmus::engine
