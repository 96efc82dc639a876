// SPDX-License-Identifier: Apache-2.0
// Moves bytes between named endpoints. A transport knows endpoints, regions and bytes, never what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/status.h"
#include "base/time.h"
#include "net/loop.h"

namespace isthmus::transport {

struct Capabilities {
  bool write = false;  // The peer may be sent data into slots it granted.
  bool read = false;   // One-sided reads of a peer's memory.
  bool same_host_only = false;
  std::uint64_t control_bytes_max = 0;  // One control frame.
  std::uint64_t data_bytes_max = 0;     // One data message.
};

// What a data message says of itself before its payload is accepted.
struct Incoming {
  std::span<const std::byte> immediate;  // The sender's header; the receiver judges it.
  std::uint64_t bytes = 0;               // Payload length.
};

// Callbacks of one channel, on the loop's thread. None is called after close() or destruction. Each may close
// or destroy the channel. An unset one ignores what it would be told; data without on_incoming is refused
// (unsupported).
struct ChannelEvents {
  std::function<void(std::vector<std::byte> frame)> on_control{};
  // Judge a data message: the memory for its payload (exactly `bytes` long), or an error: the channel then
  // closes with it. Nothing of the payload is read before. The memory must live until on_data, on_closed, or
  // revoke().
  std::function<Result<std::span<std::byte>>(const Incoming&)> on_incoming{};
  // The payload of the last accepted message has been placed.
  std::function<void()> on_data{};
  // A fence that the peer sent: everything it sent before on this channel has been delivered.
  std::function<void(std::uint64_t token)> on_fence{};
  // Once: the reason. After it the transport touches no memory given to it.
  std::function<void(Status why)> on_closed{};
};

// One ordered, reliable connection. Loop's thread only. Send queues are bounded: exhausted when full, the
// channel lives on. A send that fails has taken nothing. Errors: exhausted; invalid_argument (longer than the
// capabilities allow); unavailable (closed).
class Channel {
 public:
  virtual ~Channel() = default;
  // Nothing is read from the peer before the first call. Later calls replace the callbacks.
  virtual void set_events(ChannelEvents events) = 0;
  virtual Status send_control(std::span<const std::byte> frame) = 0;  // Copied.
  // Send `payload` with its header (copied). If that succeeds, the payload must stay unchanged until `sent`,
  // which is called once: ok when the transport will not read it again, else the failure; cancelled from
  // within revoke(), close() and the destructor.
  virtual Status send_data(std::span<const std::byte> immediate, std::span<const std::byte> payload,
                           std::function<void(Status)> sent) = 0;
  virtual Status send_fence(std::uint64_t token) = 0;
  // Local and bounded: from its return on, nothing from the peer is written into memory that on_incoming
  // gave, and no payload given to send_data is read. The channel is closed (on_closed isn't called for it).
  // Works when the peer is stopped.
  virtual void revoke() = 0;
  virtual void close() = 0;  // As revoke().
  virtual std::string peer() const = 0;
};

class Acceptor {
 public:
  virtual ~Acceptor() = default;
  virtual std::string endpoint() const = 0;  // As peers should be told, with the real port.
};

class Pending {
 public:
  virtual ~Pending() = default;  // Cancels.
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "tcp"
  virtual Capabilities capabilities() const = 0;
  virtual Result<std::unique_ptr<Acceptor>> listen(
      const std::string& endpoint, std::function<void(std::unique_ptr<Channel>)> on_accept) = 0;
  [[nodiscard]] virtual std::unique_ptr<Pending> connect(
      const std::string& endpoint, Duration timeout,
      std::function<void(Result<std::unique_ptr<Channel>>)> done) = 0;
};

}  // namespace isthmus::transport
