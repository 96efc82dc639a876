// SPDX-License-Identifier: Apache-2.0
// The bytes of the KV pools: one mapping, one region a layer for K and one for V.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace isthmus::engine::openvino {

// One block of one layer: `key_bytes` in the K region, `value_bytes` in the V region.
struct KvMemoryShape {
  std::uint32_t layers = 0;
  std::uint32_t blocks = 0;
  std::uint64_t key_bytes = 0, value_bytes = 0;

  std::uint64_t bytes_per_block() const { return layers * (key_bytes + value_bytes); }
};

// Anonymous memory, zero until written, page-aligned regions. Owns the mapping: whoever hands addresses out
// keeps this object alive as long as they are used.
class KvMemory {
 public:
  // Errors: exhausted if the system gives no such mapping.
  static Result<std::unique_ptr<KvMemory>> map(const KvMemoryShape& shape);
  ~KvMemory();
  KvMemory(const KvMemory&) = delete;
  KvMemory& operator=(const KvMemory&) = delete;

  const KvMemoryShape& shape() const { return shape_; }
  std::byte* key(std::uint32_t layer) const;
  std::byte* value(std::uint32_t layer) const;
  std::uint64_t key_region_bytes() const { return shape_.blocks * shape_.key_bytes; }
  std::uint64_t value_region_bytes() const { return shape_.blocks * shape_.value_bytes; }

 private:
  struct Mapping {
    std::byte* base;
    std::uint64_t bytes;
  };

 public:
  // For map() alone: takes over the mapping.
  KvMemory(const KvMemoryShape& shape, Mapping mapping) : shape_(shape), mapping_(mapping) {}

 private:
  KvMemoryShape shape_;
  Mapping mapping_;
};

}  // namespace isthmus::engine::openvino
