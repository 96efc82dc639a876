// SPDX-License-Identifier: Apache-2.0
// A state that another worker made, against the one that this engine makes of the same tokens: what no
// descriptor can tell, since a consistent lie about positions, scales or weights agrees with itself.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"
#include "kv/descriptor.h"
#include "kvs/numbers.h"

namespace isthmus::worker {

// Above what honest pairs of unlike engines showed, below what lies do: spec/canary.md has the figures.
struct CanaryLimits {
  double layer_rms_max = 0.2;  // Of each component in each layer, relative to this engine's own.
  double kl_max = 1.0;         // Nats.
};
// Codes of four bits on either side alone put a state a third of its size away.
CanaryLimits limits_for(const kv::Descriptor& source, const kv::Descriptor& target);

struct CanaryFindings {
  std::vector<kvs::NumberDifference> numbers;  // This engine's own state against the one handed over.
  // Behind prompt and first token, over the whole vocabulary: KL(own ‖ handed over), and the likeliest token.
  double kl = 0;
  engine::TokenId top_own = 0, top_handed = 0;
  // Behind the prompt: this engine's likeliest token; the producer's is what it sampled.
  engine::TokenId first_own = 0, first_handed = 0;
};

// `handed` is open, bound and filled with the prompt's state, but not adopted; it stays the caller's. Needs
// room for a sequence of its own of as many tokens and one. Engine's thread, which it keeps for the time of a
// prefill. Errors: exhausted (no room), unsupported (the engine can't export), those of the engine and of
// compare_numbers (a state with a NaN isn't compared).
Result<CanaryFindings> compare_with_own(engine::Engine& engine, std::span<const engine::TokenId> prompt,
                                        engine::SequenceId handed, engine::TokenId first);

// What is over its limit, in words; empty: the pair may be trusted. What isn't a number is over every limit.
std::vector<std::string> faults(const CanaryFindings& findings, const CanaryLimits& limits);

}  // namespace isthmus::worker
