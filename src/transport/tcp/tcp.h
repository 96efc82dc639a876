// SPDX-License-Identifier: Apache-2.0
// The tcp transport: any two hosts, one connection a channel, vectored writes.
#pragma once

#include <memory>

#include "net/loop.h"
#include "transport/api/transport.h"

namespace isthmus::transport {

// The loop must outlive the transport and its channels.
std::unique_ptr<Transport> make_tcp(net::Loop& loop);

}  // namespace isthmus::transport
