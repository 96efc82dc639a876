// SPDX-License-Identifier: Apache-2.0
// Reads, writes and descriptors of one unix socket, and the watch over its peer.
#include "net/local_stream.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "net/asio_internal.h"
#include "net/pieces.h"

namespace isthmus::net {
namespace {

namespace asio = boost::asio;
using LocalSocket = asio::local::stream_protocol::socket;
using boost::system::error_code;

// As for tcp: one system call moves at most this much, so that the loop gets its turn.
constexpr std::size_t kPieceBytesMax = std::size_t{256} << 10;
constexpr std::size_t kPiecesMax = 16;
// Read ahead, so that a small frame costs one system call and not three.
constexpr std::size_t kAheadBytes = std::size_t{16} << 10;
// Descriptors that wait to be passed, or to be taken.
constexpr std::size_t kPassedMax = 8;

// SO_PEERPIDFD, of Linux 6.5; the C library's headers are older.
constexpr int kPeerPidfd = 77;

// Shared by the stream and its operations in flight.
struct Connection {
  Connection(Loop& loop, LocalSocket on)
      : context(loop.asio().context), socket(std::move(on)), death(context) {}
  asio::io_context& context;
  LocalSocket socket;
  asio::posix::stream_descriptor death;  // Readable once the peer's process has ended.
  Process process;
  bool closed = false;
  std::span<std::byte> reading;
  Stream::Done on_read;
  std::vector<std::byte> ahead = std::vector<std::byte>(kAheadBytes);
  std::span<const std::byte> unread;  // Of `ahead`.
  Pieces writing;
  Stream::Done on_written;
  std::vector<FileDescriptor> to_pass;
  std::deque<FileDescriptor> passed;

  std::string name() const { return fmt::format("process {}", process.id); }
  Error failed(int number) const {
    return {Code::kUnavailable, fmt::format("{}: {}", name(), std::strerror(number))};
  }
};
using Shared = std::shared_ptr<Connection>;

// Moved out first: the callback may start the next operation or destroy the stream.
void call(const Connection& connection, Stream::Done& slot, Status status) {
  if (connection.closed) status = Error{Code::kCancelled, fmt::format("{}: closed here", connection.name())};
  if (const Stream::Done done = std::exchange(slot, nullptr)) done(std::move(status));
}

// Room for passed descriptors beside a message's bytes.
union Control {
  std::array<char, CMSG_SPACE(kPassedMax * sizeof(int))> bytes;
  cmsghdr alignment;
};

Status keep_passed(Connection& connection, msghdr& message) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      connection.passed.emplace_back(number);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0 || connection.passed.size() > kPassedMax) {
    return Error{Code::kMalformed, fmt::format("{} passed more than {} descriptors that nobody waits for",
                                               connection.name(), kPassedMax)};
  }
  return ok_status();
}

