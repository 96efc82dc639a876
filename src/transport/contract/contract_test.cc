// SPDX-License-Identifier: Apache-2.0
// What each transport promises, over every transport there is. A new one adds a line to kTransports.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/bytes.h"
#include "net/run_until.h"
#include "net/stream.h"
#include "net/test_authority.h"
#include "transport/faulty/faulty.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace isthmus::transport {
namespace {

constexpr Duration kLimit = std::chrono::seconds(10);

struct Subject {
  const char* name;
  std::unique_ptr<Transport> (*make)(net::Loop&);
  const char* listen_at;
  bool is_tcp_port;   // Its endpoint is a TCP port where strangers get a channel.
  bool shows_memory;  // Payloads arrive as views.
};

std::unique_ptr<Transport> make_tls(net::Loop& loop) {
  static net::TestAuthority authority;
  return make_tcp(loop, authority.credentials("an end"));
}

template <std::unique_ptr<Transport> (*kMake)(net::Loop&)>
std::unique_ptr<Transport> make_unarmed(net::Loop& loop) {
  return make_faulty(loop, kMake(loop), std::make_shared<Faults>());
}

constexpr Subject kTransports[] = {
    {"tcp", make_tcp, "127.0.0.1:0", true, false},
    {"tcp_under_tls", make_tls, "127.0.0.1:0", false, false},
    {"shm", make_shm, "", false, true},
    {"unarmed_faults_over_tcp", make_unarmed<make_tcp>, "127.0.0.1:0", true, false},
    {"unarmed_faults_over_shm", make_unarmed<make_shm>, "", false, true},
};

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 31 + i / 257 + seed);
  return out;
}

// One end of a connection, recording what it is told.
struct End {
  std::unique_ptr<Channel> channel;
  std::vector<std::string> log;   // In order: "c:text", "i:immediate", "d", "f:token".
  std::vector<std::byte> memory;  // Where payloads go that aren't shown.
  std::size_t scatter_by = 0;     // If set, they go there in pieces of so many bytes.
  bool keeps_views = false;
  std::vector<Received> views;
  std::vector<std::vector<std::byte>> payloads;
  std::optional<Error> refuse_with;  // What on_incoming answers instead of memory.
  std::vector<Error> closed;

  void listen_to_all() {
    channel->set_events({
        .on_control =
            [this](std::vector<std::byte> frame) { log.push_back("c:" + std::string(text_of(frame))); },
        .on_incoming = [this](const Incoming& incoming) -> Result<Pieces> {
          log.push_back("i:" + std::string(text_of(incoming.immediate)));
          if (refuse_with) return *refuse_with;
          if (incoming.is_shared) return Pieces();
          memory.resize(incoming.bytes);
          if (scatter_by == 0) return Pieces{memory};
          Pieces pieces;
          for (std::size_t at = 0; at < memory.size(); at += scatter_by)
            pieces.push_back(std::span(memory).subspan(at, std::min(scatter_by, memory.size() - at)));
          return pieces;
        },
        .on_data =
            [this](Received received) {
              log.push_back("d");
              const std::span<const std::byte> bytes = received.view ? received.bytes : memory;
              payloads.emplace_back(bytes.begin(), bytes.end());
              if (keeps_views) views.push_back(std::move(received));
            },
        .on_fence = [this](std::uint64_t token) { log.push_back("f:" + std::to_string(token)); },
        .on_closed = [this](Status why) { closed.push_back(why.error()); },
    });
  }
};

