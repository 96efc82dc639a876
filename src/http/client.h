// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 client: one request a call, whole or streamed answers, cancellable. Connections to one endpoint
// are reused; a reused one that the server closed before any byte of the answer is replaced once, silently.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/time.h"
#include "http/message.h"
#include "net/loop.h"
#include "net/stream.h"

namespace isthmus::http {

// Callbacks on the loop's thread. on_head, then on_piece any number of times, then on_done once; on failure
// on_done alone may come at any time: unavailable (no connection, or it broke; `detail` says whether anything
// was sent), deadline_exceeded, malformed.
struct ClientEvents {
  std::function<void(int status, const Headers& headers)> on_head{};
  std::function<void(std::string_view piece)> on_piece{};
  std::function<void(Status)> on_done{};
};

// Destroying it closes the connection: the server sees a disconnect. No callback comes after that.
class Call {
 public:
  virtual ~Call() = default;
  // For a caller who can't take more pieces now: nothing is read until go_on(), so that the server's sends
  // stall instead of our memory growing. At most one piece that has been read already still comes, from
  // within no call of these. The time doesn't count as the server's, and its closing isn't seen meanwhile.
  virtual void rest() = 0;
  virtual void go_on() = 0;
};

struct ClientLimits {
  Duration connect_timeout = std::chrono::seconds(2);
  Duration head_timeout = std::chrono::seconds(300);   // From sending until the head arrives.
  Duration piece_timeout = std::chrono::seconds(300);  // Between pieces.
  std::uint64_t body_bytes_max = std::uint64_t{16}
                                 << 20;     // Of what fetch() gathers; a longer answer is exhausted.
  std::uint32_t idle_connections_max = 32;  // Kept for reuse, per endpoint.
};

class Client {
 public:
  virtual ~Client() = default;  // Calls under way go on.
  virtual const ClientLimits& limits() const = 0;
  // Host, Content-Length and Connection are the client's; those in `request` are ignored. No callback comes
  // from within.
  [[nodiscard]] virtual std::unique_ptr<Call> call(const net::Endpoint& to, Request request,
                                                   ClientEvents events) = 0;
};
std::unique_ptr<Client> make_client(net::Loop& loop, const ClientLimits& limits);

// Gathers a whole answer. Errors: as on_done, and exhausted (body_bytes_max).
[[nodiscard]] std::unique_ptr<Call> fetch(Client& client, const net::Endpoint& to, Request request,
                                          std::function<void(Result<Response>)> done);

}  // namespace isthmus::http
