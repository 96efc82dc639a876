// SPDX-License-Identifier: Apache-2.0
// Tokens of one sequence alone, in as many steps as they need.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"

namespace isthmus::engine {

// Runs tokens behind what the sequence has; the row of logits after the last one. Errors: those of
// Engine::step(); what ran before stays computed.
Result<std::vector<float>> run_tokens(Engine& engine, SequenceId sequence, std::span<const TokenId> tokens);

}  // namespace isthmus::engine
