// SPDX-License-Identifier: Apache-2.0
// A stream on a connected unix socket; within net only.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <memory>

#include "net/local.h"

namespace isthmus::net {

// unsupported: the peer's process can't be watched. unavailable: it is gone.
Result<std::unique_ptr<LocalStream>> make_local_stream(Loop& loop,
                                                       boost::asio::local::stream_protocol::socket socket);

}  // namespace isthmus::net
