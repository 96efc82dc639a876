// SPDX-License-Identifier: Apache-2.0
// Turns: each moves what the socket gives or takes, up to a bound, then waits or lets others go first.
#include "net/flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/check.h"

namespace isthmus::net {
namespace {

// A turn moves about this much, so that a long transfer leaves the loop free for others in between.
constexpr std::size_t kTurnBytes = std::size_t{512} << 10;
// Pieces of one vectored call: rows of some kilobytes at the least. IOV_MAX is 1024.
constexpr std::size_t kPiecesMax = 256;

}  // namespace

void Flow::read(std::vector<std::span<std::byte>> pieces, Stream::Done done) {
  ISTHMUS_CHECK(!on_read_);
  on_read_ = std::move(done);
  reading_ = std::move(pieces);
  next_ = 0;
  advance(0);
  if (!std::exchange(is_reading_, true)) post(&Flow::read_turn);
}

void Flow::write(const std::vector<std::span<const std::byte>>& pieces, Stream::Done done) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> piece : pieces) {
    if (piece.empty()) continue;
    pieces_.push_back(piece);
    bytes += piece.size();
  }
  writes_.push_back({bytes, std::move(done)});
  if (!std::exchange(is_writing_, true)) post(&Flow::write_turn);
}

void Flow::close() {
  if (std::exchange(is_closed_, true)) return;
  shut();
  pieces_.clear();
}

void Flow::forget() {
  on_read_ = nullptr;
  for (Write& write : writes_) write.done = nullptr;
}

Error Flow::closed() const {
  return {Code::kCancelled, fmt::format("{}: closed here", name())};
}

void Flow::post(void (Flow::*turn)()) {
  boost::asio::post(context_, [self = shared_from_this(), turn] { ((*self).*turn)(); });
}

void Flow::wait(bool is_write, void (Flow::*turn)()) {
  await(is_write, [self = shared_from_this(), turn] { ((*self).*turn)(); });
}

// A callback that reads on does so within this turn.
void Flow::read_turn() {
  std::size_t budget = kTurnBytes;
  while (on_read_) {
    if (is_closed_) {
      end_read(closed());
      continue;
    }
    take_ahead();
    if (next_ == reading_.size()) {
      end_read(ok_status());
    } else if (budget == 0) {
      return post(&Flow::read_turn);
    } else if (!read_some(budget)) {
      std::size_t left = 0;
      for (std::size_t i = next_; i < reading_.size(); ++i) left += reading_[i].size();
      expect(left);
      return wait(false, &Flow::read_turn);
    }
  }
  is_reading_ = false;
}

// What was read before it was asked for.
void Flow::take_ahead() {
  while (next_ < reading_.size() && !unread_.empty()) {
    const std::size_t bytes = std::min(reading_[next_].size(), unread_.size());
    std::copy_n(unread_.begin(), bytes, reading_[next_].begin());
    unread_ = unread_.subspan(bytes);
    advance(bytes);
  }
}

// The next `bytes` of the pieces are full.
void Flow::advance(std::size_t bytes) {
  while (next_ < reading_.size()) {
    const std::size_t part = std::min(bytes, reading_[next_].size());
    reading_[next_] = reading_[next_].subspan(part);
    bytes -= part;
    if (!reading_[next_].empty()) return;
    ++next_;
  }
}

// False: the socket is empty.
bool Flow::read_some(std::size_t& budget) {
  if (std::exchange(is_drained_, false)) return false;  // The wait asks the socket anyway.
  std::array<iovec, kPiecesMax> into;                   // NOLINT(*-member-init): filled as far as used.
  std::size_t count = 0, wanted = 0, next = next_;
  for (; next < reading_.size() && count + 1 < into.size() && wanted < kTurnBytes; ++next) {
    const std::size_t part = std::min(reading_[next].size(), kTurnBytes - wanted);
    into[count++] = {reading_[next].data(), part};
    wanted += part;
    if (part < reading_[next].size()) break;
  }
  const std::size_t direct = wanted;
  if (next == reading_.size()) {
    into[count++] = {ahead_.data(), ahead_.size()};
    wanted += ahead_.size();
  }
  const Result<std::size_t> got = receive(std::span(into).first(count));
  if (!got.ok()) {
    end_read(got.error());
    return true;
  }
  advance(std::min(*got, direct));
  unread_ = std::span(ahead_).first(*got - std::min(*got, direct));
  budget -= std::min(budget, *got);
  is_drained_ = *got < wanted;
  return *got != 0;
}

// Moved out first: the callback may start the next read or destroy the stream.
void Flow::end_read(Status status) {
  const Stream::Done done = std::exchange(on_read_, nullptr);
  done(std::move(status));
}

void Flow::write_turn() {
  std::size_t budget = kTurnBytes;
  while (!writes_.empty()) {
    if (is_closed_) {
      end_write(closed());
    } else if (writes_.front().left == 0) {
      end_write(ok_status());
    } else if (budget == 0) {
      return post(&Flow::write_turn);
    } else if (!write_some(budget)) {
      return wait(true, &Flow::write_turn);
    }
  }
  is_writing_ = false;
}

// False: the socket is full.
bool Flow::write_some(std::size_t& budget) {
  std::array<iovec, kPiecesMax> from;  // NOLINT(*-member-init): filled as far as used.
  std::size_t count = 0, bytes = 0;
  for (const std::span<const std::byte> piece : pieces_) {
    if (count == from.size() || bytes == budget) break;
    const std::size_t part = std::min(piece.size(), budget - bytes);
    from[count++] = {const_cast<std::byte*>(piece.data()), part};
    bytes += part;
  }
  const Result<std::size_t> sent = transmit(std::span(from).first(count));
  if (!sent.ok()) {
    end_write(sent.error());
    return true;
  }
  budget -= std::min(budget, *sent);
  std::size_t left = *sent;
  for (Write& write : writes_) {
    const std::size_t part = std::min(left, write.left);
    write.left -= part;
    left -= part;
    if (left == 0) break;
  }
  for (left = *sent; left > 0;) {
    std::span<const std::byte>& piece = pieces_.front();
    const std::size_t part = std::min(left, piece.size());
    piece = piece.subspan(part);
    left -= part;
    if (piece.empty()) pieces_.pop_front();
  }
  return *sent != 0;
}

void Flow::end_write(Status status) {
  const Stream::Done done = std::move(writes_.front().done);
  writes_.pop_front();
  if (done) done(std::move(status));
}

}  // namespace isthmus::net
