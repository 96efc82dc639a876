// SPDX-License-Identifier: Apache-2.0
// Items of a step laid out as one forward over paged KV. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/api/engine.h"
#include "engine/openvino/paged_model.h"

namespace isthmus::engine::openvino {

// One sequence's share of a forward: `tokens` at positions past, past + 1, …, its last `logits` tokens give
// rows.
struct BatchItem {
  std::span<const TokenId> tokens;
  std::uint64_t past = 0;
  std::span<const std::uint32_t> blocks;  // Of the sequence; those that hold past + tokens.size() are used.
  std::uint32_t logits = 0;
};

// Wanted logits come first, in the order of items and tokens. Padding keeps results bit-identical across
// batches, since matrix products of one row run other kernels: a lone token is joined by a token on
// `padding_block`, and at least two rows of logits are asked for.
ForwardInput make_forward(std::span<const BatchItem> items, std::uint32_t padding_block);

}  // namespace isthmus::engine::openvino
