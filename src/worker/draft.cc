// SPDX-License-Identifier: Apache-2.0
// Both spans are one history; it is read backwards, as what was said last is said again first.
#include "worker/draft.h"

#include <cstddef>

namespace isthmus::worker {

std::optional<engine::TokenId> draft_token(std::span<const engine::TokenId> prompt,
                                           std::span<const engine::TokenId> generated) {
  const std::size_t size = prompt.size() + generated.size();
  const auto at = [&](std::size_t i) { return i < prompt.size() ? prompt[i] : generated[i - prompt.size()]; };
  std::optional<engine::TokenId> behind_one;
  for (std::size_t i = size; i > 1; --i) {
    const std::size_t place = i - 2;  // Of a token with one behind it.
    if (at(place) != at(size - 1)) continue;
    if (!behind_one) behind_one = at(place + 1);
    if (place > 0 && at(place - 1) == at(size - 2)) return at(place + 1);
  }
  return behind_one;
}

}  // namespace isthmus::worker
