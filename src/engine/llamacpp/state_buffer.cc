// SPDX-License-Identifier: Apache-2.0
// Allocation of state memory; planes as regions.
#include "engine/llamacpp/state_buffer.h"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace isthmus::engine::llamacpp {

Result<StateBuffer> StateBuffer::allocate(std::uint64_t size) {
  try {
    return StateBuffer(std::make_unique_for_overwrite<std::byte[]>(size), size);
  } catch (const std::exception&) {
    return Error{Code::kExhausted, fmt::format("llamacpp: no memory for a state of {} bytes", size)};
  }
}

kv::Binding bind_planes(const StateBuffer& buffer, const SequenceState& state, const StateShape& shape) {
  kv::Binding binding;
  binding.first_row = 0;
  binding.first_position = static_cast<std::uint64_t>(shape.position_begin);
  binding.valid = {static_cast<std::uint64_t>(shape.position_begin),
                   static_cast<std::uint64_t>(shape.position_end)};
  const auto add = [&](std::string region, std::uint32_t layer, std::span<const std::byte> plane) {
    // A plane is read-only because the parser takes it so; the bytes are the buffer's.
    std::byte* base = buffer.bytes().data() + (plane.data() - buffer.bytes().data());
    binding.memory.push_back({.region = std::move(region),
                              .layer = layer,
                              .base = base,
                              .bytes = plane.size(),
                              .open_extent = shape.cells()});
  };
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    add("K", layer, state.k[layer]);
    add("V", layer, state.v[layer]);
  }
  return binding;
}

}  // namespace isthmus::engine::llamacpp
