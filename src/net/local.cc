// SPDX-License-Identifier: Apache-2.0
// Listening and connecting on unix sockets, and the streams that come of it.
#include "net/local.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <utility>

#include "net/asio_internal.h"
#include "net/local_stream.h"

namespace isthmus::net {
namespace {

namespace asio = boost::asio;
using asio::local::stream_protocol;
using boost::system::error_code;

constexpr std::size_t kNameMax = 90;
// As for tcp listeners: after a failed accept, mostly for lack of descriptors.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

Result<stream_protocol::endpoint> address_of(const std::string& name) {
  if (name.empty() || name.size() > kNameMax || name.find('\0') != std::string::npos) {
    return Error{Code::kInvalidArgument,
                 fmt::format("'{}' is no socket name: 1 to {} characters", name.substr(0, 128), kNameMax)};
  }
  return stream_protocol::endpoint(std::string(1, '\0') + "isthmus/" + name);
}

// Shared by the handle and the accept in flight.
struct Accepting {
  explicit Accepting(Loop& on) : loop(on), acceptor(on.asio().context) {}
  Loop& loop;
  stream_protocol::acceptor acceptor;
  std::function<void(std::unique_ptr<LocalStream>)> on_accept;
  std::unique_ptr<Loop::Timer> pause;
  bool closed = false;
};

void accept_next(const std::shared_ptr<Accepting>& state) {
  state->acceptor.async_accept([state](const error_code& error, stream_protocol::socket socket) {
    if (state->closed) return;
    if (error) {
      state->pause = state->loop.after(kAcceptPause, [state] { accept_next(state); });
      return;
    }
    // A peer that is gone already, or can't be watched, is let go.
    Result<std::unique_ptr<LocalStream>> stream = make_local_stream(state->loop, std::move(socket));
    if (stream.ok()) state->on_accept(*std::move(stream));
    if (!state->closed) accept_next(state);
  });
}

class SocketListener final : public LocalListener {
 public:
  explicit SocketListener(std::shared_ptr<Accepting> state) : state_(std::move(state)) {}
  ~SocketListener() override {
    state_->closed = true;
    state_->pause.reset();
    error_code ignored;
    state_->acceptor.close(ignored);
  }

 private:
  std::shared_ptr<Accepting> state_;
};

// A unix socket connects at once or not at all.
Result<std::unique_ptr<LocalStream>> connect_now(Loop& loop, const std::string& name) {
  ISTHMUS_TRY(const stream_protocol::endpoint address, address_of(name));
  stream_protocol::socket socket(loop.asio().context);
  error_code error;
  socket.open(stream_protocol(), error);
  if (!error) socket.native_non_blocking(true, error);
  if (!error &&
      ::connect(socket.native_handle(), address.data(), static_cast<socklen_t>(address.size())) != 0)
    error.assign(errno, boost::system::system_category());
  if (error)
    return Error{Code::kUnavailable, fmt::format("connect to socket '{}': {}", name, error.message())};
  return make_local_stream(loop, std::move(socket));
}

class TimerConnecting final : public Connecting {
 public:
  explicit TimerConnecting(std::unique_ptr<Loop::Timer> turn) : turn_(std::move(turn)) {}

 private:
  std::unique_ptr<Loop::Timer> turn_;
};

}  // namespace

Result<std::unique_ptr<LocalListener>> listen_local(
    Loop& loop, const std::string& name, std::function<void(std::unique_ptr<LocalStream>)> on_accept) {
  ISTHMUS_TRY(const stream_protocol::endpoint address, address_of(name));
  auto state = std::make_shared<Accepting>(loop);
  state->on_accept = std::move(on_accept);
  error_code error;
  state->acceptor.open(stream_protocol(), error);
  if (!error) state->acceptor.bind(address, error);
  if (!error) state->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return Error{Code::kUnavailable, fmt::format("listen on socket '{}': {}", name, error.message())};
  accept_next(state);
  return std::unique_ptr<LocalListener>(std::make_unique<SocketListener>(std::move(state)));
}

std::unique_ptr<Connecting> connect_local(Loop& loop, const std::string& name,
                                          std::function<void(Result<std::unique_ptr<LocalStream>>)> done) {
  // By the loop, so that `done` is never called from within.
  return std::make_unique<TimerConnecting>(
      loop.after(Duration::zero(), [&loop, name, done = std::move(done)] { done(connect_now(loop, name)); }));
}

}  // namespace isthmus::net
