// SPDX-License-Identifier: Apache-2.0
// The table of served architectures.
#include "engine/probe/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace isthmus::engine {
namespace {

constexpr std::array kServed{
    // Converters permute the rows of Q and K into interleaved order.
    Architecture{.name = "llama"},
    Architecture{.name = "qwen2", .pairs_halves = true},
    Architecture{.name = "qwen3", .pairs_halves = true, .has_head_norms = true},
    // Converters add the 1 of its norms to their gains.
    Architecture{.name = "gemma", .pairs_halves = true, .scales_embeddings = true},
    Architecture{.name = "gemma3",
                 .pairs_halves = true,
                 .has_head_norms = true,
                 .scales_embeddings = true,
                 .window_period = 6},
};

constexpr std::uint64_t kWindowTokensMax = 4096;  // Engines try a whole one when they start.

// Keys that change what attention or its logits are; engines that know one of them differ in which.
constexpr std::array kNotUnderstood{
    "attn_logit_softcapping",           "final_logit_softcapping",  "attention.scale",
    "attention.sliding_window_pattern", "attention.key_length_swa", "attention.value_length_swa",
    "rope.dimension_count_swa",
};

Error unsupported(std::string detail) {
  return {Code::kUnsupported, "model: " + std::move(detail)};
}

Status check_keys(const GgufFile& file, std::string_view name) {
  for (const char* const key : kNotUnderstood) {
    if (!file.has(fmt::format("{}.{}", name, key))) continue;
    return unsupported(fmt::format("{}.{} isn't served", name, key));
  }
  return ok_status();
}

}  // namespace

std::string served_architectures() {
  std::vector<std::string_view> names;
  for (const Architecture& each : kServed) names.push_back(each.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<const Architecture*> find_architecture(const GgufFile& file) {
  ISTHMUS_TRY(const std::string name, file.text("general.architecture"));
  const auto* const found = std::ranges::find(kServed, name, &Architecture::name);
  if (found == kServed.end()) {
    return unsupported(fmt::format("architecture \"{}\" isn't served; {} are", name, served_architectures()));
  }
  ISTHMUS_TRY(check_keys(file, name));
  ISTHMUS_TRY(read_window(file, *found));
  return found;
}

Result<Window> read_window(const GgufFile& file, const Architecture& architecture) {
  const std::string key = fmt::format("{}.attention.sliding_window", architecture.name);
  Window window{.period = architecture.window_period};
  if (file.has(key)) {
    ISTHMUS_TRY(window.tokens, file.count(key));
  }
  if (architecture.window_period == 0) {
    if (window.tokens == 0) return Window{};
    ISTHMUS_TRY(const std::uint64_t context, file.count(fmt::format("{}.context_length", architecture.name)));
    if (window.tokens >= context) return Window{};  // One that no sequence outgrows is none.
    return unsupported(fmt::format("sliding window isn't served for {}: {} is {} of {} tokens",
                                   architecture.name, key, window.tokens, context));
  }
  if (window.tokens == 0 || window.tokens > kWindowTokensMax) {
    return unsupported(fmt::format("{} is {}; 1 to {} are served", key,
                                   file.has(key) ? std::to_string(window.tokens) : "missing",
                                   kWindowTokensMax));
  }
  window.rope_theta = 10'000;
  const std::string theta = fmt::format("{}.rope.freq_base_swa", architecture.name);
  if (file.has(theta)) {
    ISTHMUS_TRY(window.rope_theta, file.real(theta));
  }
  return window;
}

std::string biased_projections(const GgufFile& file) {
  std::string biased;
  for (const char projection : {'q', 'k', 'v'}) {
    if (file.tensor(fmt::format("blk.0.attn_{}.bias", projection)) != nullptr) biased += projection;
  }
  return biased;
}

}  // namespace isthmus::engine
