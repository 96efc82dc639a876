// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/bytes.h"
#include "net/local.h"
#include "net/run_until.h"
#include "transport/shm/messages.h"
#include "transport/shm/segment.h"
#include "transport/tcp/channel.h"

namespace isthmus::transport {
namespace {

constexpr Duration kLimit = std::chrono::seconds(20);
constexpr uid_t kNobody = 65534;

TEST(Segment, CannotBeCutGrownOrUnsealed) {
  Result<Segment> segment = Segment::make(10'000);
  ASSERT_TRUE(segment.ok()) << segment.error().text();
  const int file = segment->file().number();
  EXPECT_EQ(segment->mapping()->memory().size(), 12'288u);
  EXPECT_EQ(::ftruncate(file, 0), -1);
  EXPECT_EQ(::ftruncate(file, 1 << 20), -1);
  EXPECT_EQ(::fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(Segment, SlicesAreDisjointAndJoinAgain) {
  Result<Segment> segment = Segment::make(4 * 4096);
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(segment->take(1), 0u);
  EXPECT_EQ(segment->take(4097), 4096u);
  EXPECT_EQ(segment->take(4096), 3 * 4096u);
  EXPECT_EQ(segment->take(1), std::nullopt);
  segment->give_back(0, 1);
  segment->give_back(3 * 4096, 4096);
  EXPECT_EQ(segment->take(4097), std::nullopt);
  segment->give_back(4096, 4097);
  EXPECT_EQ(segment->take(4 * 4096), 0u);
}

TEST(Segment, APeersFileIsMappedOnlyIfItCannotChangeItsLength) {
  const net::FileDescriptor open(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.number(), 4096), 0);
  EXPECT_EQ(map_peers_segment(open, 4096).code(), Code::kMalformed);
  ASSERT_EQ(::fcntl(open.number(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(map_peers_segment(open, 4096).code(), Code::kMalformed);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const net::FileDescriptor read_end(pipe[0]);
  const net::FileDescriptor write_end(pipe[1]);
  EXPECT_EQ(map_peers_segment(read_end, 4096).code(), Code::kMalformed);
  Result<Segment> good = Segment::make(4096);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(map_peers_segment(good->file(), 4097).code(), Code::kMalformed);
  EXPECT_EQ(map_peers_segment(good->file(), 0).code(), Code::kMalformed);
  good->mapping()->memory()[5] = std::byte{9};
  const auto mapping = map_peers_segment(good->file(), 4096);
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ((*mapping)->memory()[5], std::byte{9});
}

// The receiving end of a channel.
struct Receiver {
  std::unique_ptr<Channel> channel;
  std::vector<Received> views;
  std::string immediate;
  std::vector<Error> closed;

  void listen() {
    channel->set_events({.on_incoming = [this](const Incoming& incoming) -> Result<Pieces> {
                           immediate = text_of(incoming.immediate);
                           return Pieces();
                         },
                         .on_data = [this](Received received) { views.push_back(std::move(received)); },
                         .on_closed = [this](const Status& why) { closed.push_back(why.error()); }});
  }
};

std::size_t open_files() {
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

std::size_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("isthmus-payload") != std::string::npos;
  return count;
}

class Shm : public ::testing::Test {
 protected:
  void listen() {
    auto listening = transport_->listen("", [this](std::unique_ptr<Channel> channel) {
      end_.channel = std::move(channel);
      end_.listen();
    });
    ASSERT_TRUE(listening.ok()) << listening.error().text();
    acceptor_ = *std::move(listening);
  }
  bool until(const std::function<bool()>& done) { return net::run_until(loop_, done, kLimit); }
  Result<std::unique_ptr<Channel>> connect(const std::string& endpoint) {
    std::optional<Result<std::unique_ptr<Channel>>> answer;
    const auto pending = transport_->connect(
        endpoint, kLimit, [&](Result<std::unique_ptr<Channel>> channel) { answer = std::move(channel); });
    EXPECT_TRUE(until([&] { return answer.has_value(); }));
    return *std::move(answer);
  }
  // Runs `child` in a process of its own, which ends with it.
  static pid_t in_a_child(const std::function<void()>& child) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::alarm(60);  // Whatever happens to its parent.
    child();
    ::_exit(0);
  }
  static void reap(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  net::Loop loop_;
  std::unique_ptr<Transport> transport_ = make_shm(loop_);
  std::unique_ptr<Acceptor> acceptor_;
  Receiver end_;
};

// Connects, shows one MiB of sevens with `immediate` beside it, then lives on.
void show_sevens(const std::string& endpoint, const std::function<std::string()>& immediate) {
  net::Loop loop;
  const auto transport = make_shm(loop);
  std::unique_ptr<Channel> channel;
  const auto pending = transport->connect(
      endpoint, kLimit, [&](Result<std::unique_ptr<Channel>> made) { channel = *std::move(made); });
  (void)net::run_until(loop, [&] { return channel != nullptr; });
  const PayloadMemory memory = *channel->payload_memory(1 << 20);
  std::ranges::fill(memory.bytes, std::byte{7});
  (void)channel->send_data(bytes_of(immediate()), {memory.bytes}, [](const Status&) {});
  (void)net::run_until(loop, [] { return false; }, kLimit * 3);
}

TEST_F(Shm, AKilledSendersDeathIsSeenAndItsViewStaysReadable) {
  listen();
  const pid_t child = in_a_child([&] { show_sevens(acceptor_->endpoint(), [] { return "x"; }); });
  ASSERT_TRUE(until([&] { return !end_.views.empty(); }));
  reap(child);
  ASSERT_TRUE(until([&] { return !end_.closed.empty(); }));
  EXPECT_EQ(end_.closed[0].code, Code::kUnavailable);
  EXPECT_EQ(std::ranges::count(end_.views[0].bytes, std::byte{7}), 1 << 20);
  EXPECT_EQ(mapped_segments(), 1u);
  end_.views.clear();
  EXPECT_EQ(mapped_segments(), 0u);
}

TEST_F(Shm, AProcessThatInheritedTheSocketDoesNotHideItsOwnersDeath) {
  listen();
  const pid_t child = in_a_child([&] {
    show_sevens(acceptor_->endpoint(), [] {
      return std::to_string(in_a_child([] { ::pause(); }));  // It has the socket too.
    });
  });
  ASSERT_TRUE(until([&] { return !end_.views.empty(); }));
  reap(child);
  EXPECT_TRUE(until([&] { return !end_.closed.empty(); }));
  ::kill(std::stoi(end_.immediate), SIGKILL);
}

TEST_F(Shm, AKilledReceiverGivesTheSendersMemoryBack) {
  listen();
  const std::size_t files = open_files();
  const pid_t child = in_a_child([&] { show_sevens(acceptor_->endpoint(), [] { return "x"; }); });
  ASSERT_TRUE(until([&] { return !end_.views.empty(); }));
  end_.views.clear();
  std::optional<Code> sent;
  {
    const PayloadMemory memory = *end_.channel->payload_memory(1 << 20);
    EXPECT_EQ(mapped_segments(), 2u);
    // The child takes no data, so it would close; stopped, it does nothing at all.
    ::kill(child, SIGSTOP);
    ASSERT_TRUE(
        end_.channel->send_data({}, {memory.bytes}, [&](const Status& why) { sent = why.code(); }).ok());
  }
  reap(child);
  ASSERT_TRUE(until([&] { return !end_.closed.empty(); }));
  EXPECT_EQ(sent, Code::kUnavailable);
  EXPECT_EQ(mapped_segments(), 0u);
  end_.channel.reset();
  EXPECT_EQ(open_files(), files);
}

TEST_F(Shm, AStoppedPeerHoldsNobody) {
  listen();
  const pid_t child = in_a_child([&] { show_sevens(acceptor_->endpoint(), [] { return "x"; }); });
  ASSERT_TRUE(until([&] { return !end_.views.empty(); }));
  ::kill(child, SIGSTOP);
  const PayloadMemory memory = *end_.channel->payload_memory(1 << 20);
  std::optional<Code> sent;
  ASSERT_TRUE(
      end_.channel->send_data({}, {memory.bytes}, [&](const Status& why) { sent = why.code(); }).ok());
  end_.channel->revoke();
  EXPECT_EQ(sent, Code::kCancelled);
  EXPECT_TRUE(end_.closed.empty());
  reap(child);
}

TEST_F(Shm, AnotherUsersProcessIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  listen();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  // It connects to us, and listens for us.
  const pid_t child = in_a_child([&] {
    if (::setuid(kNobody) != 0) ::_exit(1);
    net::Loop loop;
    std::unique_ptr<net::LocalStream> stream;
    bool is_closed = false;
    const std::string ours = acceptor_->endpoint();
    const auto pending = net::connect_local(loop, ours.substr(ours.find('/') + 1),
                                            [&](auto made) { stream = *std::move(made); });
    (void)net::run_until(loop, [&] { return stream != nullptr; });
    std::byte byte{};
    stream->read(std::span(&byte, 1), [&](const Status&) { is_closed = true; });
    (void)net::run_until(loop, [&] { return is_closed; });
    const auto transport = make_shm(loop);
    const auto theirs = transport->listen("", [](const std::unique_ptr<Channel>&) {});
    const std::string told = is_closed ? (*theirs)->endpoint() + "\n" : "taken\n";
    (void)!::write(pipe[1], told.data(), told.size());
    (void)net::run_until(loop, [] { return false; }, kLimit * 3);
  });
  const net::FileDescriptor read_end(pipe[0]);
  const net::FileDescriptor write_end(pipe[1]);
  ASSERT_EQ(::fcntl(pipe[0], F_SETFL, O_NONBLOCK), 0);
  std::string endpoint;
  ASSERT_TRUE(until([&] {
    std::array<char, 256> text{};
    const ssize_t got = ::read(pipe[0], text.data(), text.size());
    if (got > 0) endpoint.append(text.data(), static_cast<std::size_t>(got));
    loop_.post([] {});
    return endpoint.ends_with('\n');
  }));
  endpoint.pop_back();
  EXPECT_EQ(end_.channel, nullptr);
  const auto channel = connect(endpoint);
  ASSERT_FALSE(channel.ok());
  EXPECT_EQ(channel.code(), Code::kUnsupported);
  EXPECT_NE(channel.error().detail.find("user 65534"), std::string::npos) << channel.error().detail;
  reap(child);
}

TEST_F(Shm, AnotherHostsEndpointIsUnsupported) {
  EXPECT_EQ(connect("0123456789abcdef-1/name").code(), Code::kUnsupported);
  EXPECT_EQ(connect(shm_host_id() + "/nobody").code(), Code::kUnavailable);
  EXPECT_EQ(connect(shm_host_id() + "/").code(), Code::kInvalidArgument);
  EXPECT_EQ(connect(shm_host_id() + "/" + std::string(200, 'x')).code(), Code::kInvalidArgument);
}

TEST_F(Shm, MemoryOfOthersIsNotSent) {
  listen();
  const auto channel = *connect(acceptor_->endpoint());
  const PayloadMemory memory = *channel->payload_memory(100);
  const std::array<std::byte, 10> own{};
  EXPECT_EQ(channel->send_data({}, {own}, [](const Status&) {}).code(), Code::kInvalidArgument);
  const std::span<const std::byte> beyond(memory.bytes.data() + 50, 51);
  EXPECT_EQ(channel->send_data({}, {beyond}, [](const Status&) {}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(channel->send_data({}, {memory.bytes.subspan(50, 50)}, [](const Status&) {}).ok());
}

TEST_F(Shm, SegmentsAreBoundedAndNoneIsLeftOver) {
  listen();
  const std::size_t files = open_files();
  {
    const auto channel = *connect(acceptor_->endpoint());
    std::vector<PayloadMemory> held;
    Result<PayloadMemory> memory = channel->payload_memory(8 << 20);
    for (; memory.ok(); memory = channel->payload_memory(8 << 20)) {
      held.push_back(*std::move(memory));
      ASSERT_LE(held.size(), kSegmentsMax);
      const std::size_t seen = held.size();
      ASSERT_TRUE(until([&] { return mapped_segments() == 2 * seen; }));
    }
    EXPECT_EQ(memory.code(), Code::kExhausted);
    EXPECT_EQ(held.size(), kSegmentBytesMax / (8 << 20));
  }
  ASSERT_TRUE(until([&] { return !end_.closed.empty(); }));
  end_.channel.reset();
  EXPECT_EQ(mapped_segments(), 0u);
  EXPECT_EQ(open_files(), files);
}

// A peer of the same user that breaks the rules of the frames.
class ShmLies : public Shm {
 protected:
  void SetUp() override {
    listen();
    const std::string endpoint = acceptor_->endpoint();
    const auto pending = net::connect_local(
        loop_, endpoint.substr(endpoint.find('/') + 1),
        [&](Result<std::unique_ptr<net::LocalStream>> made) { stream_ = made->release(); });
    ASSERT_TRUE(until([&] { return stream_ != nullptr && end_.channel; }));
    frames_ = make_tcp_channel(std::unique_ptr<net::LocalStream>(stream_), nullptr);
    frames_->set_events({});
  }
  void pass_segment(std::uint32_t number, std::uint64_t bytes) {
    Result<Segment> segment = Segment::make(4096);
    ASSERT_TRUE(segment.ok());
    ASSERT_TRUE(stream_->pass(segment->file()).ok());
    ASSERT_TRUE(frames_->send_control(encode(SegmentNotice{number, bytes})).ok());
  }
  void send(const Place& place) {
    ASSERT_TRUE(frames_->send_data(encode_immediate({}, place), {}, [](const Status&) {}).ok());
  }
  std::string why_closed() {
    EXPECT_TRUE(until([&] { return !end_.closed.empty(); }));
    if (end_.closed.empty()) return "";
    EXPECT_EQ(end_.closed[0].code, Code::kMalformed);
    EXPECT_TRUE(end_.views.empty());
    return end_.closed[0].detail;
  }

  net::LocalStream* stream_ = nullptr;
  std::unique_ptr<Channel> frames_;
};

TEST_F(ShmLies, AnHonestMessageIsShown) {
  pass_segment(0, 4096);
  send({0, 96, 4000});
  ASSERT_TRUE(until([&] { return end_.views.size() == 1; }));
  EXPECT_EQ(end_.views[0].bytes.size(), 4000u);
}

TEST_F(ShmLies, BytesBeyondASegmentAreRefused) {
  pass_segment(0, 4096);
  send({0, 97, 4000});
  EXPECT_NE(why_closed().find("bytes 97 to +4000 of segment 0"), std::string::npos);
}

TEST_F(ShmLies, ALengthThatWrapsAroundIsRefused) {
  pass_segment(0, 4096);
  send({0, ~std::uint64_t{0}, 2});
  EXPECT_NE(why_closed().find("of segment 0"), std::string::npos);
}

TEST_F(ShmLies, AnUnknownSegmentIsRefused) {
  send({3, 0, 1});
  EXPECT_NE(why_closed().find("of segment 3, which has 0"), std::string::npos);
}

TEST_F(ShmLies, ASegmentSmallerThanAnnouncedIsRefused) {
  pass_segment(0, 8192);
  EXPECT_NE(why_closed().find("has 4096 bytes, not 8192"), std::string::npos);
}

TEST_F(ShmLies, ASegmentOutOfTurnOrTooLargeIsRefused) {
  pass_segment(1, 4096);
  EXPECT_NE(why_closed().find("announces segment 1"), std::string::npos);
}

TEST_F(ShmLies, ASegmentWithoutADescriptorIsRefused) {
  ASSERT_TRUE(frames_->send_control(encode(SegmentNotice{0, 4096})).ok());
  EXPECT_NE(why_closed().find("passed no descriptor"), std::string::npos);
}

TEST_F(ShmLies, DescriptorsThatNobodyWaitsForEndTheChannel) {
  for (int i = 0; i < 9; ++i) {
    Result<Segment> segment = Segment::make(1);
    ASSERT_TRUE(segment.ok());
    ASSERT_TRUE(stream_->pass(segment->file()).ok());
    bool sent = false;
    ASSERT_TRUE(frames_->send_control(encode_user_control(bytes_of("x"))).ok());
    loop_.post([&] { sent = true; });
    ASSERT_TRUE(until([&] { return sent; }));
    for (int turn = 0; turn < 20; ++turn) {
      bool turned = false;
      loop_.post([&] { turned = true; });
      ASSERT_TRUE(until([&] { return turned; }));
    }
  }
  EXPECT_NE(why_closed().find("nobody waits for"), std::string::npos);
}

TEST_F(ShmLies, AReleaseOfWhatWasNotSentIsRefused) {
  ASSERT_TRUE(frames_->send_control(encode(ReleaseNotice{0})).ok());
  EXPECT_NE(why_closed().find("releases message 0"), std::string::npos);
}

TEST_F(ShmLies, APayloadInTheSocketIsRefused) {
  const std::array<std::byte, 5> payload{};
  ASSERT_TRUE(frames_->send_data(encode_immediate({}, {}), {payload}, [](const Status&) {}).ok());
  EXPECT_NE(why_closed().find("by its socket"), std::string::npos);
}

TEST_F(ShmLies, OtherFramesAreRefused) {
  ASSERT_TRUE(frames_->send_control(bytes_of("\x07junk")).ok());
  EXPECT_NE(why_closed().find("of kind 7"), std::string::npos);
}

TEST_F(ShmLies, ADataMessageWithoutItsPlaceIsRefused) {
  ASSERT_TRUE(frames_->send_data(bytes_of("short"), {}, [](const Status&) {}).ok());
  EXPECT_NE(why_closed().find("at least 20"), std::string::npos);
}

}  // namespace
}  // namespace isthmus::transport
