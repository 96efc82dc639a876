// SPDX-License-Identifier: Apache-2.0
// What must hold of every layout that parses, computed without the layout's own arithmetic.
#pragma once

#include "fuzz/input.h"
#include "kv/layout.h"

namespace isthmus::fuzz {

// No element of any part lies outside its region, in arithmetic wide enough not to wrap.
inline void check_layout(const kv::Layout& layout) {
  constexpr __int128 kOpenExtent = 3;
  for (const kv::PartLayout& part : layout.parts()) {
    const kv::RegionLayout& region = layout.region(part.region);
    __int128 lowest = part.start_bits, highest = part.start_bits;
    for (const kv::Digit& digit : part.digits) {
      const __int128 extent = digit.mod == 0 ? kOpenExtent : __int128(digit.mod);
      const __int128 reach = (extent - 1) * digit.stride_bits * (digit.open ? kOpenExtent : 1);
      (reach < 0 ? lowest : highest) += reach;
    }
    highest += kv::bits(part.format);
    const __int128 size = __int128(layout.region_bytes(region.name, std::uint64_t(kOpenExtent))) * 8;
    ISTHMUS_CHECK(lowest >= 0 && highest <= size);
  }
  ISTHMUS_CHECK(layout.canonical_text() ==
                kv::Layout::parse(layout.source_text(), layout.extents()).value().canonical_text());
}

}  // namespace isthmus::fuzz
