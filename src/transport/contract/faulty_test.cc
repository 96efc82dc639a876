// SPDX-License-Identifier: Apache-2.0
// What an armed fault injector does to each transport: typed errors, once, and nothing else.
#include <gtest/gtest.h>

#include <optional>

#include "base/bytes.h"
#include "net/run_until.h"
#include "transport/faulty/faulty.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace isthmus::transport {
namespace {

constexpr Duration kLimit = std::chrono::seconds(10);

struct Inner {
  const char* name;
  std::unique_ptr<Transport> (*make)(net::Loop&);
  const char* listen_at;
};

class Faulty : public ::testing::TestWithParam<Inner> {
 protected:
  void SetUp() override {
    transport_ = make_faulty(loop_, GetParam().make(loop_), faults_);
    acceptor_ = *transport_->listen(GetParam().listen_at, [this](std::unique_ptr<Channel> channel) {
      to_ = std::move(channel);
      to_->set_events(
          {.on_control = [this](std::vector<std::byte> frame) { log_ += "c" + std::string(text_of(frame)); },
           .on_incoming = [this](const Incoming& incoming) -> Result<Pieces> {
             if (incoming.is_shared) return Pieces();
             memory_.resize(incoming.bytes);
             return Pieces{memory_};
           },
           .on_data = [this](const Received& got) { log_ += "d" + std::string(text_of(got.bytes)); },
           .on_fence = [this](std::uint64_t token) { log_ += "f" + std::to_string(token); },
           .on_closed = [this](const Status& why) { to_closed_ = why.code(); }});
    });
    const auto pending =
        transport_->connect(acceptor_->endpoint(), kLimit,
                            [this](Result<std::unique_ptr<Channel>> made) { from_ = *std::move(made); });
    ASSERT_TRUE(until([this] { return from_ && to_; }));
    from_->set_events({.on_closed = [this](const Status& why) { from_closed_ = why.code(); }});
  }
  bool until(const std::function<bool()>& done) { return net::run_until(loop_, done, kLimit); }
  // Control "1", data "abc", fence 2, control "3".
  std::vector<Code> send_all() {
    payload_ = *from_->payload_memory(3);
    std::ranges::copy(bytes_of("abc"), payload_.bytes.begin());
    std::vector<Code> codes;
    codes.push_back(from_->send_control(bytes_of("1")).code());
    codes.push_back(
        from_->send_data({}, {payload_.bytes}, [this](const Status& why) { sent_.push_back(why.code()); })
            .code());
    codes.push_back(from_->send_fence(2).code());
    codes.push_back(from_->send_control(bytes_of("3")).code());
    return codes;
  }
  void arm(SentKind kind, Fault fault) {
    faults_->judge = [kind, fault](const SentFrame& frame) {
      return frame.kind == kind && frame.index == 0 ? fault : Fault::kNone;
    };
  }

  net::Loop loop_;
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Channel> from_, to_;
  PayloadMemory payload_;  // Kept until it is sent.
  std::vector<std::byte> memory_;
  std::string log_;
  std::vector<Code> sent_;
  std::optional<Code> from_closed_, to_closed_;
};

TEST_P(Faulty, HeldFramesKeepTheirOrder) {
  arm(SentKind::kData, Fault::kHold);
  EXPECT_EQ(send_all(), std::vector<Code>(4, Code::kOk));
  ASSERT_TRUE(until([&] { return log_ == "c1"; }));
  faults_->release();
  ASSERT_TRUE(until([&] { return log_ == "c1dabcf2c3" && sent_.size() == 1; }));
  EXPECT_EQ(sent_[0], Code::kOk);
}

TEST_P(Faulty, SendersOfHeldFramesAreToldOnRevoke) {
  arm(SentKind::kControl, Fault::kHold);
  send_all();
  from_->revoke();
  EXPECT_EQ(sent_, std::vector<Code>{Code::kCancelled});
  faults_->release();
  ASSERT_TRUE(until([&] { return to_closed_.has_value(); }));
  EXPECT_EQ(log_, "");
}

TEST_P(Faulty, OneByteOfAPayloadIsChangedAndTheSendersMemoryIsNot) {
  arm(SentKind::kData, Fault::kCorrupt);
  send_all();
  ASSERT_TRUE(until([&] { return sent_.size() == 1 && log_.size() == 10; }));
  EXPECT_EQ(log_, "c1daccf2c3");
}

TEST_P(Faulty, ARefusedSendIsExhaustedAndTakesNothing) {
  arm(SentKind::kData, Fault::kRefuse);
  EXPECT_EQ(send_all(), (std::vector<Code>{Code::kOk, Code::kExhausted, Code::kOk, Code::kOk}));
  ASSERT_TRUE(until([&] { return log_ == "c1f2c3"; }));
  EXPECT_TRUE(sent_.empty());
}

TEST_P(Faulty, ACutChannelIsUnavailableOnceToBothEnds) {
  arm(SentKind::kFence, Fault::kCut);
  const std::vector<Code> codes = send_all();
  EXPECT_EQ(codes[2], Code::kUnavailable);
  EXPECT_EQ(codes[3], Code::kUnavailable);
  ASSERT_TRUE(until([&] { return from_closed_ && to_closed_; }));
  EXPECT_EQ(*from_closed_, Code::kUnavailable);
  EXPECT_EQ(*to_closed_, Code::kUnavailable);
  EXPECT_EQ(sent_.size(), 1u);
}

TEST(SeededFaults, AreTheSameForASeedAndAsOftenAsAsked) {
  const auto one = seeded_faults(7, {.hold = 0.1, .corrupt = 0.2, .refuse = 0.1, .cut = 0.1});
  const auto same = seeded_faults(7, {.hold = 0.1, .corrupt = 0.2, .refuse = 0.1, .cut = 0.1});
  int seen[5] = {};
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const Fault fault = one({SentKind::kData, i});
    EXPECT_EQ(fault, same({SentKind::kData, i}));
    ++seen[static_cast<int>(fault)];
  }
  EXPECT_NEAR(seen[static_cast<int>(Fault::kCorrupt)], 2000, 200);
  EXPECT_NEAR(seen[static_cast<int>(Fault::kNone)], 5000, 300);
}

INSTANTIATE_TEST_SUITE_P(Transports, Faulty,
                         ::testing::Values(Inner{"tcp", make_tcp, "127.0.0.1:0"}, Inner{"shm", make_shm, ""}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace isthmus::transport