class Contract : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    transport_ = GetParam().make(loop_);
    auto listening = transport_->listen(GetParam().listen_at, [this](std::unique_ptr<Channel> channel) {
      accepted_.push_back(std::move(channel));
    });
    ASSERT_TRUE(listening.ok()) << listening.error().detail;
    acceptor_ = *std::move(listening);
  }

  // Fills both ends; neither reads yet.
  void join() {
    const auto pending =
        transport_->connect(acceptor_->endpoint(), kLimit, [this](Result<std::unique_ptr<Channel>> channel) {
          ASSERT_TRUE(channel.ok()) << channel.error().detail;
          a_.channel = *std::move(channel);
        });
    ASSERT_TRUE(until([this] { return a_.channel && !accepted_.empty(); }));
    b_.channel = std::move(accepted_.back());
    accepted_.pop_back();
  }
  void join_and_listen() {
    join();
    a_.listen_to_all();
    b_.listen_to_all();
  }
  bool until(const std::function<bool()>& done) { return net::run_until(loop_, done, kLimit); }
  // Lets everything that is due happen.
  void settle() {
    for (int i = 0; i < 20; ++i) {
      bool turned = false;
      loop_.post([&] { turned = true; });
      ASSERT_TRUE(until([&] { return turned; }));
    }
  }
  // `bytes` in payload memory of that channel, kept until they are sent.
  static Status send(Channel& channel, std::span<const std::byte> immediate, std::span<const std::byte> bytes,
                     std::function<void(Status)> sent) {
    ISTHMUS_TRY(PayloadMemory memory, channel.payload_memory(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), memory.bytes.begin());
    return channel.send_data(immediate, {memory.bytes},
                             [keep = std::move(memory.keep), sent = std::move(sent)](Status status) mutable {
                               keep.reset();
                               sent(std::move(status));
                             });
  }
  std::function<void(Status)> count_sent(std::vector<Code>& into) {
    return [&into](Status status) { into.push_back(status.code()); };
  }

  net::Loop loop_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<std::unique_ptr<Channel>> accepted_;
  End a_;
  End b_;
};

TEST_P(Contract, EverythingArrivesInTheOrderSent) {
  join_and_listen();
  const std::vector<std::byte> first = pattern(1000, 1);
  const std::vector<std::byte> second = pattern(7, 2);
  std::vector<Code> sent;
  ASSERT_TRUE(a_.channel->send_control(bytes_of("one")).ok());
  ASSERT_TRUE(send(*a_.channel, bytes_of("h1"), first, count_sent(sent)).ok());
  ASSERT_TRUE(a_.channel->send_fence(7).ok());
  ASSERT_TRUE(a_.channel->send_control({}).ok());
  ASSERT_TRUE(send(*a_.channel, {}, second, count_sent(sent)).ok());
  ASSERT_TRUE(send(*a_.channel, bytes_of("empty"), {}, count_sent(sent)).ok());
  ASSERT_TRUE(a_.channel->send_fence(~std::uint64_t{0}).ok());
  ASSERT_TRUE(until([&] { return b_.log.size() == 10 && sent.size() == 3; }));
  EXPECT_EQ(b_.log, (std::vector<std::string>{"c:one", "i:h1", "d", "f:7", "c:", "i:", "d", "i:empty", "d",
                                              "f:18446744073709551615"}));
  EXPECT_TRUE(b_.payloads[0] == first && b_.payloads[1] == second && b_.payloads[2].empty());
  EXPECT_EQ(sent, std::vector<Code>(3, Code::kOk));
}

TEST_P(Contract, BothDirectionsCarryAtOnce) {
  join_and_listen();
  const std::vector<std::byte> there = pattern(3'000'000, 1);
  const std::vector<std::byte> back = pattern(2'000'000, 2);
  std::vector<Code> sent;
  ASSERT_TRUE(send(*a_.channel, {}, there, count_sent(sent)).ok());
  ASSERT_TRUE(send(*b_.channel, {}, back, count_sent(sent)).ok());
  ASSERT_TRUE(until([&] { return a_.payloads.size() == 1 && b_.payloads.size() == 1 && sent.size() == 2; }));
  EXPECT_TRUE(b_.payloads[0] == there);
  EXPECT_TRUE(a_.payloads[0] == back);
}

TEST_P(Contract, LargeMessagesArriveWholeAndLeaveTheLoopFree) {
  join_and_listen();
  const std::vector<std::byte> large = pattern(64 << 20, 3);
  const std::vector<std::byte> longest_control = pattern(transport_->capabilities().control_bytes_max, 4);
  std::vector<Code> sent;
  ASSERT_TRUE(a_.channel->send_control(longest_control).ok());
  ASSERT_TRUE(send(*a_.channel, bytes_of("large"), large, count_sent(sent)).ok());
  // Work posted by others gets its turn many times while the payload flows.
  int turns = 0;
  std::function<void()> turn = [&] {
    if (b_.payloads.empty() && a_.closed.empty()) loop_.post([&] { turn(); });
    ++turns;
  };
  turn();
  ASSERT_TRUE(until([&] { return b_.payloads.size() == 1 && sent.size() == 1; }));
  EXPECT_TRUE(b_.payloads[0] == large);
  EXPECT_EQ(b_.log[0].size(), longest_control.size() + 2);
  if (!GetParam().shows_memory) {
    EXPECT_GT(turns, 64);
  }
}

