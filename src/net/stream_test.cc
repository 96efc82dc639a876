// SPDX-License-Identifier: Apache-2.0
#include "net/stream.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "net/run_until.h"

namespace isthmus::net {
namespace {

constexpr Duration kLimit = std::chrono::seconds(10);

TEST(Endpoint, ParsesHostAndPort) {
  EXPECT_EQ(Endpoint::parse("127.0.0.1:80").value(), (Endpoint{"127.0.0.1", 80}));
  EXPECT_EQ(Endpoint::parse("[::1]:65535").value(), (Endpoint{"::1", 65535}));
  EXPECT_EQ(Endpoint::parse("node-1.local:0")->text(), "node-1.local:0");
  EXPECT_EQ(Endpoint::parse("[::1]:7")->text(), "[::1]:7");
  for (const char* bad :
       {"", "host", ":80", "host:", "host:65536", "host:-1", "host:8x", "::1:80", "[]:1", "a]:1"}) {
    const Result<Endpoint> parsed = Endpoint::parse(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.error().detail.find(bad), std::string::npos);
  }
}

class StreamTest : public ::testing::Test {
 protected:
  // Two ends of one connection.
  void SetUp() override {
    Result<std::unique_ptr<Listener>> listening =
        listen(loop_, {"127.0.0.1", 0}, [&](std::unique_ptr<Stream> stream) { server_ = std::move(stream); });
    ASSERT_TRUE(listening.ok()) << listening.error().detail;
    listener_ = *std::move(listening);
    EXPECT_NE(listener_->endpoint().port, 0);
    const auto connecting =
        connect(loop_, listener_->endpoint(), kLimit, [&](Result<std::unique_ptr<Stream>> stream) {
          ASSERT_TRUE(stream.ok()) << stream.error().detail;
          client_ = *std::move(stream);
        });
    ASSERT_TRUE(run_until(loop_, [&] { return client_ && server_; }));
    EXPECT_EQ(client_->peer(), listener_->endpoint().text());
  }

