// SPDX-License-Identifier: Apache-2.0
// The shm transport: who may connect, listening and connecting.
#include "transport/shm/shm.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "net/local.h"
#include "transport/shm/channel.h"
#include "transport/shm/messages.h"
#include "transport/shm/segment.h"

namespace isthmus::transport {
namespace {

// Its peers' memory is mapped and its own is shown: only to the same user, who could read it anyway.
Status check_user(const net::Process& peer) {
  if (peer.user == ::geteuid()) return ok_status();
  return Error{Code::kUnsupported,
               fmt::format("process {} is of user {}, not {}", peer.id, peer.user, ::geteuid())};
}

// The socket's name in "<host id>/<name>".
Result<std::string> name_here(const std::string& endpoint) {
  const std::size_t slash = endpoint.find('/');
  if (slash == std::string::npos || slash + 1 == endpoint.size()) {
    return Error{Code::kInvalidArgument,
                 fmt::format("'{}' is no shm endpoint: write <host id>/<name>", endpoint.substr(0, 128))};
  }
  const std::string host = shm_host_id();
  if (endpoint.compare(0, slash, host) != 0) {
    return Error{Code::kUnsupported,
                 fmt::format("host {} isn't this one, {}",
                             endpoint.substr(0, std::min<std::size_t>(slash, 128)), host)};
  }
  return endpoint.substr(slash + 1);
}

class ShmAcceptor final : public Acceptor {
 public:
  ShmAcceptor(std::unique_ptr<net::LocalListener> listener, std::string endpoint)
      : listener_(std::move(listener)), endpoint_(std::move(endpoint)) {}
  std::string endpoint() const override { return endpoint_; }

 private:
  std::unique_ptr<net::LocalListener> listener_;
  std::string endpoint_;
};

class ShmPending final : public Pending {
 public:
  std::unique_ptr<net::Connecting> connecting;
  std::unique_ptr<net::Loop::Timer> refusal;
};

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(net::Loop& loop) : loop_(loop) {}

  std::string_view name() const override { return "shm"; }

  Capabilities capabilities() const override {
    return {.write = true,
            .same_host_only = true,
            .control_bytes_max = kUserControlMax,
            .data_bytes_max = kSegmentBytesMax};
  }

  Result<std::unique_ptr<Acceptor>> listen(const std::string& endpoint,
                                           std::function<void(std::unique_ptr<Channel>)> on_accept) override {
    std::string name = random_id().hex();
    if (!endpoint.empty()) {
      ISTHMUS_TRY(name, name_here(endpoint));
    }
    ISTHMUS_TRY(Segment::make(1).status());  // So that its lack is told now.
    ISTHMUS_TRY(
        auto listener,
        net::listen_local(
            loop_, name,
            [&loop = loop_, on_accept = std::move(on_accept)](std::unique_ptr<net::LocalStream> stream) {
              if (const Status status = check_user(stream->process()); !status.ok()) {
                ISTHMUS_LOG(kWarn, "shm peer refused", "why=\"{}\"", status.error().text());
                return;
              }
              on_accept(make_shm_channel(loop, std::move(stream)));
            }));
    return std::unique_ptr<Acceptor>(
        std::make_unique<ShmAcceptor>(std::move(listener), fmt::format("{}/{}", shm_host_id(), name)));
  }

  // Without a timeout: a unix socket connects at once or not at all.
  std::unique_ptr<Pending> connect(const std::string& endpoint, Duration /*timeout*/,
                                   std::function<void(Result<std::unique_ptr<Channel>>)> done) override {
    auto pending = std::make_unique<ShmPending>();
    const Result<std::string> name = name_here(endpoint);
    if (!name.ok()) {
      pending->refusal =
          loop_.after(Duration::zero(), [done = std::move(done), error = name.error()] { done(error); });
      return pending;
    }
    pending->connecting = net::connect_local(
        loop_, *name,
        [&loop = loop_, done = std::move(done)](Result<std::unique_ptr<net::LocalStream>> stream) {
          if (!stream.ok()) return done(stream.error());
          if (const Status status = check_user((*stream)->process()); !status.ok())
            return done(status.error());
          done(make_shm_channel(loop, *std::move(stream)));
        });
    return pending;
  }

 private:
  net::Loop& loop_;
};

std::string read_host_id() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::erase(boot, '-');
  struct stat network{};
  if (::stat("/proc/self/ns/net", &network) != 0) network = {};
  return fmt::format("{}-{:x}", boot.empty() ? "unknown" : boot.substr(0, 16), network.st_ino);
}

}  // namespace

std::unique_ptr<Transport> make_shm(net::Loop& loop) {
  return std::make_unique<ShmTransport>(loop);
}

std::string shm_host_id() {
  static const std::string id = read_host_id();
  return id;
}

}  // namespace isthmus::transport
