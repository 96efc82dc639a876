// SPDX-License-Identifier: Apache-2.0
// Faults at the sending side of each channel.
#include "transport/faulty/faulty.h"

#include <deque>
#include <string>
#include <utility>

#include "base/rng.h"

namespace isthmus::transport {
namespace {

constexpr std::size_t kHeldMax = 1024;  // Of one channel.

}  // namespace

void Faults::release() {
  for (const auto& let_go : std::exchange(holding_, {})) let_go();
}

Fault Faults::next(SentKind kind) {
  const SentFrame frame{kind, counts_[static_cast<std::size_t>(kind)]++};
  return judge ? judge(frame) : Fault::kNone;
}

std::function<Fault(const SentFrame&)> seeded_faults(std::uint64_t seed, FaultRates rates) {
  return [seed, rates](const SentFrame& frame) {
    double left = uniform_at(seed, static_cast<std::uint64_t>(frame.kind), frame.index);
    for (const auto& [chance, fault] : {std::pair(rates.hold, Fault::kHold),
                                        {rates.corrupt, Fault::kCorrupt},
                                        {rates.refuse, Fault::kRefuse},
                                        {rates.cut, Fault::kCut}}) {
      if (left < chance) return fault;
      left -= chance;
    }
    return Fault::kNone;
  };
}

// Shared with callbacks, which hold it weakly.
class FaultyConnection : public std::enable_shared_from_this<FaultyConnection> {
 public:
  FaultyConnection(net::Loop& loop, std::unique_ptr<Channel> inner, std::shared_ptr<Faults> faults)
      : loop_(loop), inner_(std::move(inner)), faults_(std::move(faults)) {}

  void set_events(ChannelEvents events) {
    if (is_over_) return;
    on_closed_ = std::exchange(events.on_closed, [weak = weak_from_this()](const Status& why) {
      if (const auto self = weak.lock()) self->end(why.error());
    });
    inner_->set_events(std::move(events));
  }

  Status control(std::span<const std::byte> frame) {
    std::vector<std::byte> copy(frame.begin(), frame.end());
    return send(SentKind::kControl, [this, copy = std::move(copy)](bool corrupt) mutable {
      if (corrupt && !copy.empty()) copy.back() ^= std::byte{1};
      return inner_->send_control(copy);
    });
  }

  Status fence(std::uint64_t token) {
    return send(SentKind::kFence, [this, token](bool) { return inner_->send_fence(token); });
  }

  Status data(std::span<const std::byte> immediate, const ConstPieces& payload,
              std::function<void(Status)> sent) {
    std::vector<std::byte> copy(immediate.begin(), immediate.end());
    Held held{.go =
                  [this, copy = std::move(copy), payload, sent](bool corrupt) {
                    return corrupt ? corrupted(copy, payload, sent) : inner_->send_data(copy, payload, sent);
                  },
              .sent = sent};
    return send(SentKind::kData, std::move(held));
  }

  // Silent, but for the senders of what is held.
  void revoke() {
    on_closed_ = nullptr;
    const bool was_over = std::exchange(is_over_, true);
    inner_->revoke();
    if (!was_over) drop_held({Code::kCancelled, "the channel was closed here"});
  }
  Channel& inner() { return *inner_; }

 private:
  struct Held {
    std::function<Status(bool corrupt)> go;
    std::function<void(Status)> sent{};
  };

  Status send(SentKind kind, std::function<Status(bool)> go) { return send(kind, Held{.go = std::move(go)}); }
  Status send(SentKind kind, Held frame) {
    if (is_over_) return Error{Code::kUnavailable, "the channel to " + inner_->peer() + " is closed"};
    const Fault fault = faults_->next(kind);
    if (fault == Fault::kRefuse) return Error{Code::kExhausted, "refused by an injected fault"};
    if (fault == Fault::kCut) return cut();
    if (held_.empty() && fault != Fault::kHold) return frame.go(fault == Fault::kCorrupt);
    if (held_.size() == kHeldMax) return Error{Code::kExhausted, "an injected fault holds too many frames"};
    if (held_.empty()) {
      faults_->holding_.emplace_back([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->let_go();
      });
    }
    held_.push_back(std::move(frame));
    return ok_status();
  }

  void let_go() {
    while (!held_.empty() && !is_over_) {
      const Held frame = std::move(held_.front());
      held_.pop_front();
      const Status sent = frame.go(false);
      if (sent.ok()) continue;
      if (frame.sent) frame.sent(sent);
      (void)cut();
    }
  }

