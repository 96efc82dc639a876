// SPDX-License-Identifier: Apache-2.0
// Frames on a byte stream: a bounded queue out, and straight into the receiver's memory in.
#include "transport/tcp/channel.h"

#include <fmt/format.h>

#include <deque>
#include <utility>

#include "transport/tcp/frame.h"

namespace isthmus::transport {
namespace {

// Bounds of the send queue: frames, and bytes of copies (payloads aren't copied). A full queue is
// `exhausted`.
constexpr std::size_t kQueueFramesMax = 1024;
constexpr std::size_t kQueueCopiedBytesMax = std::size_t{4} << 20;
// Control frames are read in steps; nearly all take one.
constexpr std::size_t kControlStepBytes = std::size_t{16} << 10;

struct Outgoing {
  std::array<std::byte, kHeaderBytes> header;
  std::vector<std::byte> copied{};  // A control frame or the immediate.
  ConstPieces payload{};
  std::function<void(Status)> sent{};  // Set for data.
};

std::size_t bytes_of(const auto& pieces) {
  std::size_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  return bytes;
}

Error closed(const std::string& peer) {
  return {Code::kUnavailable, fmt::format("channel to {} is closed", peer)};
}

// The state shared with the stream's callbacks. They hold it weakly: the stream, which is a member, calls
// nothing once destroyed, and a callback locks it so that it may destroy the channel.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(std::unique_ptr<net::Stream> stream)
      : stream_(std::move(stream)), peer_(stream_->peer()) {}

  void set_events(ChannelEvents events) {
    if (is_closed()) return;
    events_ = std::make_shared<const ChannelEvents>(std::move(events));
    if (!std::exchange(reading_, true)) read_header();
  }

  Status send(Outgoing frame) {
    if (is_closed()) return closed(peer_);
    if (queue_.size() >= kQueueFramesMax || copied_bytes_ + frame.copied.size() > kQueueCopiedBytesMax) {
      return Error{Code::kExhausted,
                   fmt::format("channel to {}: send queue full ({} frames, {} bytes copied)", peer_,
                               queue_.size(), copied_bytes_)};
    }
    copied_bytes_ += frame.copied.size();
    // A deque's elements stay where they are, so the pieces stay good.
    const Outgoing& queued = queue_.emplace_back(std::move(frame));
    ConstPieces pieces{std::span<const std::byte>(queued.header), queued.copied};
    pieces.insert(pieces.end(), queued.payload.begin(), queued.payload.end());
    stream_->write(std::move(pieces), [weak = weak_from_this()](Status status) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (!self || self->is_closed()) return;
      if (!status.ok()) return self->fail(status.error());
      self->on_written();
    });
    return ok_status();
  }

  // Silent close: nobody is told but the senders of what is queued.
  void revoke() {
    events_.reset();
    if (is_closed()) return;
    shut(Error{Code::kCancelled, fmt::format("channel to {} was closed here", peer_)});
  }

  bool is_closed() const { return stream_ == nullptr; }
  const std::string& peer() const { return peer_; }

 private:
  // From here on nothing touches memory of the receiver or of senders, who are told.
  void shut(const Error& why) {
    const std::unique_ptr<net::Stream> stream = std::move(stream_);
    stream->close();
    copied_bytes_ = 0;
    for (const Outgoing& frame : std::exchange(queue_, {})) {
      if (frame.sent) frame.sent(why);
    }
  }

  void fail(const Error& why) {
    shut(why);
    // A sender's callback may have revoked the channel: then on_closed isn't called.
    if (const auto events = std::exchange(events_, nullptr); events && events->on_closed)
      events->on_closed(why);
  }

