// SPDX-License-Identifier: Apache-2.0
// Byte streams on Asio's sockets.
#include "net/stream.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <utility>

#include "net/asio_internal.h"
#include "net/socket_flow.h"
#include "net/tls_flow.h"

namespace isthmus::net {
namespace {

Error failed(const std::string& peer, int number) {
  return {Code::kUnavailable, fmt::format("{}: {}", peer, std::strerror(number))};
}

class TcpFlow final : public SocketFlow {
 public:
  using SocketFlow::SocketFlow;

 private:
  Result<std::size_t> receive(std::span<iovec> into) override {
    msghdr message{};
    message.msg_iov = into.data();
    message.msg_iovlen = into.size();
    const ssize_t got = ::recvmsg(socket().native_handle(), &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
    if (got < 0) return failed(name(), errno);
    if (got == 0) return Error{Code::kUnavailable, fmt::format("{}: the peer closed the connection", name())};
    return static_cast<std::size_t>(got);
  }

  Result<std::size_t> transmit(std::span<iovec> from) override {
    msghdr message{};
    message.msg_iov = from.data();
    message.msg_iovlen = from.size();
    const ssize_t sent = ::sendmsg(socket().native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
    if (sent < 0) return failed(name(), errno);
    return static_cast<std::size_t>(sent);
  }

  // To be woken costs both ends about as much as some ten kilobytes.
  void expect(std::size_t bytes) override {
    constexpr std::size_t kWorthIt = std::size_t{64} << 10, kMost = std::size_t{256} << 10;
    const int mark = bytes < kWorthIt ? 1 : static_cast<int>(std::min(bytes, kMost));
    if (mark == low_water_) return;
    if (::setsockopt(socket().native_handle(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0)
      low_water_ = mark;
  }

  int low_water_ = 1;
};

class SocketStream final : public Stream {
 public:
  explicit SocketStream(std::shared_ptr<Flow> flow) : flow_(std::move(flow)) {}
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

std::unique_ptr<Stream> plain_stream(Loop& loop, Socket socket) {
  return std::make_unique<SocketStream>(std::make_shared<TcpFlow>(loop.asio().context, std::move(socket)));
}

// Strangers are bounded: in number, the newest is turned away, and in time.
constexpr std::size_t kGuestsMax = 64;
constexpr Duration kGuestTime = std::chrono::seconds(5);

class TlsListener final : public Listener {
 public:
  using OnAccept = std::function<void(std::unique_ptr<Stream>)>;
  TlsListener(Loop& loop, OnAccept on_accept, std::shared_ptr<const Tls> tls)
      : loop_(loop), on_accept_(std::move(on_accept)), tls_(std::move(tls)) {}
  Endpoint endpoint() const override { return inner_->endpoint(); }

  Status open(const Endpoint& at) {
    ISTHMUS_TRY(inner_, listen_socket(loop_, at, [this](Socket socket) { admit(std::move(socket)); }));
    return ok_status();
  }

 private:
  struct Guest {
    std::unique_ptr<Handshake> handshake;
    std::unique_ptr<Loop::Timer> limit;
  };

  void admit(Socket socket) {
    if (guests_.size() == kGuestsMax) return;
    const std::uint64_t number = next_++;
    Guest& guest = guests_[number];
    guest.limit = loop_.after(kGuestTime, [this, number] { guests_.erase(number); });
    guest.handshake = shake_hands(loop_, std::move(socket), tls_, TlsEnd::kServer,
                                  [this, number](Result<std::shared_ptr<Flow>> flow) {
                                    guests_.erase(number);
                                    if (!flow.ok()) return;
                                    const OnAccept on_accept = on_accept_;  // It may destroy the listener.
                                    on_accept(std::make_unique<SocketStream>(*std::move(flow)));
                                  });
  }

  Loop& loop_;
  OnAccept on_accept_;
  std::shared_ptr<const Tls> tls_;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t next_ = 0;
  std::unique_ptr<Listener> inner_;
};

class TlsConnecting final : public Connecting {
 public:
  using Done = std::function<void(Result<std::unique_ptr<Stream>>)>;
  TlsConnecting(Loop& loop, const Endpoint& to, Duration timeout, Done done, std::shared_ptr<const Tls> tls)
      : done_(std::move(done)) {
    limit_ = loop.after(timeout, [this, to, timeout] {
      const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
      end(Error{Code::kDeadlineExceeded,
                fmt::format("connect to {}: no TLS handshake within {} ms; does it speak TLS?", to.text(),
                            limit.count())});
    });
    const auto shake = [this, &loop, tls = std::move(tls)](Result<Socket> socket) {
      if (!socket.ok()) return end(socket.error());
      handshake_ = shake_hands(loop, *std::move(socket), tls, TlsEnd::kClient,
                               [this](Result<std::shared_ptr<Flow>> flow) {
                                 if (!flow.ok()) return end(flow.error());
                                 end(std::unique_ptr<Stream>(std::make_unique<SocketStream>(*flow)));
                               });
    };
    connecting_ = connect_socket(loop, to, timeout, shake);
  }

 private:
  // The last thing done: the handle may be gone after it.
  void end(Result<std::unique_ptr<Stream>> result) {
    limit_.reset();
    if (const Done done = std::exchange(done_, nullptr)) done(std::move(result));
  }

  Done done_;
  std::unique_ptr<Loop::Timer> limit_;
  std::unique_ptr<Connecting> connecting_;
  std::unique_ptr<Handshake> handshake_;
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
                                         std::function<void(std::unique_ptr<Stream>)> on_accept,
                                         std::shared_ptr<const Tls> tls) {
  if (tls == nullptr) {
    return listen_socket(loop, at, [&loop, on_accept = std::move(on_accept)](Socket socket) {
      on_accept(plain_stream(loop, std::move(socket)));
    });
  }
  auto listener = std::make_unique<TlsListener>(loop, std::move(on_accept), std::move(tls));
  ISTHMUS_TRY_STATUS(listener->open(at));
  return std::unique_ptr<Listener>(std::move(listener));
}

std::unique_ptr<Connecting> connect(Loop& loop, const Endpoint& to, Duration timeout,
                                    std::function<void(Result<std::unique_ptr<Stream>>)> done,
                                    std::shared_ptr<const Tls> tls) {
  if (tls != nullptr)
    return std::make_unique<TlsConnecting>(loop, to, timeout, std::move(done), std::move(tls));
  return connect_socket(loop, to, timeout, [&loop, done = std::move(done)](Result<Socket> socket) {
    if (!socket.ok()) return done(socket.error());
    done(plain_stream(loop, *std::move(socket)));
  });
}

}  // namespace isthmus::net
