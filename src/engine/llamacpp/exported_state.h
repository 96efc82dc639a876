// SPDX-License-Identifier: Apache-2.0
// A copy of one range of a sequence's state, bound where it lies in llama.cpp's own bytes.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/llamacpp/sequence_state.h"

namespace isthmus::engine::llamacpp {

// `buffer` holds `size` bytes of a state of `shape`. Regions "K" and "V" of each layer point into it, at odd
// addresses too; rows are in order of position. Cells that lie in another order (the pool was fragmented) are
// copied into order. Errors: those of parse_sequence_state().
Result<std::unique_ptr<ExportedKv>> export_state(std::unique_ptr<std::byte[]> buffer, std::size_t size,
                                                 const StateShape& shape);

}  // namespace isthmus::engine::llamacpp