  // Reads into `pieces`, then goes on with `next`.
  void read(Pieces pieces, void (Connection::*next)()) {
    stream_->read_pieces(std::move(pieces), [weak = weak_from_this(), next](Status status) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (!self || self->is_closed()) return;
      if (!status.ok()) return self->fail(status.error());
      ((*self).*next)();
    });
  }

  void read_header() { read({header_}, &Connection::on_header); }

  void on_header() {
    const Result<FrameHeader> header = decode_header(header_);
    if (!header.ok()) return fail({header.code(), fmt::format("from {}: {}", peer_, header.error().detail)});
    frame_ = *header;
    switch (frame_.type) {
      case FrameType::kControl:
        control_.clear();
        return read_control();
      case FrameType::kData:
        immediate_.resize(frame_.immediate_bytes);
        return read({immediate_}, &Connection::on_immediate);
      case FrameType::kFence:
        return deliver(events_->on_fence, frame_.length);
    }
  }

  // Memory grows with what has come, not with what was announced: anyone may connect and announce.
  void read_control() {
    const std::size_t have = control_.size();
    control_.resize(std::min<std::size_t>(frame_.length, have + kControlStepBytes));
    read({std::span(control_).subspan(have)}, &Connection::on_control);
  }

  void on_control() {
    if (control_.size() < frame_.length) return read_control();
    deliver(events_->on_control, std::exchange(control_, {}));
  }

  void on_immediate() {
    const auto events = events_;  // The callback may replace them.
    if (!events->on_incoming) {
      return fail({Code::kUnsupported, fmt::format("channel to {} takes no data", peer_)});
    }
    Result<Pieces> memory = events->on_incoming({immediate_, frame_.length});
    if (is_closed()) return;
    if (!memory.ok()) return fail(memory.error());
    ISTHMUS_CHECK(bytes_of(*memory) == frame_.length);
    payload_ = memory->size() == 1 ? memory->front() : std::span<std::byte>();
    read(*std::move(memory), &Connection::on_payload);
  }

  void on_payload() { deliver(events_->on_data, Received{payload_, nullptr}); }

  template <typename Callback, typename... Args>
  void deliver(const Callback& callback, Args... args) {
    const auto events = events_;  // Keeps `callback` while it runs.
    if (callback) callback(std::move(args)...);
    if (!is_closed()) read_header();
  }

  // The stream is done with the oldest frame.
  void on_written() {
    const Outgoing written = std::move(queue_.front());
    queue_.pop_front();
    copied_bytes_ -= written.copied.size();
    if (written.sent) written.sent(ok_status());
  }

  std::unique_ptr<net::Stream> stream_;  // Null once closed.
  std::string peer_;
  std::shared_ptr<const ChannelEvents> events_;
  bool reading_ = false;
  std::array<std::byte, kHeaderBytes> header_{};
  FrameHeader frame_;
  std::vector<std::byte> control_;
  std::vector<std::byte> immediate_;
  std::span<std::byte> payload_;  // The receiver's memory, if it is one piece.
  std::deque<Outgoing> queue_;    // Given to the stream, which calls back in order.
  std::size_t copied_bytes_ = 0;
};

Error too_long(std::string_view what, std::size_t bytes, std::uint64_t bytes_max) {
  return {Code::kInvalidArgument, fmt::format("{} of {} bytes, at most {}", what, bytes, bytes_max)};
}

class TcpChannel final : public Channel {
 public:
  TcpChannel(std::unique_ptr<net::Stream> stream, std::shared_ptr<PayloadPool> pool)
      : connection_(std::make_shared<Connection>(std::move(stream))), pool_(std::move(pool)) {}
  ~TcpChannel() override { connection_->revoke(); }

  void set_events(ChannelEvents events) override { connection_->set_events(std::move(events)); }

  Status send_control(std::span<const std::byte> frame) override {
    if (frame.size() > kControlBytesMax) return too_long("control frame", frame.size(), kControlBytesMax);
    const FrameHeader header{.type = FrameType::kControl, .length = frame.size()};
    return connection_->send({.header = encode(header), .copied = {frame.begin(), frame.end()}});
  }

  Result<PayloadMemory> payload_memory(std::uint64_t bytes) override {
    if (connection_->is_closed()) return closed(connection_->peer());
    if (bytes > kDataBytesMax) return too_long("payload", bytes, kDataBytesMax);
    return pool_->take(bytes);
  }

  bool gathers() const override { return true; }

  Status send_data(std::span<const std::byte> immediate, ConstPieces payload,
                   std::function<void(Status)> sent) override {
    if (immediate.size() > kImmediateBytesMax)
      return too_long("immediate data", immediate.size(), kImmediateBytesMax);
    const std::size_t bytes = bytes_of(payload);
    if (bytes > kDataBytesMax) return too_long("payload", bytes, kDataBytesMax);
    const FrameHeader header{.type = FrameType::kData,
                             .immediate_bytes = static_cast<std::uint16_t>(immediate.size()),
                             .length = bytes};
    return connection_->send({.header = encode(header),
                              .copied = {immediate.begin(), immediate.end()},
                              .payload = std::move(payload),
                              .sent = std::move(sent)});
  }

  Status send_fence(std::uint64_t token) override {
    return connection_->send({.header = encode({.type = FrameType::kFence, .length = token})});
  }

  void revoke() override {
    // Held, because a sender's callback may destroy this channel.
    const std::shared_ptr<Connection> held = connection_;
    held->revoke();
  }
  void close() override { revoke(); }
  std::string peer() const override { return connection_->peer(); }

 private:
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<PayloadPool> pool_;
};

}  // namespace

std::unique_ptr<Channel> make_tcp_channel(std::unique_ptr<net::Stream> stream,
                                          std::shared_ptr<PayloadPool> pool) {
  return std::make_unique<TcpChannel>(std::move(stream), std::move(pool));
}

}  // namespace isthmus::transport
