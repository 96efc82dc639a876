// SPDX-License-Identifier: Apache-2.0
// The pools' addresses under the region names of a descriptor's layout.
#pragma once

#include "base/status.h"
#include "engine/openvino/kv_memory.h"
#include "kv/binding.h"
#include "kv/descriptor.h"

namespace isthmus::engine::openvino {

// A binding without blocks and range: region memory of each layer of `memory`, K's under the region that
// holds part k, V's under that of part v. `memory` must outlive its use. Errors: incompatible if the layout
// takes other bytes for these blocks than the memory has, named.
Result<kv::Binding> bind_memory(const kv::Descriptor& descriptor, const KvMemory& memory);

}  // namespace isthmus::engine::openvino
