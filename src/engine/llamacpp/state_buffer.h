// SPDX-License-Identifier: Apache-2.0
// Memory of one sequence state, on its way out of an engine or into it, and the binding of its planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "engine/llamacpp/sequence_state.h"
#include "kv/binding.h"

namespace isthmus::engine::llamacpp {

// Movable owner; the bytes stay where they are. The one place where memory for states is got.
class StateBuffer {
 public:
  // Not cleared. exhausted if there is no memory.
  static Result<StateBuffer> allocate(std::uint64_t size);

  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  StateBuffer(std::unique_ptr<std::byte[]> memory, std::size_t size)
      : memory_(std::move(memory)), size_(size) {}

  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

// Regions "K" and "V" of each layer, at the planes of `state`, which lie in `buffer`, at any address. Rows
// count from 0 at shape.position_begin.
kv::Binding bind_planes(const StateBuffer& buffer, const SequenceState& state, const StateShape& shape);

}  // namespace isthmus::engine::llamacpp
