// SPDX-License-Identifier: Apache-2.0
// Frames through the socket, payloads through segments: lent by the sender, shown by the receiver, given back
// by a notice.
#include "transport/shm/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "transport/shm/messages.h"
#include "transport/shm/segment.h"
#include "transport/tcp/channel.h"

namespace isthmus::transport {
namespace {

// Some chunks under way; larger payloads get a segment of their own length.
constexpr std::uint64_t kSegmentBytes = std::uint64_t{8} << 20;
// Data messages that the receiver may hold; beyond them, `exhausted`.
constexpr std::size_t kShownMax = 4096;

Error too_long(std::string_view what, std::size_t bytes, std::uint64_t bytes_max) {
  return {Code::kInvalidArgument, fmt::format("{} of {} bytes, at most {}", what, bytes, bytes_max)};
}

// The state shared with callbacks, views and slices, which hold it weakly.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(net::Loop& loop, std::unique_ptr<net::LocalStream> stream)
      : loop_(loop), stream_(*stream), frames_(make_tcp_channel(std::move(stream), nullptr)) {}

  void set_events(ChannelEvents events);
  Status send_control(std::span<const std::byte> frame) {
    return frames_->send_control(encode_user_control(frame));
  }
  Status send_fence(std::uint64_t token) { return frames_->send_fence(token); }
  Result<PayloadMemory> payload_memory(std::uint64_t bytes);
  Status send_data(std::span<const std::byte> immediate, const ConstPieces& payload,
                   std::function<void(Status)> sent);
  void revoke();
  std::string peer() const { return frames_->peer(); }

 private:
  // Memory lent to a sender. Back in its segment when the sender and every receiver let go of it.
  struct Slice {
    ~Slice() {
      if (const auto alive = owner.lock()) alive->give_back(*this);
    }
    std::weak_ptr<Connection> owner;
    std::shared_ptr<Mapping> mapping;
    Place place;
    std::span<std::byte> memory() const { return mapping->memory().subspan(place.offset, place.bytes); }
  };
  // A payload of the peer's, shown to our user.
  struct View {
    ~View() {
      if (const auto alive = owner.lock()) alive->let_go(message);
    }
    std::weak_ptr<Connection> owner;
    std::shared_ptr<Mapping> mapping;
    std::uint64_t message = 0;
  };
  struct Shown {
    std::shared_ptr<Slice> slice;
    std::function<void(Status)> sent;
  };

  Status announce_segments();
  void give_back(const Slice& slice);
  Result<std::pair<std::shared_ptr<Slice>, std::uint64_t>> slice_of(std::span<const std::byte> payload) const;
  void on_notice(std::vector<std::byte> frame);
  Status on_segment(const SegmentNotice& notice);
  Status on_release(const ReleaseNotice& notice);
  Result<Pieces> on_incoming(const Incoming& frame);
  Result<std::shared_ptr<View>> view_of(const Place& place);
  void let_go(std::uint64_t message);
  void shut(const Error& why);
  void fail(const Error& why);

