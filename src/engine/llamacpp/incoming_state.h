// SPDX-License-Identifier: Apache-2.0
// A state that others are still writing, in llama.cpp's own bytes: everything around the planes is there
// already.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/llamacpp/sequence_state.h"
#include "engine/llamacpp/state_buffer.h"
#include "kv/binding.h"

namespace isthmus::engine::llamacpp {

class IncomingState {
 public:
  // exhausted if there is no memory.
  static Result<IncomingState> make(StateMemory& memory, const StateShape& shape);

  // Regions "K" and "V" of each layer, uninitialised, at any alignment. Valid while this object, or what it
  // was moved into, lives.
  const kv::Binding& binding() const { return binding_; }
  std::uint64_t bytes() const { return buffer_.bytes().size(); }

  // All planes are written up to position `end`: what llama_state_seq_set_data() takes. The rows from `end`
  // on are cleared. Errors: corrupt, if bytes around the planes aren't those that were put there, or a plane
  // holds a number that isn't finite. Attention multiplies every cell of the pool, masked or not, so such a
  // number would reach other sequences too.
  Result<std::span<const std::byte>> finish(std::uint64_t end);

 private:
  IncomingState(const StateShape& shape, StateBuffer buffer, kv::Binding binding)
      : shape_(shape), buffer_(std::move(buffer)), binding_(std::move(binding)) {}

  StateShape shape_;
  StateBuffer buffer_;
  kv::Binding binding_;
};

}  // namespace isthmus::engine::llamacpp
