// SPDX-License-Identifier: Apache-2.0
// The bytes that llama.cpp gives for one sequence's state, parsed with every field checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace isthmus::engine::llamacpp {

// What the state must say about itself.
struct StateShape {
  std::int32_t sequence = 0;  // llama.cpp's own number of the sequence.
  std::uint32_t layers = 0;
  std::int32_t k_type = 0, v_type = 0;  // ggml types.
  std::uint64_t k_row_bytes = 0, v_row_bytes = 0;
  std::int32_t position_begin = 0, position_end = 0;
};

// Planes point into the parsed bytes, unaligned; row r of each belongs to positions[r].
struct SequenceState {
  std::vector<std::int32_t> positions;  // Each of [position_begin, position_end) once, in the order of cells.
  std::vector<std::span<const std::byte>> k, v;  // One a layer.
};

// The format is llama.cpp's sequence state as of 0.5.0-dev (llama-kv-cache.cpp, state_write), with one stream
// and V stored by token. It carries no version, so anything unexpected is refused: incompatible, naming the
// field, the value and its place.
Result<SequenceState> parse_sequence_state(std::span<const std::byte> bytes, const StateShape& shape);

}  // namespace isthmus::engine::llamacpp
