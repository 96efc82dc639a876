// SPDX-License-Identifier: Apache-2.0
// The bytes that llama.cpp gives and takes for one sequence's state: parsed with every field checked, or laid
// out around planes that are still to be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/probe/architecture.h"

namespace isthmus::engine::llamacpp {

// What the state must say about itself.
struct StateShape {
  std::int32_t sequence = 0;  // llama.cpp's own number of the sequence.
  std::uint32_t layers = 0;
  std::int32_t k_type = 0, v_type = 0;  // ggml types.
  std::uint64_t k_row_bytes = 0, v_row_bytes = 0;
  // 0: V lies by cell, like K. Otherwise V lies transposed, as it does without flash attention: this many
  // columns, each of one element a cell.
  std::uint32_t v_columns = 0;
  std::int32_t position_begin = 0, position_end = 0;
  // Local layers lie in a cache of their own, after that of the others.
  Window window = {};

  std::uint32_t cells() const { return static_cast<std::uint32_t>(position_end - position_begin); }
  std::uint32_t v_element_bytes() const {
    return v_columns == 0 ? 0 : static_cast<std::uint32_t>(v_row_bytes / v_columns);
  }
};

// Planes point into the bytes, unaligned. Row r of a layer's K plane belongs to position r of its cache, and
// so does row r of its V plane, or element r of each column of a transposed one.
struct SequenceState {
  // Each of [position_begin, position_end) once, in the order of cells; of the local layers' cache apart.
  std::vector<std::int32_t> positions, local_positions;
  std::vector<std::span<const std::byte>> k, v;  // One a layer.

  bool is_in_order() const;
};

// The format is llama.cpp's sequence state as of 0.5.0-dev (llama-kv-cache.cpp, state_write), with one
// stream, or twice this where layers are local (llama-kv-cache-iswa.cpp). It carries no version, so anything
// unexpected is refused: incompatible, naming the field, the value and its place.
Result<SequenceState> parse_sequence_state(std::span<const std::byte> bytes, const StateShape& shape);

// Size of a state of `shape`.
std::uint64_t sequence_state_bytes(const StateShape& shape);
// Writes all of a state but its planes, cells in order of position. `bytes` has sequence_state_bytes(shape).
void format_sequence_state(std::span<std::byte> bytes, const StateShape& shape);

}  // namespace isthmus::engine::llamacpp
