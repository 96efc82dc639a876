// SPDX-License-Identifier: Apache-2.0
// Draft tokens by prompt lookup: what came next when the last tokens came before.
#pragma once

#include <optional>
#include <span>

#include "engine/api/tokenizer.h"

namespace isthmus::worker {

// The token behind the latest earlier place where the last two tokens of prompt and answer stand; without
// such a place, behind the last token's latest earlier place. Pure; time grows with the tokens there are.
std::optional<engine::TokenId> draft_token(std::span<const engine::TokenId> prompt,
                                           std::span<const engine::TokenId> generated);

}  // namespace isthmus::worker
