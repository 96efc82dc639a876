// SPDX-License-Identifier: Apache-2.0
// A man in the middle of a tcp transport: passes frames on, and damages, holds or cuts those that a test
// picks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "net/loop.h"
#include "net/stream.h"
#include "transport/tcp/frame.h"

namespace isthmus::support {

enum class Direction : std::uint8_t { kToTarget, kFromTarget };

// One whole frame on its way. The bytes may be changed, not their number.
struct RelayedFrame {
  Direction direction = Direction::kToTarget;
  transport::FrameType type = transport::FrameType::kControl;
  std::uint64_t index = 0;       // Among the frames of this type in this direction, of all connections.
  std::uint32_t connection = 0;  // In order of acceptance.
  std::span<std::byte> header, immediate, payload;
};

enum class Passage : std::uint8_t {
  kForward,
  kHold,       // This frame and all behind it in its connection and direction wait for release().
  kCut,        // Both connections are closed.
  kCutWithin,  // Half of the frame goes on, then as kCut.
};

// Loop's thread.
class TcpRelay {
 public:
  using Judge = std::function<Passage(RelayedFrame&)>;

  TcpRelay(net::Loop& loop, net::Endpoint target);
  ~TcpRelay();

  net::Endpoint endpoint() const { return listener_->endpoint(); }
  // For frames that come from now on; unset: forward.
  void set_judge(Judge judge) { judge_ = std::move(judge); }
  // A black hole: nothing passes any more, nothing is closed, new connections are taken and go nowhere.
  void stall() { is_stalled_ = true; }
  // Ends stall() and lets held frames go.
  void release();
  void cut();
  std::size_t held() const;

 private:
  struct Pipe;
  struct Connection;

  void accept(std::unique_ptr<net::Stream> stream);
  void read_header(const std::shared_ptr<Pipe>& pipe);
  void read_rest(const std::shared_ptr<Pipe>& pipe);
  void judge(const std::shared_ptr<Pipe>& pipe);
  void forward(const std::shared_ptr<Pipe>& pipe);

  net::Loop& loop_;
  net::Endpoint target_;
  Judge judge_;
  bool is_stalled_ = false;
  std::uint64_t counts_[2][4] = {};                       // [direction][type]
  std::vector<std::shared_ptr<Connection>> connections_;  // Kept to the end: callbacks name them.
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace isthmus::support
