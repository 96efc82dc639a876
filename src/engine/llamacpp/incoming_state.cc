// SPDX-License-Identifier: Apache-2.0
// Formatting before the planes are written, checks after.
#include "engine/llamacpp/incoming_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/llamacpp/finite.h"

namespace isthmus::engine::llamacpp {
namespace {

Error corrupt(std::string detail) {
  return {Code::kCorrupt, "llamacpp: state to adopt: " + std::move(detail)};
}

// Units of a plane's `lines` lines, one a cell, from cell `begin` on.
void clear_from(std::byte* plane, std::uint64_t plane_bytes, std::uint64_t lines, std::uint64_t begin,
                std::uint64_t cells) {
  const std::uint64_t line_bytes = plane_bytes / lines, unit = line_bytes / cells;
  for (std::uint64_t line = 0; line < lines; ++line) {
    std::memset(plane + line * line_bytes + begin * unit, 0, (cells - begin) * unit);
  }
}

}  // namespace

Result<IncomingState> IncomingState::make(StateMemory& memory, const StateShape& shape) {
  ISTHMUS_TRY(StateBuffer buffer, memory.allocate(sequence_state_bytes(shape)));
  format_sequence_state(buffer.bytes(), shape);
  ISTHMUS_TRY(const SequenceState state, parse_sequence_state(buffer.bytes(), shape));
  kv::Binding binding = bind_planes(buffer, state, shape);
  return IncomingState(shape, std::move(buffer), std::move(binding));
}

Result<std::span<const std::byte>> IncomingState::finish(std::uint64_t end) {
  const std::uint64_t cells = shape_.cells();
  ISTHMUS_CHECK(end > 0 && end <= cells);
  const Result<SequenceState> state = parse_sequence_state(buffer_.bytes(), shape_);
  if (!state.ok()) return corrupt("written beside its planes: " + state.error().detail);
  if (!state->is_in_order()) return corrupt("written beside its planes: cell order");
  for (const kv::RegionMemory& memory : binding_.memory) {
    const bool is_key = memory.region == "K";
    if (end < cells) {
      const std::uint64_t lines = is_key ? 1 : std::max(shape_.v_columns, 1u);
      clear_from(memory.base, memory.bytes, lines, end, cells);
    }
    if (!all_finite({memory.base, memory.bytes}, is_key ? shape_.k_type : shape_.v_type)) {
      return corrupt(
          fmt::format("{} of layer {} holds a number that isn't finite", memory.region, memory.layer));
    }
  }
  return std::span<const std::byte>(buffer_.bytes());
}

}  // namespace isthmus::engine::llamacpp
