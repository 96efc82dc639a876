// SPDX-License-Identifier: Apache-2.0
// See test_ranks.h.
#include "transform/test_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// In +-[2^-4, 2^4), with few significand bits set in some.
float some_float(std::uint64_t hash) {
  return (static_cast<float>(hash & 0xffff) / 32768.0f - 1.0f) *
         std::ldexp(1.0f, static_cast<int>(hash >> 16 & 7) - 4);
}

std::uint32_t code_of(std::uint64_t hash, kv::Format format) {
  switch (format) {
    case kv::Format::kF32:
      return std::bit_cast<std::uint32_t>(some_float(hash));
    case kv::Format::kF16:
      return std::bit_cast<std::uint16_t>(static_cast<_Float16>(some_float(hash)));
    case kv::Format::kBf16:
      return std::bit_cast<std::uint32_t>(some_float(hash)) >> 16;
    case kv::Format::kE4m3fn:  // Not the NaNs.
      return static_cast<std::uint32_t>(hash & 0xff) == 0xff || (hash & 0xff) == 0x7f ? 0x31u : hash & 0xff;
    case kv::Format::kE4m3fnuz:
      return (hash & 0xff) == 0x80 ? 0x31u : hash & 0xff;
    default:
      return static_cast<std::uint32_t>(hash & ((1u << kv::bits(format)) - 1));
  }
}

// Positive and small.
std::uint32_t scale_of(std::uint64_t hash, kv::Format format) {
  const float value = (static_cast<float>(hash & 0xfff) + 1.0f) / 65536.0f;
  switch (format) {
    case kv::Format::kF32:
      return std::bit_cast<std::uint32_t>(value);
    case kv::Format::kF16:
      return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
    case kv::Format::kBf16:
      return std::bit_cast<std::uint32_t>(value) >> 16;
    default:
      return static_cast<std::uint32_t>(120 + hash % 8);
  }
}

void put(std::vector<std::byte>& memory, std::int64_t bit, std::uint32_t bits, std::uint32_t value) {
  const auto at = static_cast<std::size_t>(bit / 8);
  ISTHMUS_CHECK(bit >= 0 && at + (bits + 7) / 8 <= memory.size());
  if (bits == 4) {
    const auto old = std::to_integer<std::uint32_t>(memory[at]);
    value = (old & (0xf0u >> (bit % 8))) | (value & 0x0fu) << (bit % 8);
  }
  std::memcpy(&memory[at], &value, (bits + 7) / 8);
}

// From the rule's text (spec/kv-state.md §1.4), sharing nothing with what is tested.
bool has_position(const kv::RankBox& box, std::uint64_t position) {
  if (box.token_period != 0) {
    const std::uint64_t in_run = position % box.token_period;
    return box.token_begin <= in_run && in_run < box.token_end;
  }
  return box.token_begin <= position && (box.token_end == 0 || position < box.token_end);
}

}  // namespace

Status add_group(kv::Descriptor& descriptor, const kv::Storage& storage, const TestShape& shape,
                 std::uint32_t block_tokens) {
  kv::LayerGroup group;
  std::uint32_t first = 0;
  for (const kv::LayerGroup& other : descriptor.groups)
    first += static_cast<std::uint32_t>(other.layers.size());
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) group.layers.push_back(first + layer);
  group.attention = shape.attention;
  group.window = shape.window;
  for (const kv::DecodeForm& form : storage.forms) {
    kv::Component component;
    component.name = form.component;
    component.heads = shape.heads;
    component.dim = form.component == "latent"    ? shape.latent_dim
                    : form.component == "rope"    ? 64
                    : form.component == "index_k" ? 128
                                                  : shape.dim;
    if (form.component == "k") component.value_transforms = {"rope:interleaved"};
    group.components.push_back(std::move(component));
  }
  ISTHMUS_TRY(kv::StoredGroup stored,
              kv::represent(storage, std::move(group), {{"k", {0.37F}}, {"v", {0.021F}}}));
  if (block_tokens != 0 && stored.representation.block_tokens != 0)
    stored.representation.block_tokens = block_tokens;
  descriptor.groups.push_back(std::move(stored.group));
  descriptor.representation.push_back(std::move(stored.representation));
  return ok_status();
}

kv::Descriptor describe(const char* storage, const TestShape& shape, Degrees degrees,
                        std::uint32_t block_tokens) {
  kv::Descriptor made = test_identity();
  EXPECT_TRUE(add_group(made, **kv::find_storage(storage), shape, block_tokens).ok());
  EXPECT_TRUE(split_ranks(made, degrees).ok());
  const Status valid = made.validate();
  EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().text());
  return made;
}

