// SPDX-License-Identifier: Apache-2.0
// Memory of one sequence state, on its way out of an engine or into it, and the binding of its planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/llamacpp/sequence_state.h"
#include "kv/binding.h"

namespace isthmus::engine::llamacpp {

class StateMemory;

// Movable owner; the bytes stay where they are.
class StateBuffer {
 public:
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  friend class StateMemory;
  // Gives the memory back to where it came from, which lives until then.
  struct Return {
    std::shared_ptr<StateMemory> home;
    std::size_t capacity = 0;
    void operator()(std::byte* memory) const;
  };
  StateBuffer(std::unique_ptr<std::byte[], Return> memory, std::size_t size)
      : memory_(std::move(memory)), size_(size) {}

  std::unique_ptr<std::byte[], Return> memory_;
  std::size_t size_ = 0;
};

// The one place where memory for states is got. Buffers that are let go are kept for the next state: the
// first touch of fresh pages costs several times the copy into them. Thread-safe. Made with std::make_shared:
// its buffers share it.
class StateMemory : public std::enable_shared_from_this<StateMemory> {
 public:
  static constexpr std::uint64_t kKeptBytesMax = std::uint64_t{64} << 20;

  // Not cleared. exhausted if there is no memory.
  Result<StateBuffer> allocate(std::uint64_t size);
  std::uint64_t kept_bytes() const;  // At most kKeptBytesMax.

 private:
  friend StateBuffer;
  struct Kept {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
  };
  std::optional<Kept> take(std::uint64_t size);
  void keep(Kept kept);

  mutable std::mutex mutex_;
  std::vector<Kept> kept_;  // Oldest first.
  std::uint64_t kept_bytes_ = 0;
};

// Regions "K" and "V" of each layer, at the planes of `state`, which lie in `buffer`, at any address. Rows
// count from 0 at shape.position_begin.
kv::Binding bind_planes(const StateBuffer& buffer, const SequenceState& state, const StateShape& shape);

}  // namespace isthmus::engine::llamacpp
