// SPDX-License-Identifier: Apache-2.0
// A bounded store of spare buffers.
#include "transport/tcp/payload_pool.h"

#include <algorithm>
#include <utility>

namespace isthmus::transport {
namespace {

// Those of two busy channels.
constexpr std::size_t kSpareMax = 32;

}  // namespace

// A buffer that is out; back in its pool, if there still is one, when its last holder lets go.
struct PayloadPool::Lent {
  ~Lent() {
    if (const auto alive = pool.lock()) alive->give_back(std::move(buffer));
  }
  std::weak_ptr<PayloadPool> pool;
  device::HostBuffer buffer;
};

Result<PayloadMemory> PayloadPool::take(std::uint64_t bytes) {
  device::HostBuffer buffer;
  const auto at = std::find_if(spare_.begin(), spare_.end(), [&](const device::HostBuffer& spare) {
    return spare.bytes().size() >= bytes;
  });
  if (at != spare_.end()) {
    buffer = std::move(*at);
    spare_.erase(at);
  } else {
    ISTHMUS_TRY(buffer, device::HostBuffer::allocate(bytes));
  }
  const std::span<std::byte> memory = buffer.bytes().first(bytes);
  auto lent = std::make_shared<Lent>();
  lent->pool = weak_from_this();
  lent->buffer = std::move(buffer);
  return PayloadMemory{memory, std::move(lent)};
}

void PayloadPool::give_back(device::HostBuffer buffer) {
  if (buffer.bytes().empty()) return;
  if (spare_.size() >= kSpareMax) spare_.erase(spare_.begin());
  spare_.push_back(std::move(buffer));
}

}  // namespace isthmus::transport
