// SPDX-License-Identifier: Apache-2.0
// The shm transport: processes of one host and one user. Frames cross a unix socket; payloads lie in sealed
// memory of the sender's, which the receiver maps read-only and reads in place.
#pragma once

#include <memory>
#include <string>

#include "net/loop.h"
#include "transport/api/transport.h"

namespace isthmus::transport {

// Endpoints are "<host id>/<name>"; listen("") chooses a name. Errors of listen() and connect(), besides
// those of every transport: unsupported when the endpoint is another host's, another user's, or the kernel
// lacks sealed memory or process descriptors. The loop must outlive the transport and its channels.
std::unique_ptr<Transport> make_shm(net::Loop& loop);

// Names this kernel's run and network namespace: who agrees on it reaches the same sockets.
std::string shm_host_id();

}  // namespace isthmus::transport
