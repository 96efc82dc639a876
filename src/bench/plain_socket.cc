// SPDX-License-Identifier: Apache-2.0
// Blocking sockets.
#include "bench/plain_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

namespace isthmus::bench {
namespace {

Error unavailable(std::string_view what) {
  return {Code::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno))};
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Result<std::pair<Socket, Socket>> connected_pair() {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Socket one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = std::bit_cast<sockaddr*>(&address);
  if (bind(listener.fd(), generic, length) != 0 || listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), generic, &length) != 0 || connect(one.fd(), generic, length) != 0) {
    return unavailable("a tcp connection over loopback");
  }
  Socket other(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (other.fd() < 0) return unavailable("accept");
  const int on = 1;
  for (const Socket* end : {&one, &other}) setsockopt(end->fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return std::pair{std::move(one), std::move(other)};
}

Result<std::pair<Socket, Socket>> message_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return unavailable("socketpair");
  return std::pair{Socket(ends[0]), Socket(ends[1])};
}

Status send_all(const Socket& socket, std::span<const std::byte> bytes, std::uint64_t chunk_bytes) {
  while (!bytes.empty()) {
    const ssize_t moved =
        send(socket.fd(), bytes.data(), std::min<std::uint64_t>(bytes.size(), chunk_bytes), MSG_NOSIGNAL);
    if (moved <= 0) return unavailable("send");
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
  return ok_status();
}

Status receive_all(const Socket& socket, std::span<std::byte> bytes, std::uint64_t chunk_bytes) {
  while (!bytes.empty()) {
    const ssize_t moved =
        recv(socket.fd(), bytes.data(), std::min<std::uint64_t>(bytes.size(), chunk_bytes), 0);
    if (moved <= 0) return unavailable("recv");
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
  return ok_status();
}

}  // namespace isthmus::bench