TEST_P(Contract, LengthsBeyondTheCapabilitiesAreRefusedAndTheChannelLives) {
  join_and_listen();
  const std::vector<std::byte> control(transport_->capabilities().control_bytes_max + 1);
  EXPECT_EQ(a_.channel->send_control(control).code(), Code::kInvalidArgument);
  bool called = false;
  EXPECT_EQ(send(*a_.channel, control, {}, [&](Status) { called = true; }).code(), Code::kInvalidArgument);
  ASSERT_TRUE(a_.channel->send_control(bytes_of("still here")).ok());
  ASSERT_TRUE(until([&] { return b_.log.size() == 1; }));
  EXPECT_FALSE(called);
}

TEST_P(Contract, ARefusedMessageClosesWithThatErrorBeforeItsPayload) {
  join_and_listen();
  b_.refuse_with = Error{Code::kExhausted, "no staging left"};
  b_.memory = pattern(10, 5);
  const std::vector<std::byte> before = b_.memory;
  std::vector<Code> sent;
  const std::vector<std::byte> payload = pattern(32 << 20, 1);
  ASSERT_TRUE(send(*a_.channel, bytes_of("x"), payload, count_sent(sent)).ok());
  ASSERT_TRUE(until([&] { return !b_.closed.empty() && !a_.closed.empty(); }));
  EXPECT_EQ(b_.closed[0].code, Code::kExhausted);
  EXPECT_EQ(b_.closed[0].detail, "no staging left");
  EXPECT_EQ(a_.closed[0].code, Code::kUnavailable);
  EXPECT_EQ(b_.memory, before);
  EXPECT_EQ(sent, std::vector<Code>{Code::kUnavailable});
  EXPECT_EQ(b_.log, std::vector<std::string>{"i:x"});
}

TEST_P(Contract, DataWithoutAReceiverForItIsRefused) {
  join();
  std::optional<Error> closed;
  b_.channel->set_events({.on_closed = [&](Status why) { closed = why.error(); }});
  ASSERT_TRUE(send(*a_.channel, {}, bytes_of("x"), [](Status) {}).ok());
  ASSERT_TRUE(until([&] { return closed.has_value(); }));
  EXPECT_EQ(closed->code, Code::kUnsupported);
}

TEST_P(Contract, NothingIsDeliveredBeforeEventsAreSetAndNothingIsLost) {
  join();
  ASSERT_TRUE(a_.channel->send_control(bytes_of("early")).ok());
  settle();
  EXPECT_TRUE(b_.log.empty());
  b_.listen_to_all();
  ASSERT_TRUE(until([&] { return !b_.log.empty(); }));
  EXPECT_EQ(b_.log[0], "c:early");
}

TEST_P(Contract, EventsMayBeReplacedFromWithinACallback) {
  join();
  b_.channel->set_events({.on_control = [&](std::vector<std::byte> frame) {
    const std::string first(text_of(frame));
    b_.listen_to_all();  // Frees the closure that runs.
    b_.log.push_back("first:" + first);
  }});
  ASSERT_TRUE(a_.channel->send_control(bytes_of("1")).ok());
  ASSERT_TRUE(a_.channel->send_control(bytes_of("2")).ok());
  ASSERT_TRUE(until([&] { return b_.log.size() == 2; }));
  EXPECT_EQ(b_.log, (std::vector<std::string>{"first:1", "c:2"}));
}

TEST_P(Contract, RevokeReturnsAtOnceWhenThePeerIsStopped) {
  join();  // b never reads.
  a_.listen_to_all();
  std::vector<std::byte> payload = pattern(32 << 20, 1);
  std::vector<Code> sent;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(send(*a_.channel, {}, payload, count_sent(sent)).ok());
  settle();
  EXPECT_TRUE(sent.empty());
  a_.channel->revoke();
  EXPECT_EQ(sent, std::vector<Code>(3, Code::kCancelled));
  std::fill(payload.begin(), payload.end(), std::byte{0});  // It is ours again.
  a_.channel->revoke();
  a_.channel->close();
  EXPECT_EQ(a_.channel->send_control({}).code(), Code::kUnavailable);
  EXPECT_EQ(a_.channel->send_fence(1).code(), Code::kUnavailable);
  settle();
  EXPECT_TRUE(a_.closed.empty());
  EXPECT_EQ(sent.size(), 3u);
}

