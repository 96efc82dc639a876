// SPDX-License-Identifier: Apache-2.0
// What lies behind net's public headers, for net and http alone: the io_context, and sockets instead of
// streams.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "net/loop.h"
#include "net/stream.h"

namespace isthmus::net {

struct Loop::Asio {
  boost::asio::io_context context{1};
  // Always held: a context that runs out of work stops for good.
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{context.get_executor()};
  std::atomic<std::thread::id> thread{std::this_thread::get_id()};
  std::optional<boost::asio::signal_set> signals;
};

using Socket = boost::asio::ip::tcp::socket;

// As listen() and connect() of net/stream.h. Sockets come with TCP_NODELAY.
Result<std::unique_ptr<Listener>> listen_socket(Loop& loop, const Endpoint& at,
                                                std::function<void(Socket)> on_accept);
[[nodiscard]] std::unique_ptr<Connecting> connect_socket(Loop& loop, const Endpoint& to, Duration timeout,
                                                         std::function<void(Result<Socket>)> done);

Endpoint endpoint_of(const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace isthmus::net
