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

// Memory to send from, got of the channel that will send it. One thread at a time may write it until it is
// sent; let go on the loop's thread.
struct PayloadMemory {
  std::span<std::byte> bytes;
  std::shared_ptr<void> keep;  // Holds `bytes`.
};

// Where a payload goes to or comes from, in order.
using Pieces = std::vector<std::span<std::byte>>;
using ConstPieces = std::vector<std::span<const std::byte>>;

// What a data message says of itself before its payload is accepted.
struct Incoming {
  std::span<const std::byte> immediate;  // The sender's header; the receiver judges it.
  std::uint64_t bytes = 0;               // Payload length.
  bool is_shared = false;                // It lies in the peer's memory and will be shown, not copied.
};

// A payload that is here.
struct Received {
  // A view, or the memory that was given for it if that is one piece.
  std::span<const std::byte> bytes;
  // Set for a view of the peer's memory: `bytes` stay readable while it is held, whatever becomes of channel
  // and peer, but the peer may change them at any time. Let go on the loop's thread: that tells the sender.
  std::shared_ptr<const void> view;
};

// Callbacks of one channel, on the loop's thread. None is called after close() or destruction. Each may close
// or destroy the channel. An unset one ignores what it would be told; data without on_incoming is refused
// (unsupported).
struct ChannelEvents {
  std::function<void(std::vector<std::byte> frame)> on_control{};
  // Judge a data message: the memory for its payload (exactly `bytes` in all; none if it is shared), or an
  // error: the channel then closes with it. Nothing of the payload is read before. The memory must live until
  // on_data, on_closed, or revoke(), and may be written at any time until then.
  std::function<Result<Pieces>(const Incoming&)> on_incoming{};
  // The payload of the last accepted message: in the memory given for it, or a view.
  std::function<void(Received)> on_data{};
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
  // Memory for payloads of this channel, recycled between them. exhausted; unavailable (closed).
  virtual Result<PayloadMemory> payload_memory(std::uint64_t bytes) = 0;
  // True if payloads may lie anywhere, in any number of pieces; else they are one piece of this channel's
  // payload memory, or invalid_argument.
  virtual bool gathers() const = 0;
  // Send `payload` with its header (copied). If that succeeds, the payload must stay unchanged until `sent`,
  // which is called once: ok when neither the transport nor the receiver will read it again, else the
  // failure; cancelled from within revoke(), close() and the destructor.
  virtual Status send_data(std::span<const std::byte> immediate, ConstPieces payload,
                           std::function<void(Status)> sent) = 0;
  virtual Status send_fence(std::uint64_t token) = 0;
  // Local and bounded: from its return on, nothing from the peer is written into memory that on_incoming
  // gave, no view is shown any more, and what the peer may still see of payloads is never used again. The
  // channel is closed (on_closed isn't called for it). Works when the peer is stopped.
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
