// SPDX-License-Identifier: Apache-2.0
// The reference engine's KV memory: rows in and out, one element at a time through the layout's own formula,
// on every rank that holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "engine/reference/reference.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "kv/layout.h"
#include "transform/convert.h"
#include "transform/form_parts.h"

namespace isthmus::engine {

// One component of a group, everywhere in a sequence.
struct RowPlace {
  std::uint32_t group = 0;
  std::uint32_t layer = 0;  // Within the group's list.
  std::uint32_t component = 0;
  std::uint32_t head = 0;  // Global.
};

// Blocks or rows of one sequence, free again when nobody holds them. Thread: may be let go anywhere.
struct Units {
  Units(std::vector<std::uint32_t> taken, std::function<void(const Units&)> give_back)
      : units(std::move(taken)), let_go(std::move(give_back)) {}
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;
  ~Units() { let_go(*this); }

  std::vector<std::uint32_t> units;  // Consecutive where the storage has rows.
  std::function<void(const Units&)> let_go;
};

class Store {
 public:
  // `descriptor` outlives it.
  static Result<std::unique_ptr<Store>> make(const kv::Descriptor& descriptor,
                                             const ReferenceOptions& options);

  // exhausted.
  Result<std::shared_ptr<const Units>> take(std::uint64_t tokens);
  std::uint64_t free_units() const;
  std::uint64_t total_units() const { return extent_; }
  std::uint32_t unit_tokens() const { return unit_tokens_; }
  std::uint64_t bytes() const { return bytes_; }

  // `rows` of consecutive positions from `first` on, which begins a token group of the component.
  void write(const RowPlace& place, const Units& units, std::uint64_t first, std::span<const float> rows);
  // Decoded, value transforms undone. `reader` chooses among replicas.
  void read(const RowPlace& place, const Units& units, kv::TokenRange positions, std::uint32_t reader,
            std::vector<float>& rows);
  // Tokens that share a scale.
  std::uint32_t group_tokens(const RowPlace& place) const;
  std::vector<transform::RankMemory> bindings(const Units& units, kv::TokenRange range) const;

 private:
  struct Part {
    kv::PartLayout layout;
    kv::RegionLayout region;
    transform::FormPart form;
  };
  // One group's box on one rank.
  struct Shard {
    kv::RankBox box;
    std::vector<std::vector<Part>> components;
    std::vector<std::vector<std::byte>> memory;
    std::vector<kv::RegionMemory> regions;
  };
  struct Numbers {  // Of one component.
    std::uint32_t dim = 0;
    std::uint32_t group_tokens = 1;
    transform::RowConverter store, load;
    std::vector<std::vector<std::byte>> arrays;  // Codes, scales, zero points of the rows at hand.
  };
  class Pool;

  Store() = default;
  Status add_shard(const kv::Descriptor& descriptor, const kv::RankBox& box);
  Numbers& numbers(const RowPlace& place) { return numbers_.at(place.group).at(place.component); }
  void resize_arrays(Numbers& numbers, const RowPlace& place, std::uint64_t rows) const;
  transform::RowArrays arrays(Numbers& numbers) const;
  std::uint32_t physical(const Shard& shard, std::uint32_t unit) const;
  // Calls each(array index, byte offset in it or half-byte, memory, bit).
  template <typename Each>
  void walk(Shard& shard, const RowPlace& place, const Units& units, kv::TokenRange positions, Each each);
  std::vector<Shard*> replicas(const RowPlace& place);

  std::vector<std::vector<Numbers>> numbers_;  // [group][component]
  std::vector<Shard> shards_;
  std::uint32_t unit_tokens_ = 1;
  bool is_paged_ = false;
  std::uint64_t extent_ = 0;
  std::uint64_t bytes_ = 0;
  std::shared_ptr<Pool> pool_;
};

}  // namespace isthmus::engine
