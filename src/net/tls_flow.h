// SPDX-License-Identifier: Apache-2.0
// A socket under TLS as a flow, and the handshake before it. Within net only.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "net/asio_internal.h"
#include "net/flow.h"
#include "net/tls.h"

namespace isthmus::net {

enum class TlsEnd : std::uint8_t { kClient, kServer };

// `done` is called once, never from within; with the flow, ready for reads and writes, or unavailable. The
// caller sets the limit: destroying the handle ends the handshake, and `done` isn't called.
class Handshake {
 public:
  virtual ~Handshake() = default;
};
[[nodiscard]] std::unique_ptr<Handshake> shake_hands(Loop& loop, Socket socket,
                                                     std::shared_ptr<const Tls> tls, TlsEnd end,
                                                     std::function<void(Result<std::shared_ptr<Flow>>)> done);

}  // namespace isthmus::net
