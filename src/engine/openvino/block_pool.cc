// SPDX-License-Identifier: Apache-2.0
// A stack of free block numbers and one bit a block.
#include "engine/openvino/block_pool.h"

#include <fmt/format.h>

namespace isthmus::engine::openvino {

BlockPool::BlockPool(std::uint32_t blocks) : is_out_(blocks, false) {
  free_.reserve(blocks);
  for (std::uint32_t block = blocks; block > 0; --block) free_.push_back(block - 1);
}

Result<std::vector<std::uint32_t>> BlockPool::acquire(std::uint64_t count) {
  if (count > free_.size()) {
    return Error{Code::kExhausted,
                 fmt::format("{} KV blocks asked for, {} of {} are free", count, free(), total())};
  }
  std::vector<std::uint32_t> blocks(free_.rbegin(), free_.rbegin() + static_cast<std::ptrdiff_t>(count));
  free_.resize(free_.size() - count);
  for (std::uint32_t block : blocks) is_out_[block] = true;
  return blocks;
}

void BlockPool::release(const std::vector<std::uint32_t>& blocks) {
  // Backwards, so that the same request gets the same blocks in the same order.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    ISTHMUS_CHECK(*block < total() && is_out_[*block]);
    is_out_[*block] = false;
    free_.push_back(*block);
  }
}

}  // namespace isthmus::engine::openvino
