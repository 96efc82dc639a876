// SPDX-License-Identifier: Apache-2.0
// Random 128-bit identities: incarnations, reservations, nonces.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace isthmus {

// Never reused; unordered in meaning (the order exists for maps only).
struct Id128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend auto operator<=>(const Id128&, const Id128&) = default;
  bool is_zero() const { return high == 0 && low == 0; }
  std::string hex() const;  // 32 hex digits.
  static std::optional<Id128> from_hex(std::string_view text);
};

}  // namespace isthmus

template <>
struct std::hash<isthmus::Id128> {
  std::size_t operator()(const isthmus::Id128& id) const noexcept {
    return id.high ^ (id.low * 0x9e3779b97f4a7c15ull);
  }
};
