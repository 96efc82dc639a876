// SPDX-License-Identifier: Apache-2.0
// Reading and writing one non-blocking socket: what tcp and unix streams do alike. Within net only.
#pragma once

#include <sys/uio.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/stream.h"

namespace isthmus::net {

// Shared by a stream and its waits in flight, held by std::shared_ptr. Small frames that lie in the socket
// are read with one system call; what is written in one turn of the loop leaves with one.
class Flow : public std::enable_shared_from_this<Flow> {
 public:
  explicit Flow(boost::asio::io_context& context) : context_(context) {}
  virtual ~Flow() = default;
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // As Stream's.
  void read(std::vector<std::span<std::byte>> pieces, Stream::Done done);
  void write(const std::vector<std::span<const std::byte>>& pieces, Stream::Done done);
  void close();
  // Nobody is called any more.
  void forget();
  virtual std::string name() const = 0;  // The peer's, for messages.

 protected:
  // Bytes moved; 0 if the socket is empty or full.
  virtual Result<std::size_t> receive(std::span<iovec> into) = 0;
  virtual Result<std::size_t> transmit(std::span<iovec> from) = 0;
  virtual void await(bool is_write, std::function<void()> ready) = 0;
  // A read waits for so many bytes: it need not be woken for fewer.
  virtual void expect(std::size_t bytes) { (void)bytes; }
  virtual void shut() = 0;
  boost::asio::io_context& context() { return context_; }
  bool is_closed() const { return is_closed_; }

 private:
  // Read beyond what was asked for: the next frames' headers, mostly.
  static constexpr std::size_t kAheadBytes = std::size_t{4} << 10;
  struct Write {
    std::size_t left = 0;
    Stream::Done done;
  };

  void read_turn();
  void take_ahead();
  void advance(std::size_t bytes);
  bool read_some(std::size_t& budget);
  void end_read(Status status);
  void write_turn();
  bool write_some(std::size_t& budget);
  void end_write(Status status);
  void post(void (Flow::*turn)());
  void wait(bool is_write, void (Flow::*turn)());
  Error closed() const;

  boost::asio::io_context& context_;
  bool is_closed_ = false;
  bool is_reading_ = false, is_writing_ = false;  // A turn runs, is posted, or waits for the socket.
  bool is_drained_ = false;                       // The last call got less than it could take.
  std::vector<std::span<std::byte>> reading_;     // What is left of each piece.
  std::size_t next_ = 0;                          // The first piece that isn't full.
  Stream::Done on_read_;
  std::array<std::byte, kAheadBytes> ahead_{};
  std::span<const std::byte> unread_;  // Of `ahead_`.
  std::deque<std::span<const std::byte>> pieces_;
  std::deque<Write> writes_;
};

}  // namespace isthmus::net