// Bytes received; 0 if none are there yet.
Result<std::size_t> receive(Connection& connection, std::span<std::byte> into) {
  iovec piece{.iov_base = into.data(), .iov_len = into.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = ::recvmsg(connection.socket.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
  if (got < 0) return connection.failed(errno);
  if (got == 0)
    return Error{Code::kUnavailable, fmt::format("{}: the peer closed the connection", connection.name())};
  ISTHMUS_TRY(keep_passed(connection, message));
  return static_cast<std::size_t>(got);
}

void take_unread(Connection& connection) {
  const std::size_t bytes = std::min(connection.reading.size(), connection.unread.size());
  std::copy_n(connection.unread.begin(), bytes, connection.reading.begin());
  connection.unread = connection.unread.subspan(bytes);
  connection.reading = connection.reading.subspan(bytes);
}

void read_next(const Shared& connection) {
  if (connection->closed) return call(*connection, connection->on_read, ok_status());
  take_unread(*connection);
  if (connection->reading.empty()) return call(*connection, connection->on_read, ok_status());
  const bool is_long = connection->reading.size() >= kAheadBytes;
  const std::span<std::byte> into =
      is_long ? connection->reading.first(std::min(connection->reading.size(), kPieceBytesMax))
              : std::span(connection->ahead);
  const Result<std::size_t> got = receive(*connection, into);
  if (!got.ok()) return call(*connection, connection->on_read, got.error());
  if (*got == 0) {
    return connection->socket.async_wait(LocalSocket::wait_read,
                                         [connection](const error_code&) { read_next(connection); });
  }
  if (is_long) {
    connection->reading = connection->reading.subspan(*got);
  } else {
    connection->unread = std::span(connection->ahead).first(*got);
  }
  asio::post(connection->context, [connection] { read_next(connection); });
}

void attach_descriptors(const Connection& connection, msghdr& message, Control& control) {
  const std::size_t count = connection.to_pass.size();
  if (count == 0) return;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (std::size_t i = 0; i < count; ++i) {
    const int number = connection.to_pass[i].number();
    std::memcpy(CMSG_DATA(header) + i * sizeof(int), &number, sizeof(int));
  }
}

// Bytes sent; 0 if the socket is full.
Result<std::size_t> transmit(Connection& connection) {
  std::array<iovec, kPiecesMax> pieces{};
  std::size_t count = 0;
  connection.writing.front(kPiecesMax, kPieceBytesMax, [&](std::span<const std::byte> piece) {
    pieces[count++] = {.iov_base = const_cast<std::byte*>(piece.data()), .iov_len = piece.size()};
  });
  Control control{};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  attach_descriptors(connection, message, control);
  const ssize_t sent = ::sendmsg(connection.socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
  if (sent < 0) return connection.failed(errno);
  connection.to_pass.clear();
  return static_cast<std::size_t>(sent);
}

void write_next(const Shared& connection) {
  if (connection->closed || connection->writing.empty())
    return call(*connection, connection->on_written, ok_status());
  const Result<std::size_t> sent = transmit(*connection);
  if (!sent.ok()) return call(*connection, connection->on_written, sent.error());
  if (*sent == 0) {
    return connection->socket.async_wait(LocalSocket::wait_write,
                                         [connection](const error_code&) { write_next(connection); });
  }
  connection->writing.advance(*sent);
  if (connection->writing.empty()) return call(*connection, connection->on_written, ok_status());
  asio::post(connection->context, [connection] { write_next(connection); });
}

// Ends the socket when the peer's process has ended: what was sent is still read, then comes the end.
void watch(const Shared& connection) {
  connection->death.async_wait(asio::posix::stream_descriptor::wait_read,
                               [connection](const error_code& error) {
                                 if (error || connection->closed) return;
                                 ::shutdown(connection->socket.native_handle(), SHUT_RDWR);
                               });
}

class SocketStream final : public LocalStream {
 public:
  explicit SocketStream(Shared connection) : connection_(std::move(connection)) {}
  ~SocketStream() override {
    connection_->on_read = nullptr;
    connection_->on_written = nullptr;
    SocketStream::close();
  }

  void read(std::span<std::byte> into, Done done) override {
    ISTHMUS_CHECK(!connection_->on_read);
    connection_->on_read = std::move(done);
    connection_->reading = into;
    asio::post(connection_->context, [connection = connection_] { read_next(connection); });
  }

  void write(std::vector<std::span<const std::byte>> pieces, Done done) override {
    ISTHMUS_CHECK(!connection_->on_written);
    connection_->on_written = std::move(done);
    connection_->writing = Pieces(std::move(pieces));
    asio::post(connection_->context, [connection = connection_] { write_next(connection); });
  }

  void close() override {
    connection_->closed = true;
    error_code ignored;
    connection_->socket.close(ignored);
    connection_->death.close(ignored);
    connection_->to_pass.clear();
    connection_->passed.clear();
  }

  std::string peer() const override { return connection_->name(); }
  const Process& process() const override { return connection_->process; }

  Status pass(FileDescriptor& file) override {
    if (connection_->to_pass.size() == kPassedMax)
      return Error{Code::kExhausted, fmt::format("{} descriptors wait to be passed", kPassedMax)};
    connection_->to_pass.push_back(std::move(file));
    return ok_status();
  }

  Result<FileDescriptor> take_passed() override {
    if (connection_->passed.empty())
      return Error{Code::kMalformed, fmt::format("{} passed no descriptor", connection_->name())};
    FileDescriptor file = std::move(connection_->passed.front());
    connection_->passed.pop_front();
    return file;
  }

 private:
  Shared connection_;
};

}  // namespace

Result<std::unique_ptr<LocalStream>> make_local_stream(Loop& loop, LocalSocket socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  const int number = socket.native_handle();
  if (::getsockopt(number, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid == 0) {
    return Error{Code::kUnsupported, "the peer's process can't be seen: it is in another process namespace"};
  }
  int watched = -1;
  bytes = sizeof watched;
  if (::getsockopt(number, SOL_SOCKET, kPeerPidfd, &watched, &bytes) != 0)
    watched = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
  if (watched < 0) {
    const Code code = errno == ESRCH ? Code::kUnavailable : Code::kUnsupported;
    return Error{code, fmt::format("process {} can't be watched: {}", peer.pid, std::strerror(errno))};
  }
  auto connection = std::make_shared<Connection>(loop, std::move(socket));
  connection->process = {.id = peer.pid, .user = peer.uid};
  error_code error;
  connection->death.assign(watched, error);
  if (error) {
    ::close(watched);
    return Error{Code::kUnsupported,
                 fmt::format("process {} can't be watched: {}", peer.pid, error.message())};
  }
  watch(connection);
  return std::unique_ptr<LocalStream>(std::make_unique<SocketStream>(std::move(connection)));
}

}  // namespace isthmus::net
