// SPDX-License-Identifier: Apache-2.0
// Binding of exported planes, with a reordering copy only where cells are out of order.
#include "engine/llamacpp/exported_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace isthmus::engine::llamacpp {
namespace {

class ExportedState : public ExportedKv {
 public:
  ExportedState(StateBuffer buffer, kv::Binding binding)
      : buffer_(std::move(buffer)), binding_(std::move(binding)) {}

  std::span<const kv::Binding> bindings() const override { return {&binding_, 1}; }
  std::uint64_t bytes() const override { return buffer_.bytes().size(); }

 private:
  StateBuffer buffer_;
  kv::Binding binding_;
};

// Copies a plane of `lines` lines, each of one unit a cell, so that units are in order of position.
void put_in_order(std::span<const std::byte> plane, std::uint64_t lines, const SequenceState& state,
                  const StateShape& shape, std::byte* to) {
  const std::size_t cells = state.positions.size();
  const std::size_t unit = plane.size() / lines / cells;
  for (std::uint64_t line = 0; line < lines; ++line) {
    const std::byte* from_line = plane.data() + line * cells * unit;
    std::byte* to_line = to + line * cells * unit;
    for (std::size_t cell = 0; cell < cells; ++cell) {
      const auto place = static_cast<std::uint64_t>(state.positions[cell] - shape.position_begin);
      std::memcpy(to_line + place * unit, from_line + cell * unit, unit);
    }
  }
}

// The planes of `state` in order of position, in a buffer of their own, where `state` points then.
Result<StateBuffer> ordered_planes(StateMemory& memory, SequenceState& state, const StateShape& shape) {
  ISTHMUS_TRY(StateBuffer ordered,
              memory.allocate(shape.layers * shape.cells() * (shape.k_row_bytes + shape.v_row_bytes)));
  std::byte* to = ordered.bytes().data();
  const auto reorder = [&](std::span<const std::byte>& plane, std::uint64_t lines) {
    put_in_order(plane, lines, state, shape, to);
    plane = {to, plane.size()};
    to += plane.size();
  };
  for (auto& plane : state.k) reorder(plane, 1);
  for (auto& plane : state.v) reorder(plane, std::max(shape.v_columns, 1u));
  return ordered;
}

}  // namespace

Result<std::unique_ptr<ExportedKv>> export_state(StateMemory& memory, StateBuffer buffer,
                                                 const StateShape& shape) {
  ISTHMUS_TRY(SequenceState state, parse_sequence_state(buffer.bytes(), shape));
  if (!std::ranges::is_sorted(state.positions)) {
    ISTHMUS_TRY(StateBuffer ordered, ordered_planes(memory, state, shape));
    buffer = std::move(ordered);
  }
  kv::Binding binding = bind_planes(buffer, state, shape);
  return std::unique_ptr<ExportedKv>(std::make_unique<ExportedState>(std::move(buffer), std::move(binding)));
}

}  // namespace isthmus::engine::llamacpp
