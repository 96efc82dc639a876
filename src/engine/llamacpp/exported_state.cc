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

// Of a plane, lines that each have one unit a cell; 1 unless it is transposed.
std::uint64_t lines_of(const StateShape& shape, bool is_key) {
  return is_key ? 1 : std::max(shape.v_columns, 1u);
}

}  // namespace

OrderedPlanes::OrderedPlanes(StateBuffer buffer, const StateShape& shape)
    : buffer_(std::move(buffer)), shape_(shape) {
  const std::byte* at = buffer_.bytes().data();
  const auto lay_out = [&](std::vector<std::span<const std::byte>>& planes, std::uint64_t row_bytes) {
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      planes.emplace_back(at, shape.cells() * row_bytes);
      at += planes.back().size();
    }
  };
  lay_out(planes_.k, shape.k_row_bytes);
  lay_out(planes_.v, shape.v_row_bytes);
}

Result<OrderedPlanes> OrderedPlanes::make(StateMemory& memory, const StateShape& shape) {
  ISTHMUS_TRY(StateBuffer buffer,
              memory.allocate(shape.layers * shape.cells() * (shape.k_row_bytes + shape.v_row_bytes)));
  return OrderedPlanes(std::move(buffer), shape);
}

void OrderedPlanes::add(const SequenceState& state, const StateShape& part) {
  const auto copy = [&](std::span<const std::byte> from, std::span<const std::byte> plane,
                        std::uint64_t lines, std::span<const std::int32_t> positions) {
    const std::uint64_t unit = from.size() / lines / part.cells();
    // A plane is read-only because the parser takes it so; the bytes are the buffer's.
    std::byte* to = buffer_.bytes().data() + (plane.data() - buffer_.bytes().data());
    for (std::uint64_t line = 0; line < lines; ++line) {
      for (std::size_t cell = 0; cell < positions.size(); ++cell) {
        const auto place = static_cast<std::uint64_t>(positions[cell] - shape_.position_begin);
        std::memcpy(to + (line * shape_.cells() + place) * unit,
                    from.data() + (line * part.cells() + cell) * unit, unit);
      }
    }
  };
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    const auto& positions = shape_.window.is_local(layer) ? state.local_positions : state.positions;
    copy(state.k[layer], planes_.k[layer], lines_of(shape_, true), positions);
    copy(state.v[layer], planes_.v[layer], lines_of(shape_, false), positions);
  }
}

std::unique_ptr<ExportedKv> OrderedPlanes::finish() && {
  kv::Binding binding = bind_planes(buffer_, planes_, shape_);
  return std::make_unique<ExportedState>(std::move(buffer_), std::move(binding));
}

Result<std::unique_ptr<ExportedKv>> export_state(StateMemory& memory, StateBuffer buffer,
                                                 const StateShape& shape) {
  ISTHMUS_TRY(const SequenceState state, parse_sequence_state(buffer.bytes(), shape));
  if (!state.is_in_order()) {
    ISTHMUS_TRY(OrderedPlanes planes, OrderedPlanes::make(memory, shape));
    planes.add(state, shape);
    return std::move(planes).finish();
  }
  kv::Binding binding = bind_planes(buffer, state, shape);
  return std::unique_ptr<ExportedKv>(std::make_unique<ExportedState>(std::move(buffer), std::move(binding)));
}

}  // namespace isthmus::engine::llamacpp
