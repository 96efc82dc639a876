// SPDX-License-Identifier: Apache-2.0
// One pipe a direction; each reads a frame, asks, and writes it.
#include "support/tcp_relay.h"

#include <utility>

#include "base/check.h"

namespace isthmus::support {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(10);

}  // namespace

struct TcpRelay::Pipe {
  Connection* connection = nullptr;
  net::Stream* from = nullptr;
  net::Stream* to = nullptr;
  Direction direction = Direction::kToTarget;
  std::vector<std::byte> frame;  // Header, immediate, payload.
  transport::FrameHeader header;
  bool is_held = false;  // `frame` is whole and waits.
};

struct TcpRelay::Connection {
  std::uint32_t number = 0;
  std::unique_ptr<net::Stream> source, target;
  std::unique_ptr<net::Connecting> connecting;
  std::shared_ptr<Pipe> out = std::make_shared<Pipe>(), in = std::make_shared<Pipe>();

  void close() {
    connecting = nullptr;
    if (source) source->close();
    if (target) target->close();
  }
};

TcpRelay::TcpRelay(net::Loop& loop, net::Endpoint target) : loop_(loop), target_(std::move(target)) {
  listener_ = *net::listen(loop, {"127.0.0.1", 0},
                           [this](std::unique_ptr<net::Stream> stream) { accept(std::move(stream)); });
}

TcpRelay::~TcpRelay() {
  cut();
}

void TcpRelay::cut() {
  for (const auto& connection : connections_) connection->close();
}

std::size_t TcpRelay::held() const {
  std::size_t held = 0;
  for (const auto& connection : connections_)
    held += (connection->in->is_held ? 1 : 0) + (connection->out->is_held ? 1 : 0);
  return held;
}

void TcpRelay::release() {
  is_stalled_ = false;
  for (const auto& connection : connections_) {
    for (const auto& pipe : {connection->in, connection->out}) {
      if (std::exchange(pipe->is_held, false)) forward(pipe);
    }
  }
}

void TcpRelay::accept(std::unique_ptr<net::Stream> stream) {
  auto connection = std::make_shared<Connection>();
  connection->number = static_cast<std::uint32_t>(connections_.size());
  connection->source = std::move(stream);
  connections_.push_back(connection);
  const auto on_connected = [this, made = connection.get()](Result<std::unique_ptr<net::Stream>> target) {
    if (!target.ok()) return made->source->close();
    made->target = *std::move(target);
    *made->out = {made, made->source.get(), made->target.get(), Direction::kToTarget, {}, {}, false};
    *made->in = {made, made->target.get(), made->source.get(), Direction::kFromTarget, {}, {}, false};
    read_header(made->out);
    read_header(made->in);
  };
  connection->connecting = net::connect(loop_, target_, kConnectTimeout, on_connected);
}

void TcpRelay::read_header(const std::shared_ptr<Pipe>& pipe) {
  pipe->frame.assign(transport::kHeaderBytes, {});
  pipe->from->read(pipe->frame, [this, pipe](const Status& status) {
    if (!status.ok()) {
      if (!is_stalled_) pipe->connection->close();  // A black hole doesn't pass an end on either.
      return;
    }
    const auto header =
        transport::decode_header(std::span<const std::byte, transport::kHeaderBytes>(pipe->frame));
    if (!header.ok()) return pipe->connection->close();
    pipe->header = *header;
    read_rest(pipe);
  });
}

void TcpRelay::read_rest(const std::shared_ptr<Pipe>& pipe) {
  const std::uint64_t payload = pipe->header.type == transport::FrameType::kFence ? 0 : pipe->header.length;
  const std::uint64_t rest = pipe->header.immediate_bytes + payload;
  if (rest == 0) return judge(pipe);
  pipe->frame.resize(transport::kHeaderBytes + rest);
  pipe->from->read(std::span(pipe->frame).subspan(transport::kHeaderBytes),
                   [this, pipe](const Status& status) {
                     if (!status.ok()) return pipe->connection->close();
                     judge(pipe);
                   });
}

void TcpRelay::judge(const std::shared_ptr<Pipe>& pipe) {
  const std::span<std::byte> frame(pipe->frame);
  const std::size_t body = transport::kHeaderBytes + pipe->header.immediate_bytes;
  auto& count =
      counts_[static_cast<std::size_t>(pipe->direction)][static_cast<std::size_t>(pipe->header.type)];
  RelayedFrame relayed{.direction = pipe->direction,
                       .type = pipe->header.type,
                       .index = count++,
                       .connection = pipe->connection->number,
                       .header = frame.first(transport::kHeaderBytes),
                       .immediate = frame.subspan(transport::kHeaderBytes, pipe->header.immediate_bytes),
                       .payload = frame.subspan(body)};
  const Passage passage = judge_ ? judge_(relayed) : Passage::kForward;
  if (is_stalled_ || passage == Passage::kHold) {
    pipe->is_held = true;
    return;
  }
  if (passage == Passage::kForward) return forward(pipe);
  if (passage == Passage::kCut) return pipe->connection->close();
  pipe->frame.resize(pipe->frame.size() / 2);
  pipe->to->write({pipe->frame}, [pipe](const Status&) { pipe->connection->close(); });
}

void TcpRelay::forward(const std::shared_ptr<Pipe>& pipe) {
  pipe->to->write({pipe->frame}, [this, pipe](const Status& status) {
    if (!status.ok()) return pipe->connection->close();
    read_header(pipe);
  });
}

}  // namespace isthmus::support
