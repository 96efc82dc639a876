// SPDX-License-Identifier: Apache-2.0
// What pairs are tried on.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api/tokenizer.h"
#include "qualify/pair.h"

namespace isthmus::qualify {

// Lengths one below, at and above each block (32), tile and chunk (256) and step (512); three over 600.
std::span<const std::size_t> prompt_lengths();
// Prose, code, other scripts; compiled in.
std::string_view corpus();
// Number `index` of prompt_lengths(), of the corpus' tokens. Each begins elsewhere in them, and they are read
// round and round.
Tokens prompt_of(const Tokens& corpus_tokens, std::size_t index);

// Prompts of one's own: each line of `text` is one, as it stands, or a JSON string if it begins with a
// quotation mark; blank lines are none. Errors: malformed, with the line; invalid_argument: it has none, or
// more than 4,096, or one of less than two tokens.
Result<std::vector<Tokens>> parse_prompts(const engine::Tokenizer& tokenizer, std::string_view text);

}  // namespace isthmus::qualify
