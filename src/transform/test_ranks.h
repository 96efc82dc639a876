// SPDX-License-Identifier: Apache-2.0
// All ranks of one end with their memory, written a row at a time through kv::bit_offset; and what a state's
// numbers must become at the other end. Shares nothing with packing and placing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/catalogue.h"
#include "kv/descriptor.h"
#include "transform/ranks.h"
#include "transform/redistribute.h"
#include "transform/test_numbers.h"

namespace isthmus::transform {

// A valid descriptor without ranks of one group (or several, appended): `components` as the storage names
// them.
struct TestShape {
  std::uint32_t layers = 2, heads = 1, dim = 64;
  std::uint32_t latent_dim = 512;  // Of "latent"; "rope" has 64, "index_k" 128 elements.
  kv::AttentionKind attention = kv::AttentionKind::kFull;
  std::uint32_t window = 0;
};
// block_tokens 0 keeps the storage's; ignored for rows. Errors: those of kv::represent.
Status add_group(kv::Descriptor& descriptor, const kv::Storage& storage, const TestShape& shape,
                 std::uint32_t block_tokens);
// One such group of a catalogue's storage, its heads, layers and positions dealt out. Fails the test if it
// isn't valid.
kv::Descriptor describe(const char* storage, const TestShape& shape, Degrees degrees,
                        std::uint32_t block_tokens = 0);
// True if test_decode and test_encode have formulas for the form.
bool has_formula(const kv::DecodeForm& form);
// The stored elements of one component, layer and head of a state: any codes, finite scales.
TestCodes test_codes(const kv::DecodeForm& form, std::uint32_t dim, std::uint64_t seed,
                     kv::TokenRange tokens);
// What they must become at an end with other numbers.
TestCodes converted(kv::WireComponent from, kv::WireComponent to, std::uint32_t dim, const TestCodes& stored);
kv::WireComponent numbers_of(const kv::Descriptor& descriptor, std::uint32_t group, std::size_t component);

// Memory of every rank; bytes that nobody writes are 0xa5.
class TestRanks {
 public:
  // Holds positions from `first_position` (aligned down to a block) on; blocks scattered over a larger pool.
  TestRanks(const kv::Descriptor& descriptor, std::uint64_t first_position, kv::TokenRange valid,
            std::uint32_t seed);

  const std::vector<RankMemory>& memory() const { return memory_; }
  std::vector<RankMemory>& memory() { return memory_; }
  std::vector<std::vector<std::byte>>& bytes() { return bytes_; }
  const std::vector<std::vector<std::byte>>& bytes() const { return bytes_; }

  // Elements for consecutive tokens, the first of which begins a token group: codes, scales and zero points
  // as the form has them. Those of positions that the rank hasn't are passed over.
  struct Where {
    std::uint32_t rank = 0, group = 0;
    std::size_t component = 0;
    std::uint32_t layer = 0, head = 0;  // Within the group; global.
  };
  void write(const Where& where, kv::TokenRange tokens, const TestCodes& codes);

 private:
  struct Part {
    kv::PartLayout layout;
    std::uint32_t element_bits = 0, units = 0;
    bool per_layer = false;
    std::vector<std::size_t> memory;  // Index into bytes_ by layer, or one.
    std::vector<std::int64_t> layers, heads, unit_bits, slots,
        blocks;  // Offsets over start_bits; rows as blocks.
  };
  struct Group {
    kv::RankBox box;
    std::vector<bool> has_token;         // By position, from the rule's text; up to the valid end.
    std::vector<std::uint64_t> numbers;  // How many of the rank's are below each position.
    std::uint32_t block_tokens = 0;
    std::vector<std::vector<Part>> components;  // Codes, scale, zero point.
  };
  struct Rank {
    std::vector<Group> groups;  // By group; no components for one that isn't held.
  };

  void add_group(const kv::Descriptor& descriptor, const kv::RankBox& box, std::uint64_t first_position,
                 kv::TokenRange valid, std::uint32_t seed);
  void add_parts(Group& group, const kv::Descriptor& descriptor, const kv::Layout& layout,
                 const kv::Binding& binding, std::uint64_t open_extent, std::size_t first_memory);
  void write_part(const Part& part, const Group& group, const kv::Binding& binding, const Where& where,
                  kv::TokenRange tokens, const std::vector<std::uint32_t>& values);

  std::vector<RankMemory> memory_;
  std::vector<Rank> ranks_;  // Parallel to memory_.
  std::vector<std::vector<std::byte>> bytes_;
};

// Rows that were made before, for one seed, range of tokens and numbers of both ends: making them is dear,
// and ranks, blocks and layouts don't matter.
using TestRows = std::map<std::array<std::uint32_t, 4>, std::pair<TestCodes, TestCodes>>;
struct TestSeed {
  std::uint64_t seed = 0;
  TestRows* known = nullptr;  // The seed's rows that were made before; none if null.
};
// Writes the state that a seed makes to all ranks of `source`, and what it must become to all ranks of
// `expected`, for the tokens that a plan moves.
void write_state(const kv::Descriptor& source_descriptor, const kv::Descriptor& target_descriptor,
                 const Product& product, TestSeed seed, TestRanks* source, TestRanks* expected);

}  // namespace isthmus::transform