bool has_formula(const kv::DecodeForm& form) {
  if (form.operation == kv::DecodeOperation::kPlain) {
    return form.codes == kv::Format::kF32 || form.codes == kv::Format::kF16 ||
           form.codes == kv::Format::kBf16 || form.codes == kv::Format::kE4m3fn;
  }
  if (form.operation == kv::DecodeOperation::kStaticScaled) return true;
  constexpr std::array<std::string_view, 8> kRecipes{"openvino.u8.by_token",
                                                     "openvino.u4.by_token",
                                                     "openvino.u8.by_channel",
                                                     "ggml.q8_0.x86",
                                                     "ggml.q4_0",
                                                     "amax",
                                                     "vllm.fp8_ds_mla",
                                                     "vllm.fp8.ue8m0"};
  return std::find(kRecipes.begin(), kRecipes.end(), form.recipe) != kRecipes.end();
}

TestCodes test_codes(const kv::DecodeForm& form, std::uint32_t dim, std::uint64_t seed,
                     kv::TokenRange tokens) {
  TestCodes out;
  out.codes.reserve(tokens.size() * dim);
  for (std::uint64_t position = tokens.begin; position < tokens.end; ++position) {
    const std::uint64_t row = mix(seed ^ mix(position));
    for (std::uint32_t unit = 0; unit < dim; ++unit)
      out.codes.push_back(code_of(mix(row + unit), form.codes));
    if (form.granule_dim == 0 || position % form.granule_tokens != 0) continue;
    for (std::uint32_t unit = 0; unit < dim / form.granule_dim; ++unit) {
      out.scales.push_back(scale_of(mix(row ^ 0x5ca1e000u ^ unit), form.scale));
      if (form.operation != kv::DecodeOperation::kScaledZeroPoint) continue;
      const auto zero = static_cast<float>(mix(row ^ 0x2e400000u ^ unit) & 0xff);
      out.zeros.push_back(std::bit_cast<std::uint32_t>(zero));
    }
  }
  return out;
}

TestCodes converted(kv::WireComponent from, kv::WireComponent to, std::uint32_t dim,
                    const TestCodes& stored) {
  if (from.form.same_form(to.form) && from.value_transforms == to.value_transforms) return stored;
  while (!from.value_transforms.empty() && !to.value_transforms.empty() &&
         from.value_transforms.front() == to.value_transforms.front()) {
    from.value_transforms.erase(from.value_transforms.begin());
    to.value_transforms.erase(to.value_transforms.begin());
  }
  if (from.value_transforms == to.value_transforms && kv::keeps_static_codes(from.form, to.form)) {
    TestCodes kept = stored;  // e4m3fnuz has no -0.
    for (std::uint32_t& code : kept.codes) code = to.form.codes == from.form.codes || code != 0x80 ? code : 0;
    return kept;
  }
  return test_encode(to, test_decode(from, dim, stored));
}

kv::WireComponent numbers_of(const kv::Descriptor& descriptor, std::uint32_t group, std::size_t component) {
  return {descriptor.representation[group].forms[component],
          descriptor.groups[group].components[component].value_transforms};
}

TestRanks::TestRanks(const kv::Descriptor& descriptor, std::uint64_t first_position, kv::TokenRange valid,
                     std::uint32_t seed) {
  for (const kv::RankBox& box : descriptor.partition) {
    const auto known = std::find_if(memory_.begin(), memory_.end(),
                                    [&](const RankMemory& one) { return one.rank == box.rank; });
    if (known == memory_.end()) {
      memory_.push_back({box.rank, std::vector<kv::Binding>(descriptor.groups.size())});
      ranks_.push_back({std::vector<Group>(descriptor.groups.size())});
    }
    add_group(descriptor, box, first_position, valid, seed + box.rank * 7 + box.group);
  }
}

