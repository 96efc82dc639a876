// SPDX-License-Identifier: Apache-2.0
// See run_tokens.h.
#include "engine/api/run_tokens.h"

#include <algorithm>

namespace isthmus::engine {

Result<std::vector<float>> run_tokens(Engine& engine, SequenceId sequence, std::span<const TokenId> tokens) {
  std::vector<float> row;
  while (!tokens.empty()) {
    const std::size_t count = std::min<std::size_t>(tokens.size(), engine.info().step_tokens_max);
    const bool is_last = count == tokens.size();
    const StepItem item{sequence, tokens.first(count), is_last ? 1u : 0u};
    ISTHMUS_TRY(const StepOutput output, engine.step(std::span(&item, 1)));
    if (is_last) row.assign(output.logits.begin(), output.logits.end());
    tokens = tokens.subspan(count);
  }
  return row;
}

}  // namespace isthmus::engine
