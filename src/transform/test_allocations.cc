// SPDX-License-Identifier: Apache-2.0
// See test_allocations.h. The program's operator new and delete, by malloc and free, which sanitizers watch.
#include "transform/test_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>

namespace {

std::atomic<std::uint64_t> counted{0};

void* counted_allocation(std::size_t bytes, std::size_t alignment) {
  ++counted;
  void* at = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (at == nullptr) std::abort();
  return at;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted_allocation(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_allocation(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* at) noexcept {
  std::free(at);
}
void operator delete(void* at, std::size_t) noexcept {
  std::free(at);
}
void operator delete(void* at, std::align_val_t) noexcept {
  std::free(at);
}
void operator delete(void* at, std::size_t, std::align_val_t) noexcept {
  std::free(at);
}

namespace isthmus::transform {

std::uint64_t allocations() {
  return counted;
}

bool are_allocations_counted() {
  const std::uint64_t before = counted;
  ::operator delete(::operator new(1));  // Called by name, not elided as an expression may be.
  return counted != before;
}

}  // namespace isthmus::transform