void TestRanks::add_group(const kv::Descriptor& descriptor, const kv::RankBox& box,
                          std::uint64_t first_position, kv::TokenRange valid, std::uint32_t seed) {
  const auto at =
      static_cast<std::size_t>(std::find_if(memory_.begin(), memory_.end(),
                                            [&](const RankMemory& one) { return one.rank == box.rank; }) -
                               memory_.begin());
  Group& group = ranks_[at].groups[box.group];
  kv::Binding& binding = memory_[at].groups[box.group];
  const kv::Layout layout = descriptor.layout(box.group, box.rank).value();
  group.box = box;
  group.block_tokens = layout.extents().block_tokens;
  const bool has_token_axis = descriptor.groups[box.group].attention != kv::AttentionKind::kRecurrent;
  if (!has_token_axis) valid.begin = first_position = valid.end - 1;
  group.numbers.push_back(0);
  for (std::uint64_t position = 0; position < valid.end; ++position) {
    group.has_token.push_back(has_position(box, position));
    group.numbers.push_back(group.numbers.back() + (group.has_token.back() ? 1 : 0));
  }
  binding.valid = valid;
  std::uint64_t open_extent = 0;
  const std::uint64_t number_end = group.numbers.back();
  const std::uint64_t first_number = group.numbers[first_position];
  if (group.block_tokens != 0) {
    const std::uint64_t first_of_block = first_number / group.block_tokens * group.block_tokens;
    while (group.numbers[first_position] > first_of_block) --first_position;
    binding.first_position = first_position;
    const std::uint64_t entries = (number_end - first_of_block + group.block_tokens - 1) / group.block_tokens;
    open_extent = entries + 1 + entries / 2;
    std::vector<std::uint32_t> pool(open_extent);
    std::iota(pool.begin(), pool.end(), 0u);
    for (std::size_t i = pool.size(); i > 1; --i) std::swap(pool[i - 1], pool[mix(seed + i) % i]);
    binding.blocks.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(entries));
  } else {
    binding.first_position = first_position;
    binding.first_row = 1 + seed % 5;
    open_extent = binding.first_row + (number_end - first_number) + 2;
  }
  const std::size_t first_memory = bytes_.size();
  for (const kv::RegionLayout& region : layout.regions()) {
    const std::uint32_t layers = region.per_layer ? box.layer_end - box.layer_begin : 1;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      auto& memory = bytes_.emplace_back(layout.region_bytes(region.name, open_extent), std::byte{0xa5});
      binding.memory.push_back({region.name, layer, memory.data(), memory.size(), open_extent});
    }
  }
  add_parts(group, descriptor, layout, binding, open_extent, first_memory);
}

void TestRanks::add_parts(Group& group, const kv::Descriptor& descriptor, const kv::Layout& layout,
                          const kv::Binding& binding, std::uint64_t open_extent, std::size_t first_memory) {
  const kv::RankBox& box = group.box;
  const auto add = [&](std::vector<Part>& parts, const std::string& name, std::uint32_t dim) {
    Part part;
    part.layout = *layout.part(name).value();
    part.element_bits = kv::bits(part.layout.format);
    part.units = dim / part.layout.dim_granule;
    part.per_layer = layout.region(part.layout.region).per_layer;
    for (std::size_t m = 0; m < binding.memory.size(); ++m) {
      if (binding.memory[m].region == part.layout.region) part.memory.push_back(first_memory + m);
    }
    const auto offset = [&](const kv::ElementIndex& index) {
      return static_cast<std::int64_t>(kv::bit_offset(part.layout, index, open_extent)) -
             static_cast<std::int64_t>(part.layout.start_bits);
    };
    const bool is_paged = group.block_tokens != 0;
    for (std::uint32_t i = 0; i < box.layer_end - box.layer_begin; ++i)
      part.layers.push_back(part.per_layer ? 0 : offset({.layer = i}));
    for (std::uint32_t i = 0; i < box.head_end - box.head_begin; ++i)
      part.heads.push_back(offset({.head = i}));
    for (std::uint32_t i = 0; i < part.units; ++i)
      part.unit_bits.push_back(offset({.dim = std::uint64_t{i} * part.layout.dim_granule}));
    for (std::uint32_t i = 0; i < group.block_tokens; ++i) part.slots.push_back(offset({.slot = i}));
    for (std::uint64_t i = 0; i < open_extent; ++i)
      part.blocks.push_back(is_paged ? offset({.block = i}) : offset({.token = i}));
    parts.push_back(std::move(part));
  };
  const std::vector<kv::Component>& components = descriptor.groups[box.group].components;
  for (std::size_t c = 0; c < components.size(); ++c) {
    std::vector<Part>& parts = group.components.emplace_back();
    const kv::DecodeForm& form = descriptor.representation[box.group].forms[c];
    add(parts, form.component, components[c].dim);
    if (form.granule_dim == 0) continue;
    add(parts, form.component + ".s", components[c].dim);
    if (form.operation == kv::DecodeOperation::kScaledZeroPoint)
      add(parts, form.component + ".z", components[c].dim);
  }
}

