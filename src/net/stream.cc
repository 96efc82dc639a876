// SPDX-License-Identifier: Apache-2.0
// Byte streams on Asio's sockets.
#include "net/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <charconv>
#include <utility>

#include "net/asio_internal.h"
#include "net/pieces.h"

namespace isthmus::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// One system call moves at most this much, so that a long transfer leaves the loop free for others in
// between.
constexpr std::size_t kPieceBytesMax = std::size_t{512} << 10;
// Pieces of one vectored write; more than a few are small headers, and IOV_MAX is 1024.
constexpr std::size_t kPiecesMax = 16;

// A buffer sequence that Asio copies whole; a span would dangle.
struct Buffers {
  using value_type = asio::const_buffer;
  using const_iterator = const asio::const_buffer*;
  const_iterator begin() const { return pieces.data(); }
  const_iterator end() const { return pieces.data() + count; }
  std::array<asio::const_buffer, kPiecesMax> pieces;
  std::size_t count = 0;
};

// Shared by the stream and its operations in flight.
struct Connection {
  explicit Connection(Socket on) : socket(std::move(on)) {}
  Socket socket;
  Endpoint peer;
  bool closed = false;
  std::span<std::byte> reading;
  Stream::Done on_read;
  Pieces writing;
  Stream::Done on_written;
};

Status outcome(const Connection& connection, const error_code& error) {
  if (connection.closed)
    return Error{Code::kCancelled, fmt::format("{}: closed here", connection.peer.text())};
  if (!error) return ok_status();
  if (error == asio::error::eof) {
    return Error{Code::kUnavailable,
                 fmt::format("{}: the peer closed the connection", connection.peer.text())};
  }
  return Error{Code::kUnavailable, fmt::format("{}: {}", connection.peer.text(), error.message())};
}

// Moved out first: the callback may start the next operation or destroy the stream.
void call(Stream::Done& slot, Status status) {
  if (const Stream::Done done = std::exchange(slot, nullptr)) done(std::move(status));
}

void read_next(const std::shared_ptr<Connection>& connection) {
  const std::size_t bytes = std::min(connection->reading.size(), kPieceBytesMax);
  connection->socket.async_read_some(asio::buffer(connection->reading.data(), bytes),
                                     [connection](const error_code& error, std::size_t moved) {
                                       Status status = outcome(*connection, error);
                                       if (status.ok()) {
                                         connection->reading = connection->reading.subspan(moved);
                                         if (!connection->reading.empty()) return read_next(connection);
                                       }
                                       call(connection->on_read, std::move(status));
                                     });
}

Buffers next_buffers(const Connection& connection) {
  Buffers buffers;
  connection.writing.front(kPiecesMax, kPieceBytesMax, [&](std::span<const std::byte> piece) {
    buffers.pieces.at(buffers.count++) = asio::buffer(piece.data(), piece.size());
  });
  return buffers;
}

void write_next(const std::shared_ptr<Connection>& connection) {
  connection->socket.async_write_some(next_buffers(*connection),
                                      [connection](const error_code& error, std::size_t moved) {
                                        Status status = outcome(*connection, error);
                                        if (status.ok()) {
                                          connection->writing.advance(moved);
                                          if (!connection->writing.empty()) return write_next(connection);
                                        }
                                        call(connection->on_written, std::move(status));
                                      });
}

class SocketStream final : public Stream {
 public:
  explicit SocketStream(Socket socket) : connection_(std::make_shared<Connection>(std::move(socket))) {
    error_code error;
    const auto remote = connection_->socket.remote_endpoint(error);
    connection_->peer = error ? Endpoint{"gone", 0} : endpoint_of(remote);
  }
  ~SocketStream() override {
    connection_->on_read = nullptr;
    connection_->on_written = nullptr;
    SocketStream::close();
  }

  void read(std::span<std::byte> into, Done done) override {
    ISTHMUS_CHECK(!connection_->on_read);
    connection_->on_read = std::move(done);
    connection_->reading = into;
    read_next(connection_);
  }

  void write(std::vector<std::span<const std::byte>> pieces, Done done) override {
    ISTHMUS_CHECK(!connection_->on_written);
    connection_->on_written = std::move(done);
    connection_->writing = Pieces(std::move(pieces));
    write_next(connection_);
  }

  void close() override {
    connection_->closed = true;
    error_code ignored;
    connection_->socket.close(ignored);
  }

  std::string peer() const override { return connection_->peer.text(); }

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Result<Endpoint> Endpoint::parse(std::string_view text) {
  const Error wrong{
      Code::kInvalidArgument,
      fmt::format("'{}' is no endpoint: write host:port, for IPv6 [address]:port", text.substr(0, 128))};
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return wrong;
  }
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (host.empty() || error != std::errc() || end != digits.data() + digits.size()) return wrong;
  return Endpoint{std::string(host), port};
}

Result<std::unique_ptr<Listener>> listen(Loop& loop, const Endpoint& at,
                                         std::function<void(std::unique_ptr<Stream>)> on_accept) {
  return listen_socket(loop, at, [on_accept = std::move(on_accept)](Socket socket) {
    on_accept(std::make_unique<SocketStream>(std::move(socket)));
  });
}

std::unique_ptr<Connecting> connect(Loop& loop, const Endpoint& to, Duration timeout,
                                    std::function<void(Result<std::unique_ptr<Stream>>)> done) {
  return connect_socket(loop, to, timeout, [done = std::move(done)](Result<Socket> socket) {
    if (!socket.ok()) return done(socket.error());
    done(std::unique_ptr<Stream>(std::make_unique<SocketStream>(*std::move(socket))));
  });
}

}  // namespace isthmus::net
