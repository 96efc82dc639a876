// SPDX-License-Identifier: Apache-2.0
// The tcp transport: any two hosts, one connection a channel, vectored writes; under TLS if asked.
#pragma once

#include <memory>

#include "net/loop.h"
#include "net/tls.h"
#include "transport/api/transport.h"

namespace isthmus::transport {

// The loop must outlive the transport and its channels. With `tls` (null: none) nobody is spoken to without.
std::unique_ptr<Transport> make_tcp(net::Loop& loop);
std::unique_ptr<Transport> make_tcp(net::Loop& loop, std::shared_ptr<const net::Tls> tls);

}  // namespace isthmus::transport