void TestRanks::write(const Where& where, kv::TokenRange tokens, const TestCodes& codes) {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    if (memory_[i].rank != where.rank) continue;
    const Group& at = ranks_[i].groups[where.group];
    const std::vector<Part>& parts = at.components[where.component];
    const kv::Binding& binding = memory_[i].groups[where.group];
    write_part(parts[0], at, binding, where, tokens, codes.codes);
    if (parts.size() > 1) write_part(parts[1], at, binding, where, tokens, codes.scales);
    if (parts.size() > 2) write_part(parts[2], at, binding, where, tokens, codes.zeros);
  }
}

void TestRanks::write_part(const Part& part, const Group& group, const kv::Binding& binding,
                           const Where& where, kv::TokenRange tokens,
                           const std::vector<std::uint32_t>& values) {
  const std::uint32_t local_layer = where.layer - group.box.layer_begin;
  std::vector<std::byte>& memory = bytes_[part.memory[part.per_layer ? local_layer : 0]];
  const std::int64_t origin = static_cast<std::int64_t>(part.layout.start_bits) + part.layers[local_layer] +
                              part.heads[where.head - group.box.head_begin];
  std::size_t next = 0;
  for (std::uint64_t position = tokens.begin; position < tokens.end; position += part.layout.token_granule) {
    if (!group.has_token.at(position)) {
      next += part.units;
      continue;
    }
    const std::uint64_t relative = group.numbers[position] - group.numbers[binding.first_position];
    const std::int64_t row =
        origin + (group.block_tokens == 0 ? part.blocks[binding.first_row + relative]
                                          : part.blocks[binding.blocks[relative / group.block_tokens]] +
                                                part.slots[relative % group.block_tokens]);
    for (std::uint32_t unit = 0; unit < part.units; ++unit)
      put(memory, row + part.unit_bits[unit], part.element_bits, values.at(next++));
  }
  ISTHMUS_CHECK(next == values.size());
}

namespace {

// To every rank of `ranks`, if there are any, that holds the row.
void write_row(TestRanks* ranks, const kv::Descriptor& descriptor, TestRanks::Where where,
               kv::TokenRange tokens, const TestCodes& codes) {
  for (const kv::RankBox& box : descriptor.partition) {
    if (ranks == nullptr || box.group != where.group || where.layer < box.layer_begin ||
        where.layer >= box.layer_end || where.head < box.head_begin || where.head >= box.head_end) {
      continue;
    }
    where.rank = box.rank;
    ranks->write(where, tokens, codes);
  }
}

// Every (layer, head) of one component, in order.
std::vector<TestRanks::Where> rows_of(const kv::LayerGroup& group, std::uint32_t g, std::uint32_t component) {
  std::vector<TestRanks::Where> rows;
  for (std::uint32_t layer = 0; layer < group.layers.size(); ++layer) {
    for (std::uint32_t head = 0; head < group.components[component].heads; ++head)
      rows.push_back({0, g, component, layer, head});
  }
  return rows;
}

}  // namespace

void write_state(const kv::Descriptor& source_descriptor, const kv::Descriptor& target_descriptor,
                 const Product& product, TestSeed seed, TestRanks* source, TestRanks* expected) {
  TestRows own;
  TestRows& known = seed.known == nullptr ? own : *seed.known;
  const kv::TokenRange all{product.tiles.front().begin, product.tiles.back().end};
  for (std::uint32_t g = 0; g < source_descriptor.groups.size(); ++g) {
    const kv::LayerGroup& group = source_descriptor.groups[g];
    const kv::TokenRange tokens{std::max(all.begin, product.groups[g].token_begin), all.end};
    for (std::uint32_t c = 0; c < group.components.size(); ++c) {
      const kv::WireComponent from = numbers_of(source_descriptor, g, c),
                              to = numbers_of(target_descriptor, g, c);
      const std::uint32_t dim = group.components[c].dim;
      for (const TestRanks::Where& where : rows_of(group, g, c)) {
        const auto [at, is_new] = known.try_emplace({g, c, where.layer, where.head});
        auto& [codes, wanted] = at->second;
        if (is_new) {
          const std::uint64_t row = ((std::uint64_t{g} * 64 + c) * 4096 + where.layer) * 4096 + where.head;
          codes = test_codes(from.form, dim, mix(seed.seed ^ row), tokens);
          if (expected != nullptr) wanted = converted(from, to, dim, codes);
        }
        write_row(source, source_descriptor, where, tokens, codes);
        write_row(expected, target_descriptor, where, tokens, wanted);
      }
    }
  }
}

}  // namespace isthmus::transform
