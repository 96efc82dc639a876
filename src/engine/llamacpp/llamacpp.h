// SPDX-License-Identifier: Apache-2.0
// llama.cpp as an engine: one context with a unified cell pool, sequences in it, and its KV state as a
// source.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/api/engine.h"

namespace isthmus::engine::llamacpp {

struct Options {
  std::string model_path;       // A GGUF file.
  std::string kv_type = "f16";  // f32, f16, bf16, for K and V.
  // The same state decodes to other last bits under another thread count: pin it wherever equality is
  // demanded.
  std::uint32_t threads = 1;
  std::uint64_t context_tokens = 8192;  // Cells for all sequences together; rounded up to 256.
  std::uint32_t sequences_max = 8;      // At most 255.
  std::uint32_t step_tokens_max = 512;
};

// Rows of logits that one step gives at most, or sequences_max if that is more: the engine holds a buffer for
// them.
inline constexpr std::uint32_t kStepLogitsMax = 128;

// Loads the model and checks that the bytes of a sequence's state are what this adapter reads: two tokens are
// run, read back and parsed to the last byte. What the numbers mean is probe_meaning()'s matter
// (engine/probe/probe.h). The engine is a KvSource and no KvSink. It reserves a sequence's `tokens_max` cells
// when it is opened. Errors: not_found, malformed, unsupported (of the model; a KV type that isn't listed,
// with the reason), invalid_argument (a number out of range), exhausted (no memory), incompatible (the state
// isn't as expected).
Result<std::unique_ptr<Engine>> make_llamacpp(const Options& options);

}  // namespace isthmus::engine::llamacpp