TEST_P(Contract, AfterRevokeNothingIsWrittenIntoTheReceiversMemory) {
  if (GetParam().shows_memory) GTEST_SKIP() << "it never is";
  join_and_listen();
  const std::vector<std::byte> payload(32 << 20, std::byte{1});
  std::vector<Code> sent;
  ASSERT_TRUE(send(*a_.channel, {}, payload, count_sent(sent)).ok());
  ASSERT_TRUE(until([&] { return !b_.memory.empty() && b_.memory[0] == std::byte{1}; }));
  ASSERT_TRUE(b_.payloads.empty());
  b_.channel->revoke();
  std::fill(b_.memory.begin(), b_.memory.end(), std::byte{2});
  ASSERT_TRUE(until([&] { return !sent.empty() && !a_.closed.empty(); }));
  settle();
  EXPECT_TRUE(std::all_of(b_.memory.begin(), b_.memory.end(), [](std::byte b) { return b == std::byte{2}; }));
  EXPECT_TRUE(b_.payloads.empty());
  EXPECT_TRUE(b_.closed.empty());
}

TEST_P(Contract, APeersDeathIsUnavailableOnceAndSendersAreTold) {
  join_and_listen();
  b_.keeps_views = true;
  const std::vector<std::byte> payload = pattern(64 << 20, 1);
  std::vector<Code> sent;
  ASSERT_TRUE(send(*a_.channel, {}, payload, count_sent(sent)).ok());
  ASSERT_TRUE(send(*a_.channel, {}, payload, count_sent(sent)).ok());
  ASSERT_TRUE(until([&] { return !b_.memory.empty() || !b_.views.empty(); }));
  b_.channel.reset();
  ASSERT_TRUE(until([&] { return !a_.closed.empty(); }));
  settle();
  ASSERT_EQ(a_.closed.size(), 1u);
  EXPECT_EQ(a_.closed[0].code, Code::kUnavailable);
  EXPECT_NE(a_.closed[0].detail.find(a_.channel->peer()), std::string::npos);
  EXPECT_EQ(sent, std::vector<Code>(2, Code::kUnavailable));
}

TEST_P(Contract, AnIdlePeersDeathIsSeen) {
  join_and_listen();
  a_.channel.reset();
  ASSERT_TRUE(until([&] { return !b_.closed.empty(); }));
  EXPECT_EQ(b_.closed[0].code, Code::kUnavailable);
}

TEST_P(Contract, PayloadMemoryIsUsedAgainOnceItIsSent) {
  join_and_listen();
  const std::byte* first = nullptr;
  for (int i = 0; i < 100; ++i) {
    Result<PayloadMemory> memory = a_.channel->payload_memory(1 << 20);
    ASSERT_TRUE(memory.ok()) << memory.error().text();
    if (first == nullptr) first = memory->bytes.data();
    EXPECT_EQ(memory->bytes.data(), first);
    std::fill(memory->bytes.begin(), memory->bytes.end(), static_cast<std::byte>(i));
    std::vector<Code> sent;
    ASSERT_TRUE(a_.channel->send_data({}, {memory->bytes}, count_sent(sent)).ok());
    ASSERT_TRUE(until([&] { return !sent.empty() && !b_.payloads.empty(); }));
    EXPECT_EQ(b_.payloads.back(), std::vector<std::byte>(1 << 20, static_cast<std::byte>(i)));
    b_.payloads.clear();
  }
}

