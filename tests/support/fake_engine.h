// SPDX-License-Identifier: Apache-2.0
// A deterministic engine without weights: its KV rows spell the tokens, and its logits are a function of the
// tokens that it reads back out of its KV. A wrong state therefore gives NaN or another answer, and an honest
// one the same answer in every layout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/engine.h"
#include "engine/api/tokenizer.h"

namespace isthmus::support {

inline constexpr std::uint32_t kFakeVocabulary =
    128;  // Token ids are ASCII codes; 0 ends an answer and is never drawn.

struct FakeEngineOptions {
  std::string storage = "llamacpp:f16";  // Of the catalogue, with f16, f32 or u8 by token.
  std::string lineage = "fake-model";
  std::uint64_t kv_tokens = 8192;
  std::uint64_t parked_tokens = 0;  // Of storages with blocks.
  std::uint32_t sequences_max = 8;
  std::uint32_t step_tokens_max = 512;
  std::uint64_t context_tokens = 4096;
  // Called on the engine's thread before each step; may block.
  std::function<void(std::span<const engine::StepItem>)> before_step;
  bool repeats_states = false;
  // Of storages with blocks: knows what was handed over before, and nothing that was computed.
  bool keeps_arrived = false;
  bool speculates = false;  // Takes draft tokens.
};

// A source and a sink; storages with blocks take them as they grow, and can be parked.
std::unique_ptr<engine::Engine> make_fake_engine(const FakeEngineOptions& options);
// One token a byte; the chat template joins "role: content" lines.
std::shared_ptr<const engine::Tokenizer> make_fake_tokenizer();
// What the engine answers greedily to `prompt`, computed without any engine.
std::string fake_answer(const std::string& prompt, std::size_t tokens);

}  // namespace isthmus::support