  Loop loop_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Stream> client_;
  std::unique_ptr<Stream> server_;
};

TEST_F(StreamTest, VectoredWritesArriveWholeAndInOrder) {
  std::vector<std::byte> sent(3'000'001);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<std::byte> got(sent.size());
  const std::span<const std::byte> all(sent);
  std::vector<std::span<const std::byte>> pieces{all.first(0)};
  for (std::size_t at = 0; at < 1000; at += 25)
    pieces.push_back(all.subspan(at, 25));  // More than one system call holds.
  pieces.push_back(all.subspan(1000, 0));
  pieces.push_back(all.subspan(1000));
  int done = 0;
  client_->write(pieces, [&](Status status) { done += status.ok() ? 1 : 100; });
  server_->read(got, [&](Status status) { done += status.ok() ? 1 : 100; });
  ASSERT_TRUE(run_until(loop_, [&] { return done >= 2; }));
  EXPECT_EQ(done, 2);
  EXPECT_TRUE(got == sent);
}

TEST_F(StreamTest, WritesQueueUpAndReadsOfAnyCutFindTheSameBytes) {
  constexpr std::size_t kWrites = 300, kBytes = 100'000;
  std::vector<std::byte> sent(kWrites * 7 + kBytes), got(sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 5 + i / 253);
  const std::span<const std::byte> all(sent);
  std::vector<std::size_t> written;
  for (std::size_t i = 0; i < kWrites; ++i) {  // More at once than one system call takes.
    client_->write({all.subspan(i * 7, 7)}, [&, i](const Status& status) {
      EXPECT_TRUE(status.ok());
      written.push_back(i);
    });
  }
  client_->write({all.subspan(kWrites * 7)}, [&](const Status&) { written.push_back(kWrites); });
  EXPECT_TRUE(written.empty()) << "called from within write()";
  // Small reads, one of nearly all that is left, small ones again: across what was read ahead.
  std::size_t at = 0;
  std::function<void(Status)> next = [&](const Status& status) {
    ASSERT_TRUE(status.ok()) << status.error().text();
    if (at == got.size()) return;
    const std::size_t wanted = at < 1500 || got.size() - at <= 50 ? 3 : got.size() - at - 50;
    const std::span<std::byte> into = std::span(got).subspan(at, std::min(wanted, got.size() - at));
    at += into.size();
    server_->read(into, next);
  };
  next(ok_status());
  ASSERT_TRUE(run_until(loop_, [&] { return at == got.size() && written.size() == kWrites + 1; }));
  EXPECT_TRUE(std::is_sorted(written.begin(), written.end()));
  bool is_idle = false;
  loop_.post([&] { is_idle = true; });
  ASSERT_TRUE(run_until(loop_, [&] { return is_idle && got.back() == sent.back(); }));
  EXPECT_TRUE(got == sent);
}

TEST_F(StreamTest, EmptyReadsAndWritesSucceed) {
  int done = 0;
  client_->write({}, [&](Status status) { done += status.ok() ? 1 : 100; });
  server_->read({}, [&](Status status) { done += status.ok() ? 1 : 100; });
  ASSERT_TRUE(run_until(loop_, [&] { return done >= 2; }));
  EXPECT_EQ(done, 2);
}

TEST_F(StreamTest, AReadEndsWithUnavailableWhenThePeerCloses) {
  std::vector<std::byte> into(10);
  std::optional<Status> read;
  server_->read(into, [&](Status status) { read = std::move(status); });
  client_->write({bytes_of("abc")}, [&](Status) { client_.reset(); });
  ASSERT_TRUE(run_until(loop_, [&] { return read.has_value(); }));
  EXPECT_EQ(read->code(), Code::kUnavailable);
}

TEST_F(StreamTest, CloseGivesCancelledToWhatIsPending) {
  std::vector<std::byte> into(10);
  std::vector<std::byte> large(64 << 20);
  std::optional<Status> read;
  std::optional<Status> written;
  server_->read(into, [&](Status status) { read = std::move(status); });
  server_->write({large}, [&](Status status) { written = std::move(status); });
  server_->close();
  server_->close();
  ASSERT_TRUE(run_until(loop_, [&] { return read && written; }));
  EXPECT_EQ(read->code(), Code::kCancelled);
  EXPECT_EQ(written->code(), Code::kCancelled);
}

TEST_F(StreamTest, NothingIsWrittenIntoABufferAfterClose) {
  std::vector<std::byte> into(1 << 20);
  std::vector<std::byte> ones(1 << 20, std::byte{1});
  bool sent = false;
  server_->read(into, [](Status) {});
  client_->write({ones}, [&](Status) { sent = true; });
  // Some of it has arrived when the stream closes.
  ASSERT_TRUE(run_until(loop_, [&] { return into[0] == std::byte{1}; }));
  server_->close();
  std::fill(into.begin(), into.end(), std::byte{2});
  ASSERT_TRUE(run_until(loop_, [&] { return sent; }));
  EXPECT_TRUE(std::all_of(into.begin(), into.end(), [](std::byte b) { return b == std::byte{2}; }));
}

TEST_F(StreamTest, ADestroyedStreamCallsNothing) {
  std::vector<std::byte> into(10);
  bool called = false;
  bool end = false;
  server_->read(into, [&](Status) { called = true; });
  server_.reset();
  const auto timer = loop_.after(std::chrono::milliseconds(2), [&] { end = true; });
  ASSERT_TRUE(run_until(loop_, [&] { return end; }));
  EXPECT_FALSE(called);
}

TEST_F(StreamTest, AStreamMayBeDestroyedInItsOwnCallback) {
  std::byte into{};
  bool called = false;
  server_->read({&into, 1}, [&](Status) {
    server_.reset();
    called = true;
  });
  client_->write({bytes_of("a")}, [&](Status) { client_.reset(); });
  EXPECT_TRUE(run_until(loop_, [&] { return called && !client_; }));
}

TEST(Connect, RefusedIsUnavailableAndNamesThePeer) {
  Loop loop;
  Endpoint gone;
  {
    auto listener = listen(loop, {"127.0.0.1", 0}, [](std::unique_ptr<Stream>) {});
    gone = (*listener)->endpoint();
  }
  std::optional<Error> error;
  const auto connecting =
      connect(loop, gone, kLimit, [&](Result<std::unique_ptr<Stream>> stream) { error = stream.error(); });
  ASSERT_TRUE(run_until(loop, [&] { return error.has_value(); }));
  EXPECT_EQ(error->code, Code::kUnavailable);
  EXPECT_NE(error->detail.find(gone.text()), std::string::npos);
}

// A listener that never accepts and whose queue is full: the kernel drops further SYNs, as a silent host
// would.
class SilentListener {
 public:
  SilentListener() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = loopback(0);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(listener_, as_sockaddr(at), size), 0);
    EXPECT_EQ(::listen(listener_, 0), 0);
    EXPECT_EQ(::getsockname(listener_, as_sockaddr(at), &size), 0);
    port_ = ntohs(at.sin_port);
    for (int& filler : fillers_) {
      filler = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      const int connected = ::connect(filler, as_sockaddr(at), size);
      EXPECT_TRUE(connected == 0 || errno == EINPROGRESS);
    }
  }
  ~SilentListener() {
    for (const int filler : fillers_) ::close(filler);
    ::close(listener_);
  }
  std::uint16_t port() const { return port_; }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }
  static sockaddr* as_sockaddr(sockaddr_in& at) { return static_cast<sockaddr*>(static_cast<void*>(&at)); }

  int listener_;
  std::uint16_t port_ = 0;
  std::array<int, 4> fillers_{};
};