TEST_P(Contract, PayloadsComeFromPiecesOfAnyMemoryAndGoToPieces) {
  join();
  if (!a_.channel->gathers()) {
    std::vector<std::byte> own(100);
    EXPECT_EQ(a_.channel->send_data({}, {own}, [](const Status&) {}).code(), Code::kInvalidArgument);
    EXPECT_EQ(a_.channel->send_data({}, {own, own}, [](const Status&) {}).code(), Code::kInvalidArgument);
    return;
  }
  a_.listen_to_all();
  b_.scatter_by = 4000;
  b_.listen_to_all();
  const std::vector<std::byte> whole = pattern(3 << 20, 5);
  std::vector<Code> sent;
  for (const std::size_t length : {std::size_t{64}, std::size_t{1000}, std::size_t{70'000}, whole.size()}) {
    ConstPieces pieces;
    for (std::size_t at = 0; at < whole.size(); at += length) {
      if (at != 0) pieces.emplace_back();  // Empty ones are nothing.
      pieces.push_back(std::span(whole).subspan(at, std::min(length, whole.size() - at)));
    }
    ASSERT_TRUE(a_.channel->send_data(bytes_of("i"), std::move(pieces), count_sent(sent)).ok());
  }
  ASSERT_TRUE(until([&] { return b_.payloads.size() == 4 && sent.size() == 4; }));
  EXPECT_EQ(sent, std::vector<Code>(4, Code::kOk));
  for (const auto& payload : b_.payloads) EXPECT_TRUE(payload == whole);
}

// The sender's end is over in the middle of a payload: nothing writes the receiver's pieces afterwards.
TEST_P(Contract, RevokedPiecesAreNotWrittenAnyMore) {
  join();
  if (!a_.channel->gathers()) GTEST_SKIP() << "payloads are shown";
  a_.listen_to_all();
  b_.scatter_by = 1 << 16;
  b_.listen_to_all();
  const std::vector<std::byte> whole = pattern(64 << 20, 5);
  std::vector<Code> sent;
  ASSERT_TRUE(a_.channel->send_data({}, {whole}, count_sent(sent)).ok());
  ASSERT_TRUE(until([&] {
    return !b_.memory.empty() && std::equal(whole.begin(), whole.begin() + (1 << 16), b_.memory.begin());
  }));
  b_.channel->revoke();
  const std::vector<std::byte> before = b_.memory;
  ASSERT_NE(before.back(), whole.back());
  settle();
  EXPECT_TRUE(b_.memory == before);
  ASSERT_TRUE(until([&] { return sent.size() == 1; }));
  EXPECT_NE(sent[0], Code::kOk);
}

TEST_P(Contract, PayloadMemoryIsHeldByItsHolderAloneAndOutlivesTheChannel) {
  join();
  Result<PayloadMemory> one = a_.channel->payload_memory(1000);
  const Result<PayloadMemory> other = a_.channel->payload_memory(1000);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one->bytes.data(), other->bytes.data());
  a_.channel.reset();
  std::fill(one->bytes.begin(), one->bytes.end(), std::byte{1});
  EXPECT_EQ(other->bytes[0], std::byte{0});
  join();
  a_.channel->close();
  EXPECT_EQ(a_.channel->payload_memory(1).code(), Code::kUnavailable);
  const std::uint64_t too_many = transport_->capabilities().data_bytes_max + 1;
  join();
  EXPECT_EQ(a_.channel->payload_memory(too_many).code(), Code::kInvalidArgument);
}

TEST_P(Contract, AShownPayloadIsTheSendersAgainWhenItsViewIsLetGo) {
  if (!GetParam().shows_memory) GTEST_SKIP() << "it is copied";
  join_and_listen();
  b_.keeps_views = true;
  std::vector<Code> sent;
  for (unsigned i = 0; i < 3; ++i)
    ASSERT_TRUE(send(*a_.channel, {}, pattern(10'000, i), count_sent(sent)).ok());
  ASSERT_TRUE(a_.channel->send_fence(1).ok());
  ASSERT_TRUE(until([&] { return b_.log.size() == 7; }));
  settle();
  EXPECT_TRUE(sent.empty());
  // Memory that is shown isn't given to another sender meanwhile.
  const Result<PayloadMemory> fourth = a_.channel->payload_memory(10'000);
  ASSERT_TRUE(fourth.ok());
  std::fill(fourth->bytes.begin(), fourth->bytes.end(), std::byte{0xff});
  for (unsigned i = 0; i < 3; ++i) EXPECT_TRUE(std::ranges::equal(b_.views[i].bytes, pattern(10'000, i)));
  b_.views.erase(b_.views.begin() + 1);
  ASSERT_TRUE(until([&] { return sent.size() == 1; }));
  b_.views.clear();
  ASSERT_TRUE(until([&] { return sent.size() == 3; }));
  EXPECT_EQ(sent, std::vector<Code>(3, Code::kOk));
}

TEST_P(Contract, AViewIsReadableAfterChannelAndPeerAreGone) {
  if (!GetParam().shows_memory) GTEST_SKIP() << "it is copied";
  join_and_listen();
  b_.keeps_views = true;
  std::vector<Code> sent;
  ASSERT_TRUE(send(*a_.channel, {}, pattern(1 << 20, 7), count_sent(sent)).ok());
  ASSERT_TRUE(until([&] { return b_.views.size() == 1; }));
  b_.channel->revoke();
  ASSERT_TRUE(until([&] { return !a_.closed.empty(); }));
  EXPECT_EQ(sent, std::vector<Code>{Code::kUnavailable});
  a_.channel.reset();
  b_.channel.reset();
  EXPECT_TRUE(std::ranges::equal(b_.views[0].bytes, pattern(1 << 20, 7)));
  b_.views.clear();
}

TEST_P(Contract, AFullSendQueueIsExhaustedAndDrains) {
  join();  // b doesn't read yet.
  a_.listen_to_all();
  const std::vector<std::byte> payload(100);
  std::vector<Code> sent;
  std::size_t taken = 0;
  Status status;
  while ((status = send(*a_.channel, {}, payload, count_sent(sent))).ok()) ASSERT_LT(++taken, 100'000u);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_EQ(a_.channel->send_control({}).code(), Code::kExhausted);
  b_.listen_to_all();
  ASSERT_TRUE(until([&] { return b_.payloads.size() == taken && sent.size() == taken; }));
  EXPECT_TRUE(a_.channel->send_control({}).ok());
  EXPECT_EQ(sent, std::vector<Code>(taken, Code::kOk));
}

TEST_P(Contract, CopiedBytesInTheQueueAreBounded) {
  join();
  const std::vector<std::byte> frame(transport_->capabilities().control_bytes_max);
  std::size_t taken = 0;
  while (a_.channel->send_control(frame).ok()) ASSERT_LT(++taken, 1000u);
  EXPECT_GE(taken, 2u);
  EXPECT_LE(taken * frame.size(), std::size_t{64} << 20);
}

TEST_P(Contract, AChannelMayBeDestroyedInEachOfItsCallbacks) {
  enum Where { kControl, kIncoming, kData, kFence, kClosed, kSent, kEnd };
  for (int where = kControl; where < kEnd; ++where) {
    SCOPED_TRACE(where);
    End one;
    std::swap(a_, one);
    b_ = {};
    join();
    bool destroyed = false;
    std::vector<std::byte> memory(5);
    const auto destroy_at = [&](int here) {
      if (here != where) return;
      b_.channel.reset();
      destroyed = true;
    };
    b_.channel->set_events({.on_control = [&](std::vector<std::byte>) { destroy_at(kControl); },
                            .on_incoming = [&](const Incoming& incoming) -> Result<Pieces> {
                              destroy_at(kIncoming);
                              if (incoming.is_shared) return Pieces();
                              return Pieces{memory};
                            },
                            .on_data = [&](Received) { destroy_at(kData); },
                            .on_fence = [&](std::uint64_t) { destroy_at(kFence); },
                            .on_closed = [&](Status) { destroy_at(kClosed); }});
    std::vector<Code> sent;
    ASSERT_TRUE(send(*b_.channel, {}, memory, [&](Status) { destroy_at(kSent); }).ok());
    a_.listen_to_all();
    ASSERT_TRUE(a_.channel->send_control(bytes_of("c")).ok());
    ASSERT_TRUE(send(*a_.channel, {}, bytes_of("12345"), count_sent(sent)).ok());
    ASSERT_TRUE(a_.channel->send_fence(1).ok());
    if (where == kClosed) {
      ASSERT_TRUE(until([&] { return sent.size() == 1; }));
      a_.channel.reset();
    }
    ASSERT_TRUE(until([&] { return destroyed; }));
    settle();
  }
}

TEST_P(Contract, RevokingWhileTheChannelFailsSuppressesOnClosed) {
  join();
  bool closed = false;
  a_.channel->set_events({.on_closed = [&](Status) { closed = true; }});
  const std::vector<std::byte> payload(64 << 20);
  int sent = 0;
  ASSERT_TRUE(send(*a_.channel, {}, payload, [&](Status) {
                ++sent;
                a_.channel->revoke();
              }).ok());
  b_.channel.reset();
  ASSERT_TRUE(until([&] { return sent > 0; }));
  settle();
  EXPECT_EQ(sent, 1);
  EXPECT_FALSE(closed);
}

TEST_P(Contract, ConnectingToNobodyFailsAndCancelsSilently) {
  const std::string gone = acceptor_->endpoint();
  acceptor_.reset();
  std::vector<Code> codes;
  const auto note = [&](Result<std::unique_ptr<Channel>> channel) { codes.push_back(channel.code()); };
  auto cancelled = transport_->connect(gone, kLimit,
                                       [&](Result<std::unique_ptr<Channel>>) { codes.push_back(Code::kOk); });
  cancelled.reset();
  const auto refused = transport_->connect(gone, kLimit, note);
  ASSERT_TRUE(until([&] { return codes.size() == 1; }));
  const auto nonsense = transport_->connect("not an endpoint", kLimit, note);
  EXPECT_EQ(codes.size(), 1u);  // Never from within connect().
  ASSERT_TRUE(until([&] { return codes.size() == 2; }));
  EXPECT_EQ(codes, (std::vector<Code>{Code::kUnavailable, Code::kInvalidArgument}));
}

TEST_P(Contract, ListeningTwiceOnOneEndpointIsUnavailable) {
  const auto again = transport_->listen(acceptor_->endpoint(), [](std::unique_ptr<Channel>) {});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.code(), Code::kUnavailable);
  EXPECT_EQ(transport_->listen("nonsense", [](std::unique_ptr<Channel>) {}).code(), Code::kInvalidArgument);
}

// What strangers do to a port that they can reach.
class TcpPort : public Contract {
 protected:
  void SetUp() override {
    Contract::SetUp();
    if (!GetParam().is_tcp_port) GTEST_SKIP() << "no port";
  }
  // A raw connection, and the channel that was accepted for it as b_.
  std::unique_ptr<net::Stream> intrude() {
    std::unique_ptr<net::Stream> raw;
    const auto to = net::Endpoint::parse(acceptor_->endpoint());
    const auto connecting = net::connect(
        loop_, *to, kLimit, [&](Result<std::unique_ptr<net::Stream>> stream) { raw = *std::move(stream); });
    EXPECT_TRUE(until([&] { return raw && !accepted_.empty(); }));
    b_ = {};
    b_.channel = std::move(accepted_.back());
    accepted_.pop_back();
    b_.listen_to_all();
    return raw;
  }
  void expect_closed_and_alive(Code code) {
    ASSERT_TRUE(until([&] { return !b_.closed.empty(); }));
    EXPECT_EQ(b_.closed[0].code, code) << b_.closed[0].detail;
    b_ = {};
    join_and_listen();
    ASSERT_TRUE(a_.channel->send_control(bytes_of("alive")).ok());
    ASSERT_TRUE(until([&] { return !b_.log.empty(); }));
  }
};

TEST_P(TcpPort, GarbageClosesItsChannelAsMalformedAndTheListenerLives) {
  for (unsigned seed = 1; seed < 20; ++seed) {
    const auto raw = intrude();
    const std::vector<std::byte> garbage = pattern(4096, seed);
    raw->write({garbage}, [](Status) {});
    expect_closed_and_alive(Code::kMalformed);
  }
  const auto raw = intrude();
  raw->write({bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n")}, [](Status) {});
  expect_closed_and_alive(Code::kMalformed);
}

TEST_P(TcpPort, AHalfOpenConnectionEndsAsUnavailableAndBlocksNobody) {
  auto silent = intrude();
  End waiting = std::move(b_);
  waiting.listen_to_all();
  auto half = intrude();
  half->write({bytes_of("ISH1\x01")}, [&](Status) { half.reset(); });
  expect_closed_and_alive(Code::kUnavailable);
  EXPECT_TRUE(waiting.closed.empty());
  silent.reset();
  ASSERT_TRUE(until([&] { return !waiting.closed.empty(); }));
}

TEST_P(TcpPort, ALengthBeyondTheLimitIsRefusedBeforeItIsAllocated) {
  const auto raw = intrude();
  const std::string_view header("ISH1\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f", 16);
  raw->write({bytes_of(header)}, [](Status) {});
  expect_closed_and_alive(Code::kMalformed);
}

const auto kName = [](const ::testing::TestParamInfo<Subject>& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Transports, Contract, ::testing::ValuesIn(kTransports), kName);
INSTANTIATE_TEST_SUITE_P(Transports, TcpPort, ::testing::ValuesIn(kTransports), kName);

}  // namespace
}  // namespace isthmus::transport
