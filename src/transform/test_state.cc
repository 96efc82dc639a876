// SPDX-License-Identifier: Apache-2.0
// See test_state.h.
#include "transform/test_state.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/digest.h"
#include "kv/catalogue.h"

namespace isthmus::transform {
namespace {

std::uint32_t hash_of(const TestElement& element) {
  std::uint64_t state = digest64(std::as_bytes(std::span(element.part.data(), element.part.size())));
  for (const std::uint64_t value : {std::uint64_t{element.layer}, std::uint64_t{element.head},
                                    std::uint64_t{element.unit}, element.position}) {
    state = (state ^ value) * 0x9e3779b97f4a7c15ull;
    state ^= state >> 29;
  }
  return static_cast<std::uint32_t>(state >> 32);
}

std::uint32_t split(std::uint32_t total, std::uint32_t parts, std::uint32_t index) {
  return total * index / parts;
}

}  // namespace

kv::Descriptor test_identity() {
  kv::Descriptor descriptor;
  kv::Identity& identity = descriptor.identity;
  identity.architecture = "llama";
  identity.lineage = identity.config_digest = identity.tokenizer_digest = "00";
  identity.position_scheme = "rope";
  identity.rope_theta = 10000;
  identity.rope_scaling = "none";
  descriptor.weights_recipe = "gguf-f16";
  descriptor.weights_digest = "00";
  return descriptor;
}

kv::Descriptor test_descriptor(std::string_view storage, const TestGeometry& geometry) {
  kv::Descriptor descriptor = test_identity();
  kv::LayerGroup group;
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) group.layers.push_back(10 + layer);
  for (const char* name : {"k", "v"}) {
    group.components.push_back(
        {.name = name, .heads = geometry.heads, .dim = geometry.dim, .value_transforms = {}});
  }
  const auto found = kv::find_storage(storage);
  ISTHMUS_CHECK(found.ok());
  auto stored = kv::represent(**found, std::move(group));
  ISTHMUS_CHECK(stored.ok());
  descriptor.groups = {std::move(stored->group)};
  descriptor.representation = {std::move(stored->representation)};
  for (std::uint32_t l = 0; l < geometry.layer_ranks; ++l) {
    for (std::uint32_t h = 0; h < geometry.head_ranks; ++h) {
      descriptor.partition.push_back({.rank = l * geometry.head_ranks + h,
                                      .layer_begin = split(geometry.layers, geometry.layer_ranks, l),
                                      .layer_end = split(geometry.layers, geometry.layer_ranks, l + 1),
                                      .head_begin = split(geometry.heads, geometry.head_ranks, h),
                                      .head_end = split(geometry.heads, geometry.head_ranks, h + 1)});
    }
  }
  return descriptor;
}

kv::Verdict test_verdict(const kv::Descriptor& source, const kv::Descriptor& target) {
  kv::Policy policy;
  policy.exactness = kv::Exactness::kBounded;
  return kv::negotiate(source, target, policy);
}

std::uint32_t test_bits(const TestElement& element, kv::Format format) {
  const std::uint32_t hash = hash_of(element);
  const float value = (static_cast<float>(hash & 0xffff) / 32768.0f - 1.0f) *
                      std::ldexp(1.0f, static_cast<int>(hash >> 16 & 7) - 4);
  switch (format) {
    case kv::Format::kF32:
      return std::bit_cast<std::uint32_t>(value);
    case kv::Format::kF16:
      return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
    case kv::Format::kBf16:
      return std::bit_cast<std::uint32_t>(value) >> 16;
    default:
      return hash & ((1u << kv::bits(format)) - 1);
  }
}

float to_float(std::uint32_t bits, kv::Format format) {
  switch (format) {
    case kv::Format::kF32:
      return std::bit_cast<float>(bits);
    case kv::Format::kF16:
      return static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
    case kv::Format::kBf16:
      return std::bit_cast<float>(bits << 16);
    default:
      ISTHMUS_CHECK(false);
  }
}

