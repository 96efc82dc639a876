// SPDX-License-Identifier: Apache-2.0
// See value_transforms.h.
#include "kv/value_transforms.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>

#include <fmt/format.h>

namespace isthmus::kv {
namespace {

constexpr std::string_view kHadamard = "hadamard:";
constexpr std::string_view kHalves = "rope:halves";
constexpr std::string_view kInterleaved = "rope:interleaved";

bool is_rope(std::string_view transform) {
  return transform == kHalves || transform == kInterleaved;
}

Error unsupported(std::string_view transform, std::string_view why) {
  return Error{Code::kUnsupported,
               fmt::format("conversion not implemented: value transform \"{:.64}\" {}", transform, why)};
}

Result<ValueStep> hadamard_step(std::string_view transform) {
  if (!transform.starts_with(kHadamard)) return unsupported(transform, "isn't known");
  const std::string_view digits = transform.substr(kHadamard.size());
  ValueStep step;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step.size);
  if (error != std::errc() || end != digits.data() + digits.size() || step.size < 2) {
    return unsupported(transform, "has no size");
  }
  return step;
}

}  // namespace

Result<std::vector<ValueStep>> value_steps(const std::vector<std::string>& from,
                                           const std::vector<std::string>& to) {
  const auto [from_rest, to_rest] = std::mismatch(from.begin(), from.end(), to.begin(), to.end());
  std::span<const std::string> undo(from_rest, from.end()), apply(to_rest, to.end());
  std::vector<ValueStep> steps;
  // Only where both rotate the same values, first of all that differs, is a pairing an order of elements.
  const bool reorders = !undo.empty() && !apply.empty() && is_rope(undo[0]) && is_rope(apply[0]);
  const bool from_halves = reorders && undo[0] == kHalves;
  if (reorders) {
    undo = undo.subspan(1);
    apply = apply.subspan(1);
  }
  for (const auto& rest : {undo, apply}) {
    const auto rope = std::find_if(rest.begin(), rest.end(), is_rope);
    if (rope != rest.end()) return unsupported(*rope, "rotates values that the other end stores unrotated");
  }
  for (auto transform = undo.rbegin(); transform != undo.rend(); ++transform) {
    ISTHMUS_TRY(const ValueStep step, hadamard_step(*transform));
    steps.push_back(step);
  }
  if (reorders) {
    steps.push_back(
        {from_halves ? ValueStepKind::kHalvesToInterleaved : ValueStepKind::kInterleavedToHalves, 0});
  }
  for (const std::string& transform : apply) {
    ISTHMUS_TRY(const ValueStep step, hadamard_step(transform));
    steps.push_back(step);
  }
  return steps;
}

bool only_moves(const std::vector<ValueStep>& steps) {
  return std::none_of(steps.begin(), steps.end(),
                      [](const ValueStep& step) { return step.kind == ValueStepKind::kHadamard; });
}

}  // namespace isthmus::kv