  Status corrupted(std::span<const std::byte> immediate, const ConstPieces& payload,
                   std::function<void(Status)> sent) {
    std::vector<std::byte> bytes;
    for (const auto& piece : payload) bytes.insert(bytes.end(), piece.begin(), piece.end());
    if (!bytes.empty()) bytes[bytes.size() / 2] ^= std::byte{1};
    ISTHMUS_TRY(PayloadMemory memory, inner_->payload_memory(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), memory.bytes.begin());
    return inner_->send_data(immediate, {memory.bytes},
                             [keep = memory.keep, sent = std::move(sent)](Status status) mutable {
                               keep = nullptr;
                               sent(std::move(status));
                             });
  }

  // The user is told from the loop, as it is by a connection that breaks.
  Status cut() {
    const Error why{Code::kUnavailable, "the channel to " + inner_->peer() + " was cut by an injected fault"};
    is_over_ = true;
    loop_.post([self = shared_from_this(), why] {
      self->inner_->revoke();
      self->end(why);
    });
    return why;
  }

  void end(const Error& why) {
    is_over_ = true;
    drop_held(why);
    // A sender's callback may have revoked the channel.
    if (const auto told = std::exchange(on_closed_, nullptr)) told(why);
  }

  void drop_held(const Error& why) {
    for (const Held& frame : std::exchange(held_, {})) {
      if (frame.sent) frame.sent(why);
    }
  }

  net::Loop& loop_;
  std::unique_ptr<Channel> inner_;
  std::shared_ptr<Faults> faults_;
  std::function<void(Status)> on_closed_;
  std::deque<Held> held_;
  bool is_over_ = false;
};

namespace {

class FaultyChannel final : public Channel {
 public:
  explicit FaultyChannel(std::shared_ptr<FaultyConnection> connection) : connection_(std::move(connection)) {}
  ~FaultyChannel() override { connection_->revoke(); }

  void set_events(ChannelEvents events) override { connection_->set_events(std::move(events)); }
  Status send_control(std::span<const std::byte> frame) override { return connection_->control(frame); }
  Result<PayloadMemory> payload_memory(std::uint64_t bytes) override {
    return connection_->inner().payload_memory(bytes);
  }
  bool gathers() const override { return connection_->inner().gathers(); }
  Status send_data(std::span<const std::byte> immediate, ConstPieces payload,
                   std::function<void(Status)> sent) override {
    return connection_->data(immediate, payload, std::move(sent));
  }
  Status send_fence(std::uint64_t token) override { return connection_->fence(token); }
  void revoke() override {
    // Held, because a sender's callback may destroy this channel.
    const std::shared_ptr<FaultyConnection> held = connection_;
    held->revoke();
  }
  void close() override { revoke(); }
  std::string peer() const override { return connection_->inner().peer(); }

 private:
  std::shared_ptr<FaultyConnection> connection_;
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(net::Loop& loop, std::unique_ptr<Transport> inner, std::shared_ptr<Faults> faults)
      : loop_(loop), inner_(std::move(inner)), faults_(std::move(faults)) {}

  std::string_view name() const override { return inner_->name(); }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  Result<std::unique_ptr<Acceptor>> listen(const std::string& endpoint,
                                           std::function<void(std::unique_ptr<Channel>)> on_accept) override {
    return inner_->listen(endpoint,
                          [this, on_accept = std::move(on_accept)](std::unique_ptr<Channel> channel) {
                            on_accept(wrap(std::move(channel)));
                          });
  }
  std::unique_ptr<Pending> connect(const std::string& endpoint, Duration timeout,
                                   std::function<void(Result<std::unique_ptr<Channel>>)> done) override {
    return inner_->connect(endpoint, timeout,
                           [this, done = std::move(done)](Result<std::unique_ptr<Channel>> channel) {
                             if (!channel.ok()) return done(channel.error());
                             done(wrap(*std::move(channel)));
                           });
  }

 private:
  std::unique_ptr<Channel> wrap(std::unique_ptr<Channel> channel) {
    return std::make_unique<FaultyChannel>(
        std::make_shared<FaultyConnection>(loop_, std::move(channel), faults_));
  }

  net::Loop& loop_;
  std::unique_ptr<Transport> inner_;
  std::shared_ptr<Faults> faults_;
};

}  // namespace

std::unique_ptr<Transport> make_faulty(net::Loop& loop, std::unique_ptr<Transport> inner,
                                       std::shared_ptr<Faults> faults) {
  return std::make_unique<FaultyTransport>(loop, std::move(inner), std::move(faults));
}

}  // namespace isthmus::transport
