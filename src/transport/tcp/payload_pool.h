// SPDX-License-Identifier: Apache-2.0
// Buffers to send from, used again: fresh pages cost more than packing into warm ones. Within transport only.
#pragma once

#include <memory>
#include <vector>

#include "device/host/buffer.h"
#include "transport/api/transport.h"

namespace isthmus::transport {

// Loop's thread. Buffers out may outlive it.
class PayloadPool : public std::enable_shared_from_this<PayloadPool> {
 public:
  // exhausted if the system has no memory.
  Result<PayloadMemory> take(std::uint64_t bytes);

 private:
  struct Lent;
  void give_back(device::HostBuffer buffer);

  std::vector<device::HostBuffer> spare_;
};

}  // namespace isthmus::transport
