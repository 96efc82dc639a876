// SPDX-License-Identifier: Apache-2.0
// A copy of one range of a sequence's state, bound where it lies in llama.cpp's own bytes.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/llamacpp/sequence_state.h"
#include "engine/llamacpp/state_buffer.h"

namespace isthmus::engine::llamacpp {

// Planes of a range, put together from states of its parts, in memory of their own.
class OrderedPlanes {
 public:
  // Of all positions of `shape`. Errors: those of StateMemory::allocate().
  static Result<OrderedPlanes> make(StateMemory& memory, const StateShape& shape);
  // `state` is of `part`, which is the whole but for its positions, some of the whole's.
  void add(const SequenceState& state, const StateShape& part);
  // Every position has been added.
  std::unique_ptr<ExportedKv> finish() &&;

 private:
  OrderedPlanes(StateBuffer buffer, const StateShape& shape);

  StateBuffer buffer_;
  StateShape shape_;
  SequenceState planes_;  // In `buffer_`.
};

// `buffer` holds a state of `shape`. Regions "K" and "V" of each layer point into it, at odd addresses too;
// rows are in order of position. Cells that lie in another order (the pool was fragmented) are copied into
// order, in memory of `memory`. Errors: those of parse_sequence_state() and StateMemory::allocate().
Result<std::unique_ptr<ExportedKv>> export_state(StateMemory& memory, StateBuffer buffer,
                                                 const StateShape& shape);

}  // namespace isthmus::engine::llamacpp
