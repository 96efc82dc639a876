// SPDX-License-Identifier: Apache-2.0
// Start-up check: attention reaches as far as the model's window, and no farther.
#pragma once

#include "base/status.h"
#include "engine/openvino/paged_model.h"

namespace isthmus::engine::openvino {

// Runs layer 0's attention operation by itself over a few more tokens than a window holds, in one forward and
// in steps of one token, with values that tell at each token which of the marked positions it heeds. Nothing
// to do if layer 0 isn't local. Errors: incompatible, naming the token and the position; internal if the
// operation fails.
Status probe_window(const PagedModel& model, const Window& window);

}  // namespace isthmus::engine::openvino
