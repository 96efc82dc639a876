// SPDX-License-Identifier: Apache-2.0
// Start-up check: KV rows that the engine's own operation stores lie where, and as, the descriptor says.
#pragma once

#include "base/status.h"
#include "engine/openvino/paged_model.h"
#include "kv/descriptor.h"

namespace isthmus::engine::openvino {

// Writes known rows for 40 tokens (a block and a part of one, in unordered blocks) through layer 0's
// attention operation and reads them through `descriptor`: bit-equal in a float format, within half a step of
// their own scale otherwise. Errors: incompatible, naming the part and position and, if it's one of the
// known rows, whose row lies there instead; internal if the operation fails.
Status probe_packing(const PagedModel& model, const kv::Descriptor& descriptor);

}  // namespace isthmus::engine::openvino
