// SPDX-License-Identifier: Apache-2.0
// From the notation's tree and the extents to regions and parts. Private to kv/layout.
#pragma once

#include <vector>

#include "base/status.h"
#include "kv/layout.h"
#include "kv/layout_text.h"

namespace isthmus::kv {

struct BuiltLayout {
  std::vector<RegionLayout> regions;
  std::vector<PartLayout> parts;  // By component in the order of the extents' map, then codes, scale, zero.
};

// Errors as Layout::parse.
Result<BuiltLayout> build_layout(const std::vector<RegionText>& regions, const LayoutExtents& extents);

}  // namespace isthmus::kv
