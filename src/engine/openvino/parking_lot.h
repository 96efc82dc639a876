// SPDX-License-Identifier: Apache-2.0
// Copies of KV blocks outside of the pool: a fixed number, in memory of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/openvino/kv_memory.h"

namespace isthmus::engine::openvino {

// Thread: one. Its memory is mapped at once, and becomes resident as it is used.
class ParkingLot {
 public:
  // For `blocks` blocks of the pool's shape; 0 is none. Errors: those of KvMemory::map().
  static Result<std::unique_ptr<ParkingLot>> make(const KvMemoryShape& pool, std::uint32_t blocks);

  // Copies a block of `from` into a free place, whose number it returns. There must be one.
  std::uint32_t put(const KvMemory& from, std::uint32_t block);
  // Copies it back into a block of `to`; the place is free then.
  void take(std::uint32_t place, const KvMemory& to, std::uint32_t block);
  void drop(std::uint32_t place) { free_.push_back(place); }

  std::uint32_t total() const { return total_; }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }

 private:
  std::unique_ptr<KvMemory> memory_;  // Null if there is no place.
  std::uint32_t total_ = 0;
  std::vector<std::uint32_t> free_;  // A stack: what was touched is used again.
};

}  // namespace isthmus::engine::openvino
