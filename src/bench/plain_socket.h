// SPDX-License-Identifier: Apache-2.0
// Blocking sockets: what the kernel gives without anything above it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"

namespace isthmus::bench {

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// Two ends of one tcp connection over 127.0.0.1, TCP_NODELAY; unavailable.
Result<std::pair<Socket, Socket>> connected_pair();
// Two ends of a channel of whole messages, for the processes' own talk; unavailable.
Result<std::pair<Socket, Socket>> message_pair();

// All of it, at most `chunk_bytes` a system call. unavailable on an error or the end of the stream.
Status send_all(const Socket& socket, std::span<const std::byte> bytes, std::uint64_t chunk_bytes);
Status receive_all(const Socket& socket, std::span<std::byte> bytes, std::uint64_t chunk_bytes);

}  // namespace isthmus::bench
