// SPDX-License-Identifier: Apache-2.0
// A second mapping of the pool's shape, and a stack of free places.
#include "engine/openvino/parking_lot.h"

#include <cstring>

#include "base/check.h"

namespace isthmus::engine::openvino {
namespace {

void copy_block(const KvMemory& from, std::uint64_t source, const KvMemory& to, std::uint64_t target) {
  const KvMemoryShape& shape = from.shape();
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    std::memcpy(to.key(layer) + target * shape.key_bytes, from.key(layer) + source * shape.key_bytes,
                shape.key_bytes);
    std::memcpy(to.value(layer) + target * shape.value_bytes, from.value(layer) + source * shape.value_bytes,
                shape.value_bytes);
  }
}

}  // namespace

Result<std::unique_ptr<ParkingLot>> ParkingLot::make(const KvMemoryShape& pool, std::uint32_t blocks) {
  auto lot = std::make_unique<ParkingLot>();
  if (blocks > 0) {
    KvMemoryShape shape = pool;
    shape.blocks = blocks;
    ISTHMUS_TRY(lot->memory_, KvMemory::map(shape));
  }
  lot->total_ = blocks;
  for (std::uint32_t place = blocks; place > 0; --place) lot->free_.push_back(place - 1);
  return lot;
}

std::uint32_t ParkingLot::put(const KvMemory& from, std::uint32_t block) {
  ISTHMUS_CHECK(!free_.empty());
  const std::uint32_t place = free_.back();
  free_.pop_back();
  copy_block(from, block, *memory_, place);
  return place;
}

void ParkingLot::take(std::uint32_t place, const KvMemory& to, std::uint32_t block) {
  copy_block(*memory_, place, to, block);
  drop(place);
}

}  // namespace isthmus::engine::openvino
