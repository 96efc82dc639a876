// SPDX-License-Identifier: Apache-2.0
// Memory of one rank for tests and benches, read and written one element at a time through kv::bit_offset.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kv/binding.h"
#include "kv/descriptor.h"
#include "kv/layout.h"
#include "kv/negotiate.h"

namespace isthmus::transform {

struct TestGeometry {
  std::uint32_t layers = 2;
  std::uint32_t heads = 3;
  std::uint32_t dim = 64;
  std::uint32_t head_ranks = 1;   // Heads are split over this many ranks (the last takes what is left).
  std::uint32_t layer_ranks = 1;  // Likewise layers; rank = layer_rank * head_ranks + head_rank.
};

// A model without layer groups, storage or ranks.
kv::Descriptor test_identity();
// A valid descriptor of one layer group (global layers 10, 11, …) stored as the catalogue's `storage`.
kv::Descriptor test_descriptor(std::string_view storage, const TestGeometry& geometry);
// Allows one rounding.
kv::Verdict test_verdict(const kv::Descriptor& source, const kv::Descriptor& target);

// The bits of one logical element; floats are finite and vary in sign and size.
struct TestElement {
  std::uint32_t layer = 0;  // Within the group.
  std::string part;
  std::uint32_t head = 0;  // Global.
  std::uint32_t unit = 0;
  std::uint64_t position = 0;
};
std::uint32_t test_bits(const TestElement& element, kv::Format format);
float to_float(std::uint32_t bits, kv::Format format);  // f32, f16, bf16; by the compiler's own conversions.

class TestMemory {
 public:
  // Holds positions [first_position, valid.end): blocks are scattered over a larger pool, rows start at an
  // offset, unused bytes are 0xa5.
  TestMemory(const kv::Descriptor& descriptor, std::uint32_t rank, std::uint64_t first_position,
             kv::TokenRange valid);

  kv::Binding& binding() { return binding_; }
  std::vector<std::vector<std::byte>>& bytes() { return bytes_; }
  const kv::RankBox& box() const { return box_; }
  const kv::Layout& layout() const { return layout_; }
  std::uint32_t units(const kv::PartLayout& part) const;

  std::uint32_t read(const TestElement& element) const;
  void write(const TestElement& element, std::uint32_t bits);
  // Calls each(element, format) for every element of the rank with a position in `tokens`.
  template <typename Each>
  void for_each(kv::TokenRange tokens, Each each) const {
    for (const kv::PartLayout& part : layout_.parts()) {
      for (std::uint32_t layer = box_.layer_begin; layer < box_.layer_end; ++layer) {
        for_each_of(part, layer, tokens, each);
      }
    }
  }
  void fill(kv::TokenRange tokens);  // Every element becomes test_bits().

 private:
  template <typename Each>
  void for_each_of(const kv::PartLayout& part, std::uint32_t layer, kv::TokenRange tokens, Each& each) const {
    for (std::uint32_t head = box_.head_begin; head < box_.head_end; ++head) {
      for (std::uint32_t unit = 0; unit < units(part); ++unit) {
        // One element a token group; `tokens` begins with one.
        for (std::uint64_t position = tokens.begin; position < tokens.end; position += part.token_granule) {
          each(TestElement{layer, part.part, head, unit, position}, part.format);
        }
      }
    }
  }
  const kv::PartLayout& part_of(const TestElement& element) const;
  std::pair<std::size_t, std::uint64_t> locate(const TestElement& element) const;  // Memory index, bit.

  kv::RankBox box_;
  kv::Layout layout_;
  kv::Binding binding_;
  std::uint64_t open_extent_ = 0;
  std::vector<std::vector<std::byte>> bytes_;  // Parallel to binding_.memory.
};

}  // namespace isthmus::transform
