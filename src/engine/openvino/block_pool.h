// SPDX-License-Identifier: Apache-2.0
// Which KV blocks are free: fixed number, constant time, no memory behind it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace isthmus::engine::openvino {

// Thread: one. Owns block numbers only; the bytes are KvMemory's.
class BlockPool {
 public:
  explicit BlockPool(std::uint32_t blocks);

  // `count` distinct blocks, most recently released first (their cache lines and pages are warm), or none at
  // all. Errors: exhausted, with what is asked, free and there.
  Result<std::vector<std::uint32_t>> acquire(std::uint64_t count);
  // Give blocks back. A block that isn't out is our own bug: the process stops, since two sequences would
  // share it.
  void release(const std::vector<std::uint32_t>& blocks);

  std::uint32_t total() const { return static_cast<std::uint32_t>(is_out_.size()); }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t used() const { return total() - free(); }

 private:
  std::vector<std::uint32_t> free_;  // A stack; never longer than total().
  std::vector<bool> is_out_;
};

}  // namespace isthmus::engine::openvino
