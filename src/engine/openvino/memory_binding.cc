// SPDX-License-Identifier: Apache-2.0
// Regions are found by the part they hold, never by their name.
#include "engine/openvino/memory_binding.h"

#include <fmt/format.h>

namespace isthmus::engine::openvino {
namespace {

struct Pool {
  const char* part;
  std::byte* (*base)(const KvMemory& memory, std::uint32_t layer);
  std::uint64_t bytes;
};

Result<std::string> region_of(const kv::Layout& layout, const Pool& pool, const KvMemory& memory) {
  ISTHMUS_TRY(const kv::PartLayout* part, layout.part(pool.part));
  const std::uint64_t expected = layout.region_bytes(part->region, memory.shape().blocks);
  if (expected != pool.bytes || !layout.region(part->region).per_layer) {
    return Error{
        Code::kIncompatible,
        fmt::format(
            "storage of {}: the layout \"{}\" takes {} bytes for {} blocks of region {}, the engine {} "
            "bytes a layer; block size or format is misstated",
            pool.part, layout.source_text(), expected, memory.shape().blocks, part->region, pool.bytes)};
  }
  return part->region;
}

}  // namespace

Result<kv::Binding> bind_memory(const kv::Descriptor& descriptor, const KvMemory& memory) {
  ISTHMUS_TRY(const kv::Layout layout, descriptor.layout(0, 0));
  const Pool pools[] = {
      {"k", [](const KvMemory& m, std::uint32_t layer) { return m.key(layer); }, memory.key_region_bytes()},
      {"v", [](const KvMemory& m, std::uint32_t layer) { return m.value(layer); },
       memory.value_region_bytes()}};
  kv::Binding binding;
  for (const Pool& pool : pools) {
    ISTHMUS_TRY(const std::string region, region_of(layout, pool, memory));
    for (std::uint32_t layer = 0; layer < memory.shape().layers; ++layer) {
      binding.memory.push_back({.region = region,
                                .layer = layer,
                                .base = pool.base(memory, layer),
                                .bytes = pool.bytes,
                                .open_extent = memory.shape().blocks});
    }
  }
  return binding;
}

}  // namespace isthmus::engine::openvino
