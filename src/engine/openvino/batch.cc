// SPDX-License-Identifier: Apache-2.0
// The arrays of paged attention, filled item by item.
#include "engine/openvino/batch.h"

#include <algorithm>

#include "base/check.h"

namespace isthmus::engine::openvino {
namespace {

// The LM head is a matrix product like the others: of one row it runs another kernel.
constexpr std::size_t kRowsMin = 2;

void append(ForwardInput& input, const BatchItem& item) {
  const std::uint64_t context = item.past + item.tokens.size();
  const std::uint64_t blocks = blocks_of(context);
  ISTHMUS_CHECK(!item.tokens.empty() && item.logits <= item.tokens.size() && blocks <= item.blocks.size());
  for (std::size_t i = 0; i < item.tokens.size(); ++i) {
    input.input_ids.push_back(item.tokens[i]);
    input.position_ids.push_back(static_cast<std::int64_t>(item.past + i));
  }
  const auto end = static_cast<std::int64_t>(input.input_ids.size());
  for (std::int64_t row = end - item.logits; row < end; ++row) input.rows.push_back(row);
  input.past_lens.push_back(static_cast<std::int32_t>(item.past));
  input.subsequence_begins.push_back(static_cast<std::int32_t>(end));
  for (std::uint64_t i = 0; i < blocks; ++i) {
    input.block_indices.push_back(static_cast<std::int32_t>(item.blocks[i]));
  }
  input.block_indices_begins.push_back(static_cast<std::int32_t>(input.block_indices.size()));
  input.max_context_len = std::max(input.max_context_len, static_cast<std::int32_t>(context));
}

}  // namespace

ForwardInput make_forward(std::span<const BatchItem> items, std::uint32_t padding_block) {
  ForwardInput input;
  input.subsequence_begins.push_back(0);
  input.block_indices_begins.push_back(0);
  for (const BatchItem& item : items) append(input, item);
  if (input.input_ids.size() == 1) {
    const TokenId token = 0;
    append(input, {.tokens = {&token, 1}, .past = 0, .blocks = {&padding_block, 1}, .logits = 0});
  }
  while (input.rows.size() < kRowsMin) input.rows.push_back(0);
  return input;
}

}  // namespace isthmus::engine::openvino
