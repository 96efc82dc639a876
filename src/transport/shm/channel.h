// SPDX-License-Identifier: Apache-2.0
// A channel on a unix socket and shared segments; within transport/shm only.
#pragma once

#include <memory>

#include "net/local.h"
#include "net/loop.h"
#include "transport/api/transport.h"

namespace isthmus::transport {

std::unique_ptr<Channel> make_shm_channel(net::Loop& loop, std::unique_ptr<net::LocalStream> stream);

}  // namespace isthmus::transport
