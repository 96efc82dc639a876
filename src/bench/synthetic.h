// SPDX-License-Identifier: Apache-2.0
// KV memory of a model that isn't there: the layout of any storage of the catalogue, any size, finite
// numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/host/buffer.h"
#include "engine/api/engine.h"
#include "kv/binding.h"
#include "kv/descriptor.h"

namespace isthmus::bench {

// The default is an 8-billion model's: 128 KiB a token in f16.
struct Geometry {
  std::uint32_t layers = 32, heads = 8, dim = 128;
};

// A storage that isn't the catalogue's: e4m3fn with an f32 scale for each token and head in regions apart.
inline constexpr const char* kFp8TokenHead = "fp8_token_head";
// not_found if the catalogue has no such storage; incompatible if it doesn't hold k and v.
Result<kv::Descriptor> describe(const std::string& storage, const Geometry& geometry);
// Of all layers and parts.
Result<std::uint64_t> bytes_per_token(const kv::Descriptor& descriptor);

// One sequence's state: blocks scattered over a pool, rows in order. Huge pages, all of them touched.
class SyntheticKv final : public engine::ExportedKv {
 public:
  // exhausted if there's no memory for it.
  static Result<std::shared_ptr<SyntheticKv>> make(const kv::Descriptor& descriptor, std::uint64_t tokens);

  const kv::Binding& binding() const { return binding_; }
  std::span<const kv::Binding> bindings() const override { return {&binding_, 1}; }
  std::uint64_t bytes() const override { return bytes_; }
  // The memory in the order of its regions.
  std::vector<std::span<std::byte>> regions() const;
  // Other numbers for each seed, finite in every format of 16 and 32 bits.
  void fill(std::uint64_t seed);
  void clear();

 private:
  kv::Binding binding_;
  std::vector<device::HostBuffer> memory_;  // Parallel to binding_.memory.
  std::uint64_t bytes_ = 0;
  bool has_small_floats_ = false;
};

}  // namespace isthmus::bench
