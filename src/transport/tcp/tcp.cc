// SPDX-License-Identifier: Apache-2.0
// The tcp transport: listening and connecting.
#include "transport/tcp/tcp.h"

#include <utility>

#include "net/stream.h"
#include "transport/tcp/channel.h"
#include "transport/tcp/frame.h"

namespace isthmus::transport {
namespace {

class TcpAcceptor final : public Acceptor {
 public:
  explicit TcpAcceptor(std::unique_ptr<net::Listener> listener) : listener_(std::move(listener)) {}
  std::string endpoint() const override { return listener_->endpoint().text(); }

 private:
  std::unique_ptr<net::Listener> listener_;
};

class TcpPending final : public Pending {
 public:
  std::unique_ptr<net::Connecting> connecting;
  std::unique_ptr<net::Loop::Timer> refusal;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(net::Loop& loop, std::shared_ptr<const net::Tls> tls) : loop_(loop), tls_(std::move(tls)) {}

  std::string_view name() const override { return "tcp"; }

  Capabilities capabilities() const override {
    return {.write = true, .control_bytes_max = kControlBytesMax, .data_bytes_max = kDataBytesMax};
  }

  Result<std::unique_ptr<Acceptor>> listen(const std::string& endpoint,
                                           std::function<void(std::unique_ptr<Channel>)> on_accept) override {
    ISTHMUS_TRY(const net::Endpoint at, net::Endpoint::parse(endpoint));
    ISTHMUS_TRY(std::unique_ptr<net::Listener> listener,
                net::listen(
                    loop_, at,
                    [pool = pool_, on_accept = std::move(on_accept)](std::unique_ptr<net::Stream> stream) {
                      on_accept(make_tcp_channel(std::move(stream), pool));
                    },
                    tls_));
    return std::unique_ptr<Acceptor>(std::make_unique<TcpAcceptor>(std::move(listener)));
  }

  std::unique_ptr<Pending> connect(const std::string& endpoint, Duration timeout,
                                   std::function<void(Result<std::unique_ptr<Channel>>)> done) override {
    auto pending = std::make_unique<TcpPending>();
    const Result<net::Endpoint> to = net::Endpoint::parse(endpoint);
    if (!to.ok()) {
      // By the loop, so that `done` is never called from within connect().
      pending->refusal =
          loop_.after(Duration::zero(), [done = std::move(done), error = to.error()] { done(error); });
      return pending;
    }
    pending->connecting = net::connect(
        loop_, *to, timeout,
        [pool = pool_, done = std::move(done)](Result<std::unique_ptr<net::Stream>> stream) {
          if (!stream.ok()) return done(stream.error());
          done(make_tcp_channel(*std::move(stream), pool));
        },
        tls_);
    return pending;
  }

 private:
  net::Loop& loop_;
  std::shared_ptr<const net::Tls> tls_;
  std::shared_ptr<PayloadPool> pool_ = std::make_shared<PayloadPool>();
};

}  // namespace

std::unique_ptr<Transport> make_tcp(net::Loop& loop) {
  return make_tcp(loop, nullptr);
}

std::unique_ptr<Transport> make_tcp(net::Loop& loop, std::shared_ptr<const net::Tls> tls) {
  return std::make_unique<TcpTransport>(loop, std::move(tls));
}

}  // namespace isthmus::transport
