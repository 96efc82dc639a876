// SPDX-License-Identifier: Apache-2.0
// The token chain's one step.
#include <array>
#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "kv/descriptor.h"

namespace isthmus::kv {

TokenChain::TokenChain(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) append(token);
}

void TokenChain::append(std::int32_t token) {
  std::array<std::byte, 20> link{};
  const std::span<std::byte> bytes(link);
  store_le(bytes.subspan(0), state_.low);
  store_le(bytes.subspan(8), state_.high);
  store_le(bytes.subspan(16), token);
  state_ = digest128(bytes);
  ++size_;
}

}  // namespace isthmus::kv