TestMemory::TestMemory(const kv::Descriptor& descriptor, std::uint32_t rank, std::uint64_t first_position,
                       kv::TokenRange valid)
    : layout_(*descriptor.layout(0, rank)) {
  for (const kv::RankBox& box : descriptor.partition) {
    if (box.rank == rank) box_ = box;
  }
  const std::uint64_t tokens = valid.end - first_position;
  const std::uint32_t block_tokens = layout_.extents().block_tokens;
  binding_.first_position = first_position;
  binding_.valid = valid;
  if (block_tokens != 0) {
    const auto entries = static_cast<std::uint32_t>((tokens + block_tokens - 1) / block_tokens);
    // A stride that has no factor in common with the (prime-ish) pool scatters the table without repeats.
    open_extent_ = 2 * entries + 1;
    for (std::uint32_t entry = 0; entry < entries; ++entry) {
      binding_.blocks.push_back(static_cast<std::uint32_t>((std::uint64_t{entry} * 2 + 1) % open_extent_));
    }
    if (entries > 2) std::swap(binding_.blocks[0], binding_.blocks[2]);
  } else {
    binding_.first_row = 3;
    open_extent_ = tokens + 5;
  }
  for (const kv::RegionLayout& region : layout_.regions()) {
    const std::uint32_t layers = region.per_layer ? box_.layer_end - box_.layer_begin : 1;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      auto& memory = bytes_.emplace_back(layout_.region_bytes(region.name, open_extent_), std::byte{0xa5});
      binding_.memory.push_back({region.name, layer, memory.data(), memory.size(), open_extent_});
    }
  }
}

std::uint32_t TestMemory::units(const kv::PartLayout& part) const {
  const std::string component = part.part.substr(0, part.part.find('.'));
  return layout_.extents().components.at(component).dim / part.dim_granule;
}

const kv::PartLayout& TestMemory::part_of(const TestElement& element) const {
  for (const kv::PartLayout& part : layout_.parts()) {
    if (part.part == element.part) return part;
  }
  ISTHMUS_CHECK(false);
}

std::pair<std::size_t, std::uint64_t> TestMemory::locate(const TestElement& element) const {
  const kv::PartLayout& part = part_of(element);
  const kv::RegionLayout& region = layout_.region(part.region);
  const std::uint32_t layer = element.layer - box_.layer_begin;
  const std::uint64_t relative = element.position - binding_.first_position;
  const std::uint32_t block_tokens = layout_.extents().block_tokens;
  kv::ElementIndex index{.layer = region.per_layer ? 0 : layer,
                         .head = element.head - box_.head_begin,
                         .dim = std::uint64_t{element.unit} * part.dim_granule};
  if (block_tokens != 0) {
    index.block = binding_.blocks.at(relative / block_tokens);
    index.slot = relative % block_tokens;
  } else {
    index.token = binding_.first_row + relative;
  }
  for (std::size_t m = 0; m < binding_.memory.size(); ++m) {
    const kv::RegionMemory& memory = binding_.memory[m];
    if (memory.region == part.region && memory.layer == (region.per_layer ? layer : 0)) {
      return {m, kv::bit_offset(part, index, open_extent_)};
    }
  }
  ISTHMUS_CHECK(false);
}

std::uint32_t TestMemory::read(const TestElement& element) const {
  const auto [memory, bit] = locate(element);
  const std::uint32_t bits = kv::bits(part_of(element).format);
  std::uint32_t value = 0;
  ISTHMUS_CHECK((bit + bits + 7) / 8 <= bytes_[memory].size());
  std::memcpy(&value, bytes_[memory].data() + bit / 8, (bits + 7) / 8);
  return bits == 4 ? value >> (bit % 8) & 0x0fu : value;
}

void TestMemory::write(const TestElement& element, std::uint32_t value) {
  const auto [memory, bit] = locate(element);
  const std::uint32_t bits = kv::bits(part_of(element).format);
  ISTHMUS_CHECK((bit + bits + 7) / 8 <= bytes_[memory].size());
  std::byte* at = bytes_[memory].data() + bit / 8;
  if (bits == 4) {
    const auto old = std::to_integer<std::uint32_t>(*at);
    value = (old & (0xf0u >> (bit % 8))) | (value & 0x0fu) << (bit % 8);
  }
  std::memcpy(at, &value, (bits + 7) / 8);
}

void TestMemory::fill(kv::TokenRange tokens) {
  for_each(tokens, [this](const TestElement& element, kv::Format format) {
    write(element, test_bits(element, format));
  });
}

}  // namespace isthmus::transform
