// SPDX-License-Identifier: Apache-2.0
// Descriptors and memory of synthetic states.
#include "bench/synthetic.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "kv/catalogue.h"
#include "kv/layout.h"

namespace isthmus::bench {

namespace {

kv::Storage fp8_token_head() {
  kv::Storage made;
  made.name = kFp8TokenHead;
  made.layout_text =
      "region K per layer = blk slot head dim k:e4m3fn\nregion V per layer = blk slot head dim v:e4m3fn\n"
      "region KS per layer = blk slot head k.s:f32\nregion VS per layer = blk slot head v.s:f32";
  made.block_tokens = 16;
  for (const char* component : {"k", "v"}) {
    made.forms.push_back({.component = component,
                          .codes = kv::Format::kE4m3fn,
                          .operation = kv::DecodeOperation::kScaled,
                          .recipe = "amax"});
  }
  return made;
}

}  // namespace

Result<kv::Descriptor> describe(const std::string& storage, const Geometry& geometry) {
  static const kv::Storage kApart = fp8_token_head();
  const kv::Storage* found = &kApart;
  if (storage != kFp8TokenHead) {
    ISTHMUS_TRY(found, kv::find_storage(storage));
  }
  constexpr std::array<std::string_view, 2> kComponents{"k", "v"};
  if (!std::ranges::equal(found->forms, kComponents, {}, &kv::DecodeForm::component))
    return Error{Code::kIncompatible, "storage " + storage + " doesn't hold k and v"};
  return kv::plain_descriptor(*found,
                              {.layers = geometry.layers, .heads = geometry.heads, .dim = geometry.dim});
}

Result<std::uint64_t> bytes_per_token(const kv::Descriptor& descriptor) {
  constexpr std::uint64_t kRows = 1024;
  ISTHMUS_TRY(const kv::Layout layout, descriptor.layout(0, 0));
  std::uint64_t bytes = 0;
  for (const kv::RegionLayout& region : layout.regions()) {
    bytes +=
        layout.region_bytes(region.name, kRows) * (region.per_layer ? descriptor.groups[0].layers.size() : 1);
  }
  return bytes / kRows / std::max(1u, layout.extents().block_tokens);
}

Result<std::shared_ptr<SyntheticKv>> SyntheticKv::make(const kv::Descriptor& descriptor,
                                                       std::uint64_t tokens) {
  ISTHMUS_TRY(const kv::Layout layout, descriptor.layout(0, 0));
  auto made = std::make_shared<SyntheticKv>();
  kv::Binding& binding = made->binding_;
  binding.valid = {0, tokens};
  std::uint64_t open_extent = tokens;
  if (const std::uint32_t block_tokens = layout.extents().block_tokens; block_tokens != 0) {
    // Every second block of the table, then the others: neighbours in the sequence aren't neighbours in
    // memory.
    open_extent = (tokens + block_tokens - 1) / block_tokens;
    for (std::uint64_t first = 0; first < 2; ++first) {
      for (std::uint64_t block = first; block < open_extent; block += 2) {
        binding.blocks.push_back(static_cast<std::uint32_t>(block));
      }
    }
  }
  for (const kv::RegionLayout& region : layout.regions()) {
    const std::size_t layers = region.per_layer ? descriptor.groups[0].layers.size() : 1;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::uint64_t bytes = layout.region_bytes(region.name, open_extent);
      ISTHMUS_TRY(device::HostBuffer memory, device::HostBuffer::allocate(bytes));
      binding.memory.push_back({region.name, layer, memory.bytes().data(), bytes, open_extent});
      made->memory_.push_back(std::move(memory));
      made->bytes_ += bytes;
    }
  }
  for (const kv::DecodeForm& form : descriptor.representation[0].forms) {
    made->has_small_floats_ |= kv::bits(form.codes) == 8 && !kv::precision(form.codes).is_integer;
  }
  made->clear();
  return made;
}

std::vector<std::span<std::byte>> SyntheticKv::regions() const {
  std::vector<std::span<std::byte>> regions;
  for (const device::HostBuffer& memory : memory_) regions.push_back(memory.bytes());
  return regions;
}

void SyntheticKv::fill(std::uint64_t seed) {
  // Sign and mantissa vary, the exponents of f16, bf16 and f32 stay in the middle of their range.
  constexpr std::uint64_t kVaried = 0x8fff8fff8fff8fff, kFixed = 0x3000300030003000;
  // In formats of one byte the exponent's highest bit is clear: no byte is a NaN.
  const std::uint64_t kept = has_small_floats_ ? 0xbfbfbfbfbfbfbfbf : ~std::uint64_t{0};
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (const device::HostBuffer& memory : memory_) {
    const std::span<std::byte> bytes = memory.bytes();
    for (std::size_t at = 0; at + sizeof(state) <= bytes.size(); at += sizeof(state)) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      store_le(bytes.subspan(at), (((state ^ state >> 33) & kVaried) | kFixed) & kept);
    }
  }
}

void SyntheticKv::clear() {
  for (const device::HostBuffer& memory : memory_)
    std::memset(memory.bytes().data(), 0, memory.bytes().size());
}

}  // namespace isthmus::bench
