// SPDX-License-Identifier: Apache-2.0
// Memory of states, reused; planes as regions.
#include "engine/llamacpp/state_buffer.h"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace isthmus::engine::llamacpp {

void StateBuffer::Return::operator()(std::byte* memory) const {
  home->keep({std::unique_ptr<std::byte[]>(memory), capacity});
}

Result<StateBuffer> StateMemory::allocate(std::uint64_t size) {
  std::optional<Kept> found = take(size);
  if (!found) {
    try {
      found = Kept{std::make_unique_for_overwrite<std::byte[]>(size), size};
    } catch (const std::exception&) {
      return Error{Code::kExhausted, fmt::format("llamacpp: no memory for a state of {} bytes", size)};
    }
  }
  const StateBuffer::Return give_back{shared_from_this(), found->capacity};
  return StateBuffer({found->memory.release(), give_back}, size);
}

std::uint64_t StateMemory::kept_bytes() const {
  const std::scoped_lock lock(mutex_);
  return kept_bytes_;
}

// The smallest that fits, unless most of it would lie idle.
std::optional<StateMemory::Kept> StateMemory::take(std::uint64_t size) {
  const std::scoped_lock lock(mutex_);
  auto best = kept_.end();
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    if (at->capacity < size || at->capacity / 2 > size) continue;
    if (best == kept_.end() || at->capacity < best->capacity) best = at;
  }
  if (best == kept_.end()) return std::nullopt;
  Kept kept = std::move(*best);
  kept_.erase(best);
  kept_bytes_ -= kept.capacity;
  return kept;
}

void StateMemory::keep(Kept kept) {
  if (kept.capacity > kKeptBytesMax) return;
  std::vector<Kept> freed;  // Outside the lock.
  const std::scoped_lock lock(mutex_);
  kept_bytes_ += kept.capacity;
  kept_.push_back(std::move(kept));
  while (kept_bytes_ > kKeptBytesMax) {
    kept_bytes_ -= kept_.front().capacity;
    freed.push_back(std::move(kept_.front()));
    kept_.erase(kept_.begin());
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
