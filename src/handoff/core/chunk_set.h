// SPDX-License-Identifier: Apache-2.0
// The chunks that one attempt moves, in the order in which they go: all of a plan, or what an earlier attempt
// left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "wire/frames.h"

namespace isthmus::handoff {

// Ascending; a chunk's place in it is its position. Costs are logarithmic in the number of ranges.
class ChunkSet {
 public:
  ChunkSet() = default;
  static ChunkSet all(std::uint32_t count) { return count == 0 ? ChunkSet() : ChunkSet({{0, count}}); }
  // Ascending and apart, as frames have them.
  explicit ChunkSet(const std::vector<wire::ChunkRange>& ranges) {
    for (const wire::ChunkRange& range : ranges) {
      runs_.push_back({range, count_});
      count_ += range.end - range.begin;
    }
  }

  std::uint32_t count() const { return count_; }
  // position < count().
  std::uint32_t at(std::uint32_t position) const {
    const auto after = std::ranges::upper_bound(runs_, position, {}, &Run::before);
    const Run& run = *(after - 1);
    return run.range.begin + (position - run.before);
  }
  // How many have an index below this one.
  std::uint32_t below(std::uint32_t index) const {
    const auto after =
        std::ranges::upper_bound(runs_, index, {}, [](const Run& run) { return run.range.begin; });
    if (after == runs_.begin()) return 0;
    const Run& run = *(after - 1);
    return run.before + (std::min(index, run.range.end) - run.range.begin);
  }
  std::optional<std::uint32_t> position_of(std::uint32_t index) const {
    const std::uint32_t position = below(index);
    return position < count_ && at(position) == index ? std::optional(position) : std::nullopt;
  }
  // The last one's index and one; 0 if there is none.
  std::uint32_t end() const { return runs_.empty() ? 0 : runs_.back().range.end; }

 private:
  struct Run {
    wire::ChunkRange range;
    std::uint32_t before = 0;  // Chunks of the runs before.
  };
  std::vector<Run> runs_;
  std::uint32_t count_ = 0;
};

}  // namespace isthmus::handoff
