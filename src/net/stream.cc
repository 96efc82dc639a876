// SPDX-License-Identifier: Apache-2.0
// Byte streams on Asio's sockets.
#include "net/stream.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "net/asio_internal.h"
#include "net/flow.h"

namespace isthmus::net {
namespace {

using boost::system::error_code;

Error failed(const std::string& peer, int number) {
  return {Code::kUnavailable, fmt::format("{}: {}", peer, std::strerror(number))};
}

class TcpFlow final : public Flow {
 public:
  TcpFlow(boost::asio::io_context& context, Socket socket) : Flow(context), socket_(std::move(socket)) {
    error_code error;
    const auto remote = socket_.remote_endpoint(error);
    peer_ = error ? "gone:0" : endpoint_of(remote).text();
  }
  std::string name() const override { return peer_; }

 private:
  Result<std::size_t> receive(std::span<iovec> into) override {
    msghdr message{};
    message.msg_iov = into.data();
    message.msg_iovlen = into.size();
    const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
    if (got < 0) return failed(peer_, errno);
    if (got == 0) return Error{Code::kUnavailable, fmt::format("{}: the peer closed the connection", peer_)};
    return static_cast<std::size_t>(got);
  }

  Result<std::size_t> transmit(std::span<iovec> from) override {
    msghdr message{};
    message.msg_iov = from.data();
    message.msg_iovlen = from.size();
    const ssize_t sent = ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
    if (sent < 0) return failed(peer_, errno);
    return static_cast<std::size_t>(sent);
  }

  void await(bool is_write, std::function<void()> ready) override {
    socket_.async_wait(is_write ? Socket::wait_write : Socket::wait_read,
                       [ready = std::move(ready)](const error_code&) { ready(); });
  }

  // To be woken costs both ends about as much as some ten kilobytes.
  void expect(std::size_t bytes) override {
    constexpr std::size_t kWorthIt = std::size_t{64} << 10, kMost = std::size_t{256} << 10;
    const int mark = bytes < kWorthIt ? 1 : static_cast<int>(std::min(bytes, kMost));
    if (mark == low_water_) return;
    if (::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0)
      low_water_ = mark;
  }

  void shut() override {
    error_code ignored;
    socket_.close(ignored);
  }

  Socket socket_;
  int low_water_ = 1;
  std::string peer_;
};

class SocketStream final : public Stream {
 public:
  SocketStream(Loop& loop, Socket socket)
      : flow_(std::make_shared<TcpFlow>(loop.asio().context, std::move(socket))) {}
  ~SocketStream() override {
    flow_->forget();
    flow_->close();
  }

  void read_pieces(std::vector<std::span<std::byte>> pieces, Done done) override {
    flow_->read(std::move(pieces), std::move(done));
  }
  void write(std::vector<std::span<const std::byte>> pieces, Done done) override {
    flow_->write(pieces, std::move(done));
  }
  void close() override { flow_->close(); }
  std::string peer() const override { return flow_->name(); }

 private:
  std::shared_ptr<Flow> flow_;
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
  return listen_socket(loop, at, [&loop, on_accept = std::move(on_accept)](Socket socket) {
    on_accept(std::make_unique<SocketStream>(loop, std::move(socket)));
  });
}

std::unique_ptr<Connecting> connect(Loop& loop, const Endpoint& to, Duration timeout,
                                    std::function<void(Result<std::unique_ptr<Stream>>)> done) {
  return connect_socket(loop, to, timeout, [&loop, done = std::move(done)](Result<Socket> socket) {
    if (!socket.ok()) return done(socket.error());
    done(std::unique_ptr<Stream>(std::make_unique<SocketStream>(loop, *std::move(socket))));
  });
}

}  // namespace isthmus::net
