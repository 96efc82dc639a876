// SPDX-License-Identifier: Apache-2.0
// Where a sequence's tokens lie, in runs of neighbours: found by comparing block table entries, never by
// dividing each token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/binding.h"
#include "kv/descriptor.h"

namespace isthmus::transform {

// A binding's table in the terms of one layer group. block_tokens is 0 for rows. Of a rank that has some
// positions only, all positions are the rank's numbers of them (kv::RankBox::tokens_below).
struct TokenTable {
  std::span<const std::uint32_t> blocks;
  std::uint32_t block_tokens = 0;
  std::uint64_t first_row = 0, first_position = 0;
  kv::TokenRange valid;

  static TokenTable of(const kv::Binding& binding, std::uint32_t block_tokens) {
    return {binding.blocks, block_tokens, binding.first_row, binding.first_position, binding.valid};
  }
  static TokenTable of(const kv::Binding& binding, std::uint32_t block_tokens, const kv::RankBox& box) {
    TokenTable table = of(binding, block_tokens);
    table.first_position = box.tokens_below(binding.first_position);
    table.valid = {box.tokens_below(binding.valid.begin), box.tokens_below(binding.valid.end)};
    return table;
  }
};

// Steps through consecutive positions a block at a time. A place is block · block_tokens + slot, or the row.
// The table must hold what is stepped through: check_table().
class TokenWalk {
 public:
  TokenWalk(const TokenTable& table, std::uint64_t position) : table_(table) {
    const std::uint64_t first = position - table.first_position;
    if (table.block_tokens == 0) {
      place_ = table.first_row + first;
      left_ = ~std::uint64_t{0} - place_;
      return;
    }
    entry_ = first / table.block_tokens;
    enter(first % table.block_tokens);
  }

  std::uint64_t place() const { return place_; }
  std::uint64_t left() const { return left_; }  // Tokens from here to the block's end.
  // `tokens` is at most left(); not past the last position.
  void advance(std::uint64_t tokens) {
    place_ += tokens;
    left_ -= tokens;
    if (left_ == 0 && ++entry_ < table_.blocks.size()) enter(0);
  }

 private:
  void enter(std::uint64_t slot) {
    place_ = std::uint64_t{table_.blocks[entry_]} * table_.block_tokens + slot;
    left_ = table_.block_tokens - slot;
  }

  TokenTable table_;
  std::uint64_t entry_ = 0, place_ = 0, left_ = 0;
};

// Tokens that are neighbours at both ends.
struct TokenRun {
  std::uint64_t source = 0, target = 0;  // Places of the first.
  std::uint64_t tokens = 0;
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

// invalid_argument, naming the position, unless the table holds each of `tokens`.
Status check_table(const TokenTable& table, kv::TokenRange tokens);
// invalid_argument, naming the block, if one isn't among `pool` blocks or is named twice. A bit a block.
Status check_distinct(const TokenTable& table, std::uint64_t pool);
// The runs of `tokens` in order, as few as there can be; one list serves all layers, heads and parts. Errors:
// those of check_table for either end. `runs` is filled anew and keeps its memory.
Status find_runs(const TokenTable& source, const TokenTable& target, kv::TokenRange tokens,
                 std::vector<TokenRun>& runs);

}  // namespace isthmus::transform