TEST(Connect, ASilentHostEndsWithTheDeadline) {
  const SilentListener silent;
  Loop loop;
  std::optional<Code> code;
  const auto connecting = connect(loop, {"127.0.0.1", silent.port()}, std::chrono::milliseconds(50),
                                  [&](Result<std::unique_ptr<Stream>> stream) { code = stream.code(); });
  ASSERT_TRUE(run_until(loop, [&] { return code.has_value(); }));
  EXPECT_EQ(code, Code::kDeadlineExceeded);
}

TEST(Connect, NamesAreResolvedAndDestroyingTheHandleCancels) {
  Loop loop;
  int accepted = 0;
  int called = 0;
  auto listener = listen(loop, {"localhost", 0}, [&](std::unique_ptr<Stream>) { ++accepted; });
  ASSERT_TRUE(listener.ok()) << listener.error().detail;
  const Endpoint at = (*listener)->endpoint();
  EXPECT_EQ(at.host, "localhost");
  auto cancelled = connect(loop, at, kLimit, [&](Result<std::unique_ptr<Stream>>) { called += 100; });
  cancelled.reset();
  const auto connecting = connect(
      loop, at, kLimit, [&](Result<std::unique_ptr<Stream>> stream) { called += stream.ok() ? 1 : 1000; });
  ASSERT_TRUE(run_until(loop, [&] { return called > 0 && accepted > 0; }));
  EXPECT_EQ(called, 1);
}

TEST(Listen, ATakenPortIsUnavailable) {
  Loop loop;
  auto first = listen(loop, {"127.0.0.1", 0}, [](std::unique_ptr<Stream>) {});
  auto second = listen(loop, (*first)->endpoint(), [](std::unique_ptr<Stream>) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.code(), Code::kUnavailable);
  EXPECT_NE(second.error().detail.find((*first)->endpoint().text()), std::string::npos);
}

TEST(Listen, AListenerMayBeDestroyedInItsOwnCallback) {
  Loop loop;
  std::unique_ptr<Listener> listener;
  bool accepted = false;
  auto listening = listen(loop, {"127.0.0.1", 0}, [&](std::unique_ptr<Stream>) {
    listener.reset();
    accepted = true;
  });
  listener = *std::move(listening);
  const auto connecting = connect(loop, listener->endpoint(), kLimit, [](Result<std::unique_ptr<Stream>>) {});
  EXPECT_TRUE(run_until(loop, [&] { return accepted; }));
}

}  // namespace
}  // namespace isthmus::net
