// SPDX-License-Identifier: Apache-2.0
// The descriptor of the reference engine: its model in layer groups, cut over ranks.
#pragma once

#include "base/status.h"
#include "engine/reference/reference.h"
#include "kv/descriptor.h"

namespace isthmus::engine {

// Where a layer of the model lies.
struct LayerPlace {
  std::uint32_t group = 0;
  std::uint32_t index = 0;  // Within the group's list.
};
LayerPlace place_of(const ReferenceShape& shape, std::uint32_t layer);
// The layer groups as the model has them: components with rope alone applied.
std::vector<kv::LayerGroup> groups_of(const ReferenceShape& shape);
// Errors: as make_reference().
Result<kv::Descriptor> describe(const ReferenceOptions& options);

}  // namespace isthmus::engine
