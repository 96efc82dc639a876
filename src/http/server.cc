// SPDX-License-Identifier: Apache-2.0
// Accepts connections and bounds them.
#include "http/server.h"

#include <fmt/format.h>

#include <utility>

#include "http/server_connection.h"

namespace isthmus::http {
namespace {

// Connections beyond the limit that are told so; further ones are closed without a word.
constexpr std::size_t kRefusedConnectionsMax = 64;

void on_accept(const std::shared_ptr<ServerState>& state, net::Socket socket) {
  const bool is_full = state->connections.size() >= state->limits.connections_max;
  if (is_full && state->refused.size() >= kRefusedConnectionsMax) return;
  auto connection = std::make_shared<ServerConnection>(state, std::move(socket));
  if (is_full) {
    state->refused.insert(connection);
    connection->refuse(
        503, {Code::kUnavailable, fmt::format("more than {} connections", state->limits.connections_max)});
  } else {
    state->connections.insert(connection);
    connection->start();
  }
}

class AsioServer final : public Server {
 public:
  AsioServer(std::shared_ptr<ServerState> state, std::unique_ptr<net::Listener> listener)
      : state_(std::move(state)), listener_(std::move(listener)), at_(listener_->endpoint()) {}
  ~AsioServer() override {
    listener_.reset();
    for (const auto& connection : std::exchange(state_->connections, {})) connection->close();
    for (const auto& connection : std::exchange(state_->refused, {})) connection->close();
  }

  net::Endpoint endpoint() const override { return at_; }
  std::size_t connections() const override { return state_->connections.size() + state_->refused.size(); }

  void stop_accepting() override {
    listener_.reset();
    state_->is_draining = true;
    const auto connections = state_->connections;  // A copy: closing takes them out.
    for (const auto& connection : connections) connection->close_if_idle();
  }

 private:
  std::shared_ptr<ServerState> state_;
  std::unique_ptr<net::Listener> listener_;
  net::Endpoint at_;
};

}  // namespace

Result<std::unique_ptr<Server>> serve(net::Loop& loop, const net::Endpoint& at, const ServerLimits& limits,
                                      Handler handler) {
  auto state = std::make_shared<ServerState>(
      ServerState{.loop = loop, .limits = limits, .handler = std::move(handler)});
  ISTHMUS_TRY(std::unique_ptr<net::Listener> listener,
              net::listen_socket(loop, at, [weak = std::weak_ptr(state)](net::Socket socket) {
                if (const auto held = weak.lock()) on_accept(held, std::move(socket));
              }));
  return std::unique_ptr<Server>(std::make_unique<AsioServer>(std::move(state), std::move(listener)));
}

}  // namespace isthmus::http
