// SPDX-License-Identifier: Apache-2.0
// Listening and connecting.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

#include "net/asio_internal.h"

namespace isthmus::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// How long a listener rests after a failed accept; the usual cause is a lack of file descriptors, which
// passes.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

// Seconds until an idle connection is asked whether its peer is still there, and between three questions.
constexpr int kIdleSeconds = 15;
constexpr int kQuestionSeconds = 5;
// Sent bytes that nobody confirms for this long end the connection; the system's own limit is a quarter of an
// hour.
constexpr int kUnconfirmedMsMax = 30'000;

// Failures are ignored: a socket that died already tells so at its first use.
void set_up(Socket& socket) {
  using KeepIdle = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using KeepInterval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using KeepCount = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  using UserTimeout = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  socket.set_option(KeepIdle(kIdleSeconds), ignored);
  socket.set_option(KeepInterval(kQuestionSeconds), ignored);
  socket.set_option(KeepCount(3), ignored);
  socket.set_option(UserTimeout(kUnconfirmedMsMax), ignored);
}

Error unavailable(std::string_view what, const Endpoint& at, const error_code& error) {
  return {Code::kUnavailable, fmt::format("{} {}: {}", what, at.text(), error.message())};
}

// Shared by the handle and the accept in flight.
struct Accepting {
  explicit Accepting(Loop& on) : loop(on), acceptor(on.asio().context) {}
  Loop& loop;
  tcp::acceptor acceptor;
  std::function<void(Socket)> on_accept;
  std::unique_ptr<Loop::Timer> pause;
  bool closed = false;
};

void accept_next(const std::shared_ptr<Accepting>& state) {
  state->acceptor.async_accept([state](const error_code& error, Socket socket) {
    if (state->closed) return;
    if (error) {
      state->pause = state->loop.after(kAcceptPause, [state] { accept_next(state); });
      return;
    }
    set_up(socket);
    state->on_accept(std::move(socket));
    if (!state->closed) accept_next(state);
  });
}

class SocketListener final : public Listener {
 public:
  SocketListener(std::shared_ptr<Accepting> state, Endpoint at)
      : state_(std::move(state)), at_(std::move(at)) {}
  ~SocketListener() override {
    state_->closed = true;
    state_->pause.reset();
    error_code ignored;
    state_->acceptor.close(ignored);
  }
  Endpoint endpoint() const override { return at_; }

 private:
  std::shared_ptr<Accepting> state_;
  Endpoint at_;
};

Result<tcp::endpoint> resolve_now(Loop& loop, const Endpoint& at) {
  error_code error;
  const asio::ip::address address = asio::ip::make_address(at.host, error);
  if (!error) return tcp::endpoint(address, at.port);
  tcp::resolver resolver(loop.asio().context);
  const auto found = resolver.resolve(at.host, std::to_string(at.port), error);
  if (error || found.empty()) return unavailable("resolve", at, error);
  return found.begin()->endpoint();
}

// Shared by the handle and the operations in flight. `done` is empty once called or cancelled.
struct Attempt {
  explicit Attempt(Loop& loop) : resolver(loop.asio().context), socket(loop.asio().context) {}
  Endpoint to;
  tcp::resolver resolver;
  Socket socket;
  std::unique_ptr<Loop::Timer> deadline;
  std::function<void(Result<Socket>)> done;
};

void finish(const std::shared_ptr<Attempt>& attempt, Result<Socket> result) {
  const auto done = std::exchange(attempt->done, nullptr);
  if (!done) return;
  attempt->deadline.reset();
  attempt->resolver.cancel();
  error_code ignored;
  if (!result.ok()) attempt->socket.close(ignored);
  done(std::move(result));
}

void on_connected(const std::shared_ptr<Attempt>& attempt, const error_code& error) {
  if (!attempt->done) return;
  if (error) return finish(attempt, unavailable("connect to", attempt->to, error));
  set_up(attempt->socket);
  finish(attempt, std::move(attempt->socket));
}

void connect_to(const std::shared_ptr<Attempt>& attempt, std::vector<tcp::endpoint> addresses) {
  // A single connect is always tried: async_connect would answer an empty list at once.
  auto held = std::make_shared<std::vector<tcp::endpoint>>(std::move(addresses));
  asio::async_connect(attempt->socket, *held, [attempt, held](const error_code& error, const tcp::endpoint&) {
    on_connected(attempt, error);
  });
}

class SocketConnecting final : public Connecting {
 public:
  explicit SocketConnecting(std::shared_ptr<Attempt> attempt) : attempt_(std::move(attempt)) {}
  ~SocketConnecting() override {
    if (!std::exchange(attempt_->done, nullptr)) return;
    attempt_->deadline.reset();
    attempt_->resolver.cancel();
    error_code ignored;
    attempt_->socket.close(ignored);
  }

 private:
  std::shared_ptr<Attempt> attempt_;
};

}  // namespace

Endpoint endpoint_of(const tcp::endpoint& endpoint) {
  return {endpoint.address().to_string(), endpoint.port()};
}

Result<std::unique_ptr<Listener>> listen_socket(Loop& loop, const Endpoint& at,
                                                std::function<void(Socket)> on_accept) {
  ISTHMUS_TRY(const tcp::endpoint address, resolve_now(loop, at));
  auto state = std::make_shared<Accepting>(loop);
  state->on_accept = std::move(on_accept);
  error_code error;
  state->acceptor.open(address.protocol(), error);
  if (error) return unavailable("open a socket for", at, error);
  // So that a restarted worker gets its port back while old connections still linger.
  state->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (error) return unavailable("set up", at, error);
  state->acceptor.bind(address, error);
  if (error) return unavailable("bind to", at, error);
  state->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return unavailable("listen on", at, error);
  const tcp::endpoint bound = state->acceptor.local_endpoint(error);
  if (error) return unavailable("listen on", at, error);
  accept_next(state);
  // The host stays as it was given, since that is how the user knows it.
  return std::unique_ptr<Listener>(
      std::make_unique<SocketListener>(std::move(state), Endpoint{at.host, bound.port()}));
}

std::unique_ptr<Connecting> connect_socket(Loop& loop, const Endpoint& to, Duration timeout,
                                           std::function<void(Result<Socket>)> done) {
  auto attempt = std::make_shared<Attempt>(loop);
  attempt->to = to;
  attempt->done = std::move(done);
  attempt->deadline = loop.after(timeout, [attempt = std::weak_ptr(attempt), timeout] {
    const std::shared_ptr<Attempt> held = attempt.lock();
    if (!held) return;
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
    finish(held, Error{Code::kDeadlineExceeded,
                       fmt::format("connect to {}: no answer within {} ms", held->to.text(), limit.count())});
  });
  error_code error;
  const asio::ip::address address = asio::ip::make_address(to.host, error);
  if (!error) {
    connect_to(attempt, {tcp::endpoint(address, to.port)});
  } else {
    attempt->resolver.async_resolve(
        to.host, std::to_string(to.port),
        [attempt](const error_code& failure, const tcp::resolver::results_type& found) {
          if (!attempt->done) return;
          if (failure) return finish(attempt, unavailable("resolve", attempt->to, failure));
          std::vector<tcp::endpoint> addresses;
          for (const auto& entry : found) addresses.push_back(entry.endpoint());
          connect_to(attempt, std::move(addresses));
        });
  }
  return std::make_unique<SocketConnecting>(std::move(attempt));
}

}  // namespace isthmus::net
