// SPDX-License-Identifier: Apache-2.0
// A channel on a byte stream; within transport/tcp only.
#pragma once

#include <memory>

#include "net/stream.h"
#include "transport/api/transport.h"
#include "transport/tcp/payload_pool.h"

namespace isthmus::transport {

std::unique_ptr<Channel> make_tcp_channel(std::unique_ptr<net::Stream> stream,
                                          std::shared_ptr<PayloadPool> pool);

}  // namespace isthmus::transport
