// SPDX-License-Identifier: Apache-2.0
// Known engine storages, as data: layout text, block size, decode forms, with engine version and source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"

namespace isthmus::kv {

struct Storage {
  std::string name;  // "llamacpp:f16", "openvino:u8"
  std::string engine, version, source;
  std::string layout_text;  // In the notation, with the parameters of Descriptor::layout.
  std::uint32_t block_tokens =
      0;  // The engine's usual block; 0 for rows. An engine that runs with another says so.
  std::vector<DecodeForm> forms;  // granule_dim 0 with a scaled operation means the whole row.
};

// All storages, in a fixed order.
const std::vector<Storage>& catalogue();
// not_found with the list of names.
Result<const Storage*> find_storage(std::string_view name);
// The group representation of `storage` for a group's components. incompatible, naming the component, if the
// storage holds others.
Result<GroupRepresentation> represent(const Storage& storage, const LayerGroup& group);

}  // namespace isthmus::kv
