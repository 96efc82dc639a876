// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server: whole answers and streamed ones (server-sent events), with limits. Beast stays behind
// this header.
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

struct ServerLimits {
  std::uint64_t body_bytes_max = std::uint64_t{4} << 20;  // Over it: 413 in OpenAI's error shape.
  std::uint64_t header_bytes_max = 32 << 10;
  std::uint32_t connections_max = 512;                             // Over it: accepted and closed with 503.
  std::uint64_t stream_buffer_bytes_max = std::uint64_t{1} << 20;  // A slower reader is disconnected.
  Duration idle_timeout = std::chrono::seconds(60);  // Between requests, and for a request to arrive whole.
};

// The answer to one request; loop's thread. Exactly one of send() and begin(). Destroying it unanswered sends
// 500, destroying it between begin() and end() breaks the connection, so that the client sees that the answer
// isn't whole. After the client went away all calls do nothing. May outlive the server.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const Request& request() const = 0;
  virtual void send(Response response) = 0;
  // Chunked: headers, then write() any number of times, then end().
  virtual void begin(Response head) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // Bytes written and not taken by the client's connection yet; 0 once the client is gone.
  virtual std::size_t buffered() const = 0;
  // Called once, by the loop, as soon as at most `bytes` are buffered; never after the answer is complete or
  // the client gone. Replaces the one given before.
  virtual void on_drained(std::size_t bytes, std::function<void()> work) = 0;
  // Called once, by the loop, if the client goes away (or reads too slowly) before the answer is complete
  // (or went before this call). Replaces the one given before. Not called for the server's own destruction.
  virtual void on_disconnect(std::function<void()> work) = 0;
  // False once the client is gone or the answer is complete.
  virtual bool connected() const = 0;
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

class Server {
 public:
  virtual ~Server() = default;  // Closes all connections.
  virtual net::Endpoint endpoint() const = 0;
  // Closes the listener and idle connections; answers under way are finished, then their connections close.
  virtual void stop_accepting() = 0;
  virtual std::size_t connections() const = 0;  // Open now.
};

// Requests on one connection are handled one after the other. Malformed ones get 400, too long heads 431, and
// the connection closes. Errors: unavailable (address in use or not ours).
Result<std::unique_ptr<Server>> serve(net::Loop& loop, const net::Endpoint& at, const ServerLimits& limits,
                                      Handler handler);

}  // namespace isthmus::http
