// SPDX-License-Identifier: Apache-2.0
// One mmap for all pools, advised towards huge pages: a decode step reads every block of a sequence.
#include "engine/openvino/kv_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace isthmus::engine::openvino {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t round_to_page(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::uint64_t layer_stride(const KvMemoryShape& shape) {
  return round_to_page(shape.blocks * shape.key_bytes) + round_to_page(shape.blocks * shape.value_bytes);
}

}  // namespace

Result<std::unique_ptr<KvMemory>> KvMemory::map(const KvMemoryShape& shape) {
  ISTHMUS_CHECK(shape.layers > 0 && shape.blocks > 0 && shape.key_bytes > 0 && shape.value_bytes > 0);
  const std::uint64_t bytes = layer_stride(shape) * shape.layers;
  void* base = MAP_FAILED;
  if (bytes <= std::uint64_t{std::numeric_limits<std::ptrdiff_t>::max()}) {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (base == MAP_FAILED) {
    return Error{Code::kExhausted,
                 fmt::format("no memory for {} KV blocks ({} bytes): {}; ask for fewer KV tokens",
                             shape.blocks, bytes, std::strerror(errno))};
  }
  // Advice alone: without huge pages the pools work, only slower.
  (void)::madvise(base, bytes, MADV_HUGEPAGE);
  return std::make_unique<KvMemory>(shape, Mapping{static_cast<std::byte*>(base), bytes});
}

KvMemory::~KvMemory() {
  ::munmap(mapping_.base, mapping_.bytes);
}

std::byte* KvMemory::key(std::uint32_t layer) const {
  ISTHMUS_CHECK(layer < shape_.layers);
  return mapping_.base + layer_stride(shape_) * layer;
}

std::byte* KvMemory::value(std::uint32_t layer) const {
  ISTHMUS_CHECK(layer < shape_.layers);
  return key(layer) + round_to_page(shape_.blocks * shape_.key_bytes);
}

}  // namespace isthmus::engine::openvino
