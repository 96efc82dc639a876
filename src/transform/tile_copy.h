// SPDX-License-Identifier: Apache-2.0
// Copies one head's tile between strided memory and the canonical array `[token][unit]`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace isthmus::transform {

// Element (t, u) lies at bit `origin_bits + token_bits[t] + unit_bits[u]` from `base`. Any layout whose
// address is a sum over axes has this form; which loop runs is chosen by the strides alone.
struct TileView {
  std::byte* base = nullptr;
  std::int64_t origin_bits = 0;
  std::span<const std::int64_t> token_bits;
  std::span<const std::int64_t> unit_bits;
  std::uint32_t element_bits = 0;  // 4, 8, 16 or 32.
  bool whole_rows = false;         // A token's units follow each other and start on a byte.
};

// memory -> canonical, [token_bits.size()][unit_bits.size()] elements, 4-bit elements low nibble first.
// The caller has checked that every element lies inside the memory.
void gather(const TileView& memory, std::byte* canonical);
// canonical -> memory; bits between the elements keep their values.
void scatter(const TileView& memory, const std::byte* canonical);

}  // namespace isthmus::transform
