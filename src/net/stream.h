// SPDX-License-Identifier: Apache-2.0
// Byte streams over TCP, under TLS if asked: addresses, listening, connecting, whole reads and vectored
// writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "net/loop.h"
#include "net/tls.h"

namespace isthmus::net {

// "host:port" as given; port 0 lets the system choose.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string text() const;
  // invalid_argument naming the text.
  static Result<Endpoint> parse(std::string_view text);
  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

// All calls and callbacks on the loop's thread; no callback comes from within read() or write(). One read may
// be in flight at a time; writes queue up, and their callbacks come in order. A callback is called exactly
// once unless the stream is destroyed first (then never).
class Stream {
 public:
  virtual ~Stream() = default;
  using Done = std::function<void(Status)>;
  // Fill `pieces` completely, in their order. unavailable on end of stream or reset.
  virtual void read_pieces(std::vector<std::span<std::byte>> pieces, Done done) = 0;
  void read(std::span<std::byte> into, Done done) { read_pieces({into}, std::move(done)); }
  // Write all pieces; they must live until `done`.
  virtual void write(std::vector<std::span<const std::byte>> pieces, Done done) = 0;
  // Closes at once; pending callbacks get `cancelled`. Idempotent. After it returns the kernel neither
  // writes into nor reads from any buffer given before.
  virtual void close() = 0;
  virtual std::string peer() const = 0;  // For messages.
};

class Listener {
 public:
  virtual ~Listener() = default;          // Closes.
  virtual Endpoint endpoint() const = 0;  // With the real port.
};

// unavailable: address in use or not ours. Binds to exactly that address. With `tls`, on_accept gets streams
// whose peer has shown its certificate; others are closed, so are those that take longer than some seconds.
Result<std::unique_ptr<Listener>> listen(Loop& loop, const Endpoint& at,
                                         std::function<void(std::unique_ptr<Stream>)> on_accept,
                                         std::shared_ptr<const Tls> tls = nullptr);
// `done` gets a stream, or unavailable / deadline_exceeded. Destroying the handle cancels. With `tls` the
// peer has shown its certificate by then; whether it took ours shows at the first read.
class Connecting {
 public:
  virtual ~Connecting() = default;
};
[[nodiscard]] std::unique_ptr<Connecting> connect(Loop& loop, const Endpoint& to, Duration timeout,
                                                  std::function<void(Result<std::unique_ptr<Stream>>)> done,
                                                  std::shared_ptr<const Tls> tls = nullptr);

}  // namespace isthmus::net
