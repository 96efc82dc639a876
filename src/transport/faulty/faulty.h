// SPDX-License-Identifier: Apache-2.0
// A transport with a fault injector before another one: for tests of what lies above transports. Unarmed, it
// keeps the contract of every transport.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "net/loop.h"
#include "transport/api/transport.h"

namespace isthmus::transport {

enum class Fault : std::uint8_t {
  kNone,
  kHold,     // This frame and all behind it on its channel wait for Faults::release(); they count as sent.
  kCorrupt,  // One byte of the payload, or of the control frame, is another.
  kRefuse,   // The send answers exhausted.
  kCut,      // The channel is lost: unavailable to both ends.
};

enum class SentKind : std::uint8_t { kControl, kData, kFence };

struct SentFrame {
  SentKind kind = SentKind::kControl;
  std::uint64_t index = 0;  // Among those of its kind, on all channels of the transport, from 0.
};

// What happens to frames; of one faulty transport. Loop's thread.
class Faults {
 public:
  // Asked before each frame is sent; unset: nothing happens.
  std::function<Fault(const SentFrame&)> judge;
  // Lets what is held go, in order.
  void release();

 private:
  friend class FaultyConnection;
  Fault next(SentKind kind);
  std::uint64_t counts_[3] = {};
  std::vector<std::function<void()>> holding_;
};

// Chances of one frame.
struct FaultRates {
  double hold = 0, corrupt = 0, refuse = 0, cut = 0;
};
// Draws for each frame; the same for the same seed, whatever the order of asking.
std::function<Fault(const SentFrame&)> seeded_faults(std::uint64_t seed, FaultRates rates);

std::unique_ptr<Transport> make_faulty(net::Loop& loop, std::unique_ptr<Transport> inner,
                                       std::shared_ptr<Faults> faults);

}  // namespace isthmus::transport
