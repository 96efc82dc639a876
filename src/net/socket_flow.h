// SPDX-License-Identifier: Apache-2.0
// What flows over a tcp socket have alike, in the clear or under TLS. Within net only.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "net/asio_internal.h"
#include "net/flow.h"

namespace isthmus::net {

class SocketFlow : public Flow {
 public:
  SocketFlow(boost::asio::io_context& context, Socket socket) : Flow(context), socket_(std::move(socket)) {
    boost::system::error_code error;
    const auto remote = socket_.remote_endpoint(error);
    peer_ = error ? "gone:0" : endpoint_of(remote).text();
  }
  std::string name() const override { return peer_; }

 protected:
  void await(bool is_write, std::function<void()> ready) override {
    socket_.async_wait(is_write ? Socket::wait_write : Socket::wait_read,
                       [ready = std::move(ready)](const boost::system::error_code&) { ready(); });
  }
  void shut() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  Socket& socket() { return socket_; }

 private:
  Socket socket_;
  std::string peer_;
};

}  // namespace isthmus::net
