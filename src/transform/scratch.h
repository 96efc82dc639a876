// SPDX-License-Identifier: Apache-2.0
// One head's tile in one decode form, canonical, 64-byte aligned; allocated once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transform/form_parts.h"
#include "transform/plan.h"
#include "transform/rows.h"

namespace isthmus::transform {

class TileScratch {
 public:
  // Grow to hold a whole tile of `parts`.
  void fit(const std::vector<FormPart>& parts) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const std::size_t lines = (parts[part].tile_bytes(kTileTokens) + sizeof(Line) - 1) / sizeof(Line);
      if (arrays_[part].size() < lines) arrays_[part].resize(lines);
    }
  }
  std::byte* part(std::size_t index) { return arrays_[index].data()->bytes.data(); }
  RowArrays rows(std::size_t parts) {
    return {part(0), parts > 1 ? part(1) : nullptr, parts > 2 ? part(2) : nullptr};
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  std::array<std::vector<Line>, 3> arrays_;
};

}  // namespace isthmus::transform
