// SPDX-License-Identifier: Apache-2.0
// One part's addresses, compiled from its layout digits into sums per axis that a tile copy can walk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"
#include "transform/form_parts.h"

namespace isthmus::transform {

// Where a chunk's tokens lie, in the terms of the open axes.
struct TokenPlaces {
  std::span<const std::uint32_t> blocks;  // Physical block of each token; empty for rows.
  std::span<const std::uint32_t> slots;   // Slot in its block; that of the first token begins a token group.
  std::span<const std::uint64_t> rows;    // Row of each token; empty for blocks.
  std::uint64_t tokens = 0;
};

class PartAddress {
 public:
  // `extents`: the rank's. Errors: invalid_argument (the layout stores another format or granule than the
  // decode form says, blocks that aren't whole token groups), unsupported (granules over heads, or over
  // tokens of rows; offsets that aren't whole bytes).
  static Result<PartAddress> make(const kv::Layout& layout, const FormPart& form);

  const std::string& part() const { return layout_.part; }
  const std::string& region() const { return layout_.region; }
  bool per_layer() const { return per_layer_; }
  bool paged() const { return paged_; }
  std::uint32_t element_bits() const { return element_bits_; }
  bool whole_rows() const { return whole_rows_; }
  std::uint32_t granule_tokens() const { return granule_tokens_; }

  // Offsets stay below 2^62 bits for every index below this many blocks or rows.
  std::uint64_t open_extent_max() const { return open_extent_max_; }
  // Fill the token and unit tables; needed before the functions below. The token table has an entry a token
  // group. Allocates nothing for up to `kTileTokens`.
  void tabulate(const TokenPlaces& places, std::uint64_t open_extent);
  // Lowest bit offset of the tabulated tile over the local heads [head_begin, head_end), and one past the
  // highest.
  struct Reach {
    std::int64_t lowest = 0, end = 0;
  };
  Reach reach(std::uint64_t layer, std::uint32_t head_begin, std::uint32_t head_end) const;
  std::int64_t origin_bits(std::uint64_t layer, std::uint64_t head) const;
  std::span<const std::int64_t> token_bits() const { return token_bits_; }
  std::span<const std::int64_t> unit_bits() const { return unit_bits_; }

 private:
  Status check(const FormPart& form) const;
  Status bound_digits(std::uint32_t element_bits);
  void tabulate_units();
  void tabulate_slots();
  std::int64_t sum(kv::Axis axis, std::uint64_t index) const;
  void tabulate_blocks(const TokenPlaces& places);
  void tabulate_rows(const TokenPlaces& places);

  kv::PartLayout layout_;
  bool per_layer_ = false;
  bool paged_ = false;
  bool whole_rows_ = false;
  bool open_units_ = false;  // A unit's offset depends on the open extent.
  bool open_slots_ = false;  // Likewise a slot's.
  std::uint32_t element_bits_ = 0;
  std::uint32_t granule_ = 1, granule_tokens_ = 1;
  std::uint64_t open_extent_max_ = 0;
  std::uint64_t open_extent_ = 0;  // As tabulated.
  std::vector<std::int64_t> token_bits_, unit_bits_, slot_bits_;
};

}  // namespace isthmus::transform
