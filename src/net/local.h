// SPDX-License-Identifier: Apache-2.0
// Byte streams between processes of one host: unix sockets of the abstract namespace, which pass file
// descriptors, know their peer, and end with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "net/file_descriptor.h"
#include "net/stream.h"

namespace isthmus::net {

// As the kernel vouches for it.
struct Process {
  std::int64_t id = 0;
  std::uint32_t user = 0;
};

// When the peer's process ends, what it sent can still be read; then the stream ends, also if another process
// holds the peer's socket.
class LocalStream : public Stream {
 public:
  virtual const Process& process() const = 0;
  // It leaves with the next bytes, so it comes no later than those of the next write(). exhausted, and `file`
  // is still the caller's: too many wait to leave.
  virtual Status pass(FileDescriptor& file) = 0;
  // The oldest that has come and wasn't taken. malformed if there is none.
  virtual Result<FileDescriptor> take_passed() = 0;
};

class LocalListener {
 public:
  virtual ~LocalListener() = default;  // Closes.
};

// A name has 1 to 90 characters; a process of the same network namespace that isn't this user's may connect
// too, and is told by process(). Errors: invalid_argument, unavailable (name in use).
Result<std::unique_ptr<LocalListener>> listen_local(
    Loop& loop, const std::string& name, std::function<void(std::unique_ptr<LocalStream>)> on_accept);
// `done`, from the loop, gets a stream, or unavailable (nobody listens, or its queue is full) or unsupported
// (the peer's process can't be watched). Destroying the handle cancels.
[[nodiscard]] std::unique_ptr<Connecting> connect_local(
    Loop& loop, const std::string& name, std::function<void(Result<std::unique_ptr<LocalStream>>)> done);

}  // namespace isthmus::net