  net::Loop& loop_;
  net::LocalStream& stream_;         // Of frames_.
  std::unique_ptr<Channel> frames_;  // Closed with this connection, never null.
  std::shared_ptr<const ChannelEvents> events_;
  bool is_reading_ = false, is_closed_ = false;
  // Sending.
  std::vector<Segment> segments_;
  std::size_t announced_ = 0;  // Of segments_.
  std::map<const std::byte*, std::weak_ptr<Slice>> slices_;
  std::map<std::uint64_t, Shown> shown_;  // By message.
  std::uint64_t next_message_ = 0;
  // Receiving.
  std::vector<std::shared_ptr<Mapping>> peers_;
  std::uint64_t peers_bytes_ = 0;
  std::uint64_t messages_seen_ = 0;
  Received arriving_;
};

void Connection::set_events(ChannelEvents events) {
  if (is_closed_) return;
  events_ = std::make_shared<const ChannelEvents>(std::move(events));
  if (std::exchange(is_reading_, true)) return;
  ChannelEvents own;
  own.on_control = [weak = weak_from_this()](std::vector<std::byte> frame) {
    if (const auto self = weak.lock()) self->on_notice(std::move(frame));
  };
  own.on_incoming = [weak = weak_from_this()](const Incoming& incoming) -> Result<Pieces> {
    const auto self = weak.lock();
    if (!self) return Error{Code::kCancelled, "closed here"};
    return self->on_incoming(incoming);
  };
  own.on_data = [weak = weak_from_this()](const Received&) {
    const auto self = weak.lock();
    if (!self) return;
    const auto kept = self->events_;  // Keeps the callback while it runs.
    if (Received shown = std::exchange(self->arriving_, {}); kept->on_data) kept->on_data(std::move(shown));
  };
  own.on_fence = [weak = weak_from_this()](std::uint64_t token) {
    const auto self = weak.lock();
    if (!self) return;
    if (const auto kept = self->events_; kept->on_fence) kept->on_fence(token);
  };
  own.on_closed = [weak = weak_from_this()](const Status& why) {
    if (const auto self = weak.lock()) self->fail(why.error());
  };
  frames_->set_events(std::move(own));
}

// --- Sending.

Result<PayloadMemory> Connection::payload_memory(std::uint64_t bytes) {
  if (is_closed_) return Error{Code::kUnavailable, fmt::format("channel to {} is closed", peer())};
  if (bytes > kSegmentBytesMax) return too_long("payload", bytes, kSegmentBytesMax);
  if (bytes == 0) return PayloadMemory{};
  auto slice = std::make_shared<Slice>();
  std::optional<std::size_t> offset;
  std::size_t at = 0;
  std::uint64_t held = 0;
  for (; at < segments_.size() && !offset; ++at) {
    offset = segments_[at].take(bytes);
    held += segments_[at].mapping()->memory().size();
  }
  if (!offset) {
    const std::uint64_t wanted = std::max(bytes, kSegmentBytes);
    if (segments_.size() == kSegmentsMax || held + wanted > kSegmentBytesMax) {
      return Error{Code::kExhausted, fmt::format("channel to {}: {} segments of {} bytes in all are in use",
                                                 peer(), segments_.size(), held)};
    }
    ISTHMUS_TRY(Segment segment, Segment::make(wanted));
    offset = segment.take(bytes);
    segments_.push_back(std::move(segment));
    at = segments_.size();
  }
  slice->mapping = segments_[at - 1].mapping();
  slice->place = {static_cast<std::uint32_t>(at - 1), *offset, bytes};
  slice->owner = weak_from_this();
  slices_[slice->memory().data()] = slice;
  ISTHMUS_TRY(announce_segments());
  const std::span<std::byte> memory = slice->memory();
  return PayloadMemory{memory, std::move(slice)};
}

// In their order, so that each notice finds its descriptor.
Status Connection::announce_segments() {
  for (; announced_ < segments_.size(); ++announced_) {
    Segment& segment = segments_[announced_];
    if (segment.file().is_open()) ISTHMUS_TRY(stream_.pass(segment.file()));
    ISTHMUS_TRY(frames_->send_control(
        encode(SegmentNotice{static_cast<std::uint32_t>(announced_), segment.mapping()->memory().size()})));
  }
  return ok_status();
}

void Connection::give_back(const Slice& slice) {
  if (is_closed_) return;
  slices_.erase(slice.memory().data());
  segments_[slice.place.segment].give_back(slice.place.offset, slice.place.bytes);
}

Result<std::pair<std::shared_ptr<Connection::Slice>, std::uint64_t>> Connection::slice_of(
    std::span<const std::byte> payload) const {
  const auto after = slices_.upper_bound(payload.data());
  const auto slice = after == slices_.begin() ? nullptr : std::prev(after)->second.lock();
  const std::uint64_t into = slice ? static_cast<std::uint64_t>(payload.data() - slice->memory().data()) : 0;
  if (!slice || into + payload.size() > slice->place.bytes)
    return Error{Code::kInvalidArgument, "the payload isn't in memory that this channel gave"};
  return std::pair(slice, into);
}

Status Connection::send_data(std::span<const std::byte> immediate, const ConstPieces& pieces,
                             std::function<void(Status)> sent) {
  if (is_closed_) return Error{Code::kUnavailable, fmt::format("channel to {} is closed", peer())};
  if (immediate.size() > kUserImmediateMax)
    return too_long("immediate data", immediate.size(), kUserImmediateMax);
  if (shown_.size() == kShownMax)
    return Error{Code::kExhausted,
                 fmt::format("channel to {}: the peer holds {} payloads", peer(), kShownMax)};
  if (pieces.size() > 1)
    return Error{Code::kInvalidArgument, fmt::format("a payload of {} pieces, at most one", pieces.size())};
  Shown shown{.slice = nullptr, .sent = std::move(sent)};
  Place place;
  const std::span<const std::byte> payload = pieces.empty() ? std::span<const std::byte>() : pieces.front();
  if (!payload.empty()) {
    ISTHMUS_TRY(auto found, slice_of(payload));
    shown.slice = std::move(found.first);
    place = {shown.slice->place.segment, shown.slice->place.offset + found.second, payload.size()};
  }
  ISTHMUS_TRY(frames_->send_data(encode_immediate(immediate, place), {}, [](const Status&) {}));
  shown_[next_message_++] = std::move(shown);
  return ok_status();
}

// --- Receiving.

void Connection::on_notice(std::vector<std::byte> frame) {
  Result<Notice> notice = decode_notice(std::move(frame));
  if (!notice.ok()) return fail(notice.error());
  if (auto* control = std::get_if<UserControl>(&*notice)) {
    if (const auto events = events_; events->on_control) events->on_control(std::move(control->frame));
    return;
  }
  const auto* segment = std::get_if<SegmentNotice>(&*notice);
  const Status done =
      segment != nullptr ? on_segment(*segment) : on_release(std::get<ReleaseNotice>(*notice));
  if (!done.ok()) fail(done.error());
}

Status Connection::on_segment(const SegmentNotice& notice) {
  ISTHMUS_TRY(const net::FileDescriptor file, stream_.take_passed());
  if (notice.segment != peers_.size() || peers_.size() == kSegmentsMax ||
      notice.bytes > kSegmentBytesMax - peers_bytes_) {
    return Error{Code::kMalformed,
                 fmt::format("{} announces segment {} of {} bytes after {} of {} bytes in all", peer(),
                             notice.segment, notice.bytes, peers_.size(), peers_bytes_)};
  }
  ISTHMUS_TRY(auto mapping, map_peers_segment(file, notice.bytes));
  peers_.push_back(std::move(mapping));
  peers_bytes_ += notice.bytes;
  return ok_status();
}

Status Connection::on_release(const ReleaseNotice& notice) {
  auto node = shown_.extract(notice.message);
  if (node.empty())
    return Error{Code::kMalformed,
                 fmt::format("{} releases message {}, which it wasn't shown", peer(), notice.message)};
  node.mapped().slice = nullptr;
  if (node.mapped().sent) node.mapped().sent(ok_status());
  return ok_status();
}

Result<Pieces> Connection::on_incoming(const Incoming& frame) {
  if (frame.bytes != 0)
    return Error{Code::kMalformed, fmt::format("{} sent a payload by its socket", peer())};
  ISTHMUS_TRY(const Immediate immediate, decode_immediate(frame.immediate));
  ISTHMUS_TRY(auto view, view_of(immediate.place));
  const auto events = events_;  // The callback may replace them.
  if (!events->on_incoming)
    return Error{Code::kUnsupported, fmt::format("channel to {} takes no data", peer())};
  Result<Pieces> judged =
      events->on_incoming({.immediate = immediate.user, .bytes = immediate.place.bytes, .is_shared = true});
  if (!judged.ok()) return judged;
  ISTHMUS_CHECK(judged->empty());
  if (is_closed_) return Pieces();
  view->owner = weak_from_this();
  const std::span<const std::byte> bytes =
      view->mapping ? view->mapping->memory().subspan(immediate.place.offset, immediate.place.bytes)
                    : std::span<std::byte>();
  arriving_ = {bytes, std::move(view)};
  return Pieces();
}

// It has no owner yet: whoever refuses it doesn't release it.
Result<std::shared_ptr<Connection::View>> Connection::view_of(const Place& place) {
  auto view = std::make_shared<View>();
  view->message = messages_seen_++;
  if (place.bytes == 0) return view;
  const bool is_known = place.segment < peers_.size();
  const std::uint64_t size = is_known ? peers_[place.segment]->memory().size() : 0;
  if (place.offset > size || place.bytes > size - place.offset) {
    return Error{Code::kMalformed, fmt::format("{} names bytes {} to +{} of segment {}, which has {}", peer(),
                                               place.offset, place.bytes, place.segment, size)};
  }
  view->mapping = peers_[place.segment];
  return view;
}

void Connection::let_go(std::uint64_t message) {
  if (is_closed_) return;
  const Status told = frames_->send_control(encode(ReleaseNotice{message}));
  if (told.ok()) return;
  // The peer sends and doesn't read. From the loop, as views are let go anywhere.
  loop_.post([weak = weak_from_this(), why = told.error()] {
    if (const auto self = weak.lock(); self && !self->is_closed_) self->fail(why);
  });
}

// --- The end.

void Connection::revoke() {
  events_.reset();
  if (is_closed_) return;
  shut(Error{Code::kCancelled, fmt::format("channel to {} was closed here", peer())});
}

// What the peer may still see is never used again: segments end with their channel.
void Connection::shut(const Error& why) {
  is_closed_ = true;
  frames_->revoke();
  arriving_ = {};
  slices_.clear();
  segments_.clear();
  peers_.clear();
  for (auto& [message, shown] : std::exchange(shown_, {})) {
    shown.slice = nullptr;
    if (shown.sent) shown.sent(why);
  }
}

void Connection::fail(const Error& why) {
  if (is_closed_) return;
  shut(why);
  // A sender's callback may have revoked the channel: then on_closed isn't called.
  if (const auto events = std::exchange(events_, nullptr); events && events->on_closed)
    events->on_closed(why);
}

class ShmChannel final : public Channel {
 public:
  ShmChannel(net::Loop& loop, std::unique_ptr<net::LocalStream> stream)
      : connection_(std::make_shared<Connection>(loop, std::move(stream))) {}
  ~ShmChannel() override { connection_->revoke(); }

  void set_events(ChannelEvents events) override { connection_->set_events(std::move(events)); }
  Status send_control(std::span<const std::byte> frame) override {
    if (frame.size() > kUserControlMax) return too_long("control frame", frame.size(), kUserControlMax);
    return connection_->send_control(frame);
  }
  Result<PayloadMemory> payload_memory(std::uint64_t bytes) override {
    return connection_->payload_memory(bytes);
  }
  bool gathers() const override { return false; }
  Status send_data(std::span<const std::byte> immediate, ConstPieces payload,
                   std::function<void(Status)> sent) override {
    return connection_->send_data(immediate, payload, std::move(sent));
  }
  Status send_fence(std::uint64_t token) override { return connection_->send_fence(token); }
  void revoke() override {
    // Held, because a sender's callback may destroy this channel.
    const std::shared_ptr<Connection> held = connection_;
    held->revoke();
  }
  void close() override { revoke(); }
  std::string peer() const override { return connection_->peer(); }

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace

std::unique_ptr<Channel> make_shm_channel(net::Loop& loop, std::unique_ptr<net::LocalStream> stream) {
  return std::make_unique<ShmChannel>(loop, std::move(stream));
}

}  // namespace isthmus::transport
