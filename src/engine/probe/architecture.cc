// SPDX-License-Identifier: Apache-2.0
// The table of served architectures.
#include "engine/probe/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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
};

// A window that no sequence outgrows is none.
Status check_window(const GgufFile& file, const std::string& name) {
  const std::string key = name + ".attention.sliding_window";
  if (!file.has(key)) return ok_status();
  ISTHMUS_TRY(const std::uint64_t window, file.count(key));
  if (window == 0) return ok_status();
  ISTHMUS_TRY(const std::uint64_t context, file.count(name + ".context_length"));
  if (window >= context) return ok_status();
  return Error{
      Code::kUnsupported,
      fmt::format("model: sliding window isn't served yet: {} is {} of {} tokens", key, window, context)};
}

}  // namespace

std::string served_architectures() {
  std::vector<std::string_view> names;
  for (const Architecture& each : kServed) names.push_back(each.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<const Architecture*> find_architecture(const GgufFile& file) {
  ISTHMUS_TRY(const std::string name, file.text("general.architecture"));
  ISTHMUS_TRY(check_window(file, name));
  const auto* const found = std::ranges::find(kServed, name, &Architecture::name);
  if (found == kServed.end()) {
    return Error{Code::kUnsupported, fmt::format("model: architecture \"{}\" isn't served; {} are", name,
                                                 served_architectures())};
  }
  return found;
}

std::string biased_projections(const GgufFile& file) {
  std::string biased;
  for (const char projection : {'q', 'k', 'v'}) {
    if (file.tensor(fmt::format("blk.0.attn_{}.bias", projection)) != nullptr) biased += projection;
  }
  return biased;
}

}  // namespace isthmus::engine
