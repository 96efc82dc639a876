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
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "net/asio_internal.h"
#include "net/flow.h"

namespace isthmus::net {
namespace {

namespace asio = boost::asio;
using LocalSocket = asio::local::stream_protocol::socket;
using boost::system::error_code;

// Descriptors that wait to be passed, or to be taken.
constexpr std::size_t kPassedMax = 8;

// SO_PEERPIDFD, of Linux 6.5; the C library's headers are older.
constexpr int kPeerPidfd = 77;

// Room for passed descriptors beside a message's bytes.
union Control {
  std::array<char, CMSG_SPACE(kPassedMax * sizeof(int))> bytes;
  cmsghdr alignment;
};

class LocalFlow final : public Flow {
 public:
  LocalFlow(boost::asio::io_context& context, LocalSocket socket, Process process)
      : Flow(context), socket_(std::move(socket)), death_(context), process_(process) {}

  // Ends the socket when the peer's process, `pidfd`, has ended: what was sent is still read, then comes the
  // end. The caller's to close if this fails.
  Status watch(int pidfd) {
    error_code error;
    death_.assign(pidfd, error);
    if (error) {
      return Error{Code::kUnsupported,
                   fmt::format("process {} can't be watched: {}", process_.id, error.message())};
    }
    death_.async_wait(
        asio::posix::stream_descriptor::wait_read,
        [self = std::static_pointer_cast<LocalFlow>(shared_from_this())](const error_code& failure) {
          if (failure || self->is_closed()) return;
          ::shutdown(self->socket_.native_handle(), SHUT_RDWR);
        });
    return ok_status();
  }

  std::string name() const override { return fmt::format("process {}", process_.id); }
  const Process& process() const { return process_; }

  Status pass(FileDescriptor& file) {
    if (to_pass_.size() == kPassedMax)
      return Error{Code::kExhausted, fmt::format("{} descriptors wait to be passed", kPassedMax)};
    to_pass_.push_back(std::move(file));
    return ok_status();
  }

  Result<FileDescriptor> take_passed() {
    if (passed_.empty()) return Error{Code::kMalformed, fmt::format("{} passed no descriptor", name())};
    FileDescriptor file = std::move(passed_.front());
    passed_.pop_front();
    return file;
  }

 private:
  Result<std::size_t> receive(std::span<iovec> into) override;
  Result<std::size_t> transmit(std::span<iovec> from) override;
  Status keep_passed(msghdr& message);
  void attach_descriptors(msghdr& message, Control& control) const;

  void await(bool is_write, std::function<void()> ready) override {
    socket_.async_wait(is_write ? LocalSocket::wait_write : LocalSocket::wait_read,
                       [ready = std::move(ready)](const error_code&) { ready(); });
  }

  void shut() override {
    error_code ignored;
    socket_.close(ignored);
    death_.close(ignored);
    to_pass_.clear();
    passed_.clear();
  }

  Error failed(int number) const {
    return {Code::kUnavailable, fmt::format("{}: {}", name(), std::strerror(number))};
  }

  LocalSocket socket_;
  asio::posix::stream_descriptor death_;  // Readable once the peer's process has ended.
  Process process_;
  std::vector<FileDescriptor> to_pass_;
  std::deque<FileDescriptor> passed_;
};

Status LocalFlow::keep_passed(msghdr& message) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      passed_.emplace_back(number);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0 || passed_.size() > kPassedMax) {
    return Error{Code::kMalformed,
                 fmt::format("{} passed more than {} descriptors that nobody waits for", name(), kPassedMax)};
  }
  return ok_status();
}

Result<std::size_t> LocalFlow::receive(std::span<iovec> into) {
  Control control{};
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
  if (got < 0) return failed(errno);
  if (got == 0) return Error{Code::kUnavailable, fmt::format("{}: the peer closed the connection", name())};
  ISTHMUS_TRY(keep_passed(message));
  return static_cast<std::size_t>(got);
}

void LocalFlow::attach_descriptors(msghdr& message, Control& control) const {
  const std::size_t count = to_pass_.size();
  if (count == 0) return;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (std::size_t i = 0; i < count; ++i) {
    const int number = to_pass_[i].number();
    std::memcpy(CMSG_DATA(header) + i * sizeof(int), &number, sizeof(int));
  }
}

Result<std::size_t> LocalFlow::transmit(std::span<iovec> from) {
  Control control{};
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  attach_descriptors(message, control);
  const ssize_t sent = ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
  if (sent < 0) return failed(errno);
  to_pass_.clear();
  return static_cast<std::size_t>(sent);
}

class SocketStream final : public LocalStream {
 public:
  explicit SocketStream(std::shared_ptr<LocalFlow> flow) : flow_(std::move(flow)) {}
  ~SocketStream() override {
    flow_->forget();
    flow_->close();
  }

  void read_pieces(std::vector<std::span<std::byte>> pieces, Done done) override {
    flow_->read(std::move(pieces), std::move(done));
  }
  void write(std::vector<std::span<const std::byte>> pieces, Done done) override {
    flow_->write(pieces, std::move(done));
  }
  void close() override { flow_->close(); }
  std::string peer() const override { return flow_->name(); }
  const Process& process() const override { return flow_->process(); }
  Status pass(FileDescriptor& file) override { return flow_->pass(file); }
  Result<FileDescriptor> take_passed() override { return flow_->take_passed(); }

 private:
  std::shared_ptr<LocalFlow> flow_;
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
  auto flow =
      std::make_shared<LocalFlow>(loop.asio().context, std::move(socket), Process{peer.pid, peer.uid});
  if (const Status status = flow->watch(watched); !status.ok()) {
    ::close(watched);
    return status.error();
  }
  return std::unique_ptr<LocalStream>(std::make_unique<SocketStream>(std::move(flow)));
}

}  // namespace isthmus::net
