// SPDX-License-Identifier: Apache-2.0
// What a vectored write has still to send.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace isthmus::net {

class Pieces {
 public:
  Pieces() = default;
  explicit Pieces(std::vector<std::span<const std::byte>> pieces) : pieces_(std::move(pieces)) {
    advance(0);  // Skips empty pieces at the front.
  }

  bool empty() const { return first_ == pieces_.size(); }

  // Drops `moved` bytes from the front.
  void advance(std::size_t moved) {
    for (; first_ < pieces_.size(); ++first_) {
      std::span<const std::byte>& piece = pieces_[first_];
      const std::size_t taken = std::min(moved, piece.size());
      piece = piece.subspan(taken);
      moved -= taken;
      if (!piece.empty()) return;
    }
  }

  // Calls `take` with at most `pieces_max` spans from the front, `bytes_max` bytes in all.
  template <typename Take>
  void front(std::size_t pieces_max, std::size_t bytes_max, Take take) const {
    const std::size_t end = std::min(pieces_.size(), first_ + pieces_max);
    for (std::size_t i = first_; i < end && bytes_max != 0; ++i) {
      const std::span<const std::byte> piece = pieces_[i].first(std::min(pieces_[i].size(), bytes_max));
      take(piece);
      bytes_max -= piece.size();
    }
  }

 private:
  std::vector<std::span<const std::byte>> pieces_;
  std::size_t first_ = 0;  // Pieces before it are sent.
};

}  // namespace isthmus::net
