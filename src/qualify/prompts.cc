// SPDX-License-Identifier: Apache-2.0
// See prompts.h.
#include "qualify/prompts.h"

#include <fmt/format.h>

#include <utility>

#include "http/json.h"

namespace isthmus::qualify {
namespace {

constexpr std::size_t kLengths[] = {3,   5,   9,   16,  31,  32,  33,  48,  63,  64,  65,  100,  127,
                                    128, 129, 200, 255, 256, 257, 400, 511, 512, 513, 801, 1200, 2000};
constexpr std::size_t kPromptsMax = 4096;

Result<std::string> text_of(std::string_view line, std::size_t number) {
  if (!line.starts_with('"')) return std::string(line);
  const auto value = json::parse(line);
  if (!value.ok() || !value->is_string())
    return Error{Code::kMalformed, fmt::format("line {} begins with '\"' but is no JSON string", number)};
  return *value->as_string();
}

}  // namespace

std::span<const std::size_t> prompt_lengths() {
  return kLengths;
}

Tokens prompt_of(const Tokens& corpus_tokens, std::size_t index) {
  Tokens tokens;
  for (std::size_t i = 0; i < kLengths[index]; ++i)
    tokens.push_back(corpus_tokens[(index * 71 + i) % corpus_tokens.size()]);
  return tokens;
}

Result<std::vector<Tokens>> parse_prompts(const engine::Tokenizer& tokenizer, std::string_view text) {
  std::vector<Tokens> prompts;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    ISTHMUS_TRY(const std::string prompt, text_of(line, number));
    ISTHMUS_TRY(Tokens tokens, tokenizer.encode(prompt, true, false));
    if (tokens.size() < 2) {
      return Error{
          Code::kInvalidArgument,
          fmt::format("the prompt in line {} has {} tokens; give two or more", number, tokens.size())};
    }
    if (prompts.size() == kPromptsMax)
      return Error{Code::kInvalidArgument, fmt::format("there are more than {} prompts", kPromptsMax)};
    prompts.push_back(std::move(tokens));
  }
  if (prompts.empty()) return Error{Code::kInvalidArgument, "there are no prompts"};
  return prompts;
}

}  // namespace isthmus::qualify
