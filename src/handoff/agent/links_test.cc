// SPDX-License-Identifier: Apache-2.0
#include "handoff/agent/links.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "net/run_until.h"
#include "transport/faulty/faulty.h"
#include "transport/tcp/tcp.h"

namespace isthmus::handoff {
namespace {

constexpr Duration kLimit = std::chrono::seconds(60);

LinkOptions options_of(std::string name, std::uint64_t incarnation) {
  LinkOptions options;
  options.name = std::move(name);
  options.fleet_key.fill(std::byte{3});
  options.incarnation = {0, incarnation};
  options.connect_max = options.handshake_max = options.silence_max = kLimit;
  return options;
}

LinkEvents deaf() {
  LinkEvents events;
  events.session_up = [](SessionId, const Peer&) { return ok_status(); };
  events.session_down = [](SessionId) {};
  events.channel_up = [](ChannelId) { return ok_status(); };
  events.channel_down = [](ChannelId, const Status&) {};
  return events;
}

// Frames of one connection may be lost and sent again while those of another arrive.
TEST(Links, ADataChannelThatOvertakesTheProofOfItsSessionWaitsForIt) {
  constexpr std::uint64_t kProof = 1, kDataHello = 2;  // Of the dialer's control frames.
  net::Loop loop;
  const auto tcp = transport::make_tcp(loop);
  const auto faults = std::make_shared<transport::Faults>();
  const auto faulty = transport::make_faulty(loop, transport::make_tcp(loop), faults);
  Links acceptor(loop, {tcp.get()}, options_of("p", 1), deaf());
  ASSERT_TRUE(acceptor.listen("127.0.0.1:0").ok());
  std::optional<Error> refused;
  acceptor.on_refused = [&](const Error& why) { refused = why; };
  Links dialer(loop, {faulty.get()}, options_of("d", 2), deaf());
  std::unique_ptr<net::Loop::Timer> later;
  faults->judge = [&](const transport::SentFrame& frame) {
    if (frame.index == kDataHello)
      later = loop.after(std::chrono::milliseconds(20), [&] { faults->release(); });
    return frame.index == kProof ? transport::Fault::kHold : transport::Fault::kNone;
  };
  std::optional<Result<SessionId>> session;
  dialer.connect(dialer.ways(acceptor.endpoints()).at(0), "p",
                 [&](Result<SessionId> made) { session = std::move(made); });
  ASSERT_TRUE(net::run_until(loop, [&] { return session.has_value(); }, kLimit));
  EXPECT_TRUE(session->ok()) << session->error().text();
  EXPECT_FALSE(refused.has_value()) << refused->text();
}

}  // namespace
}  // namespace isthmus::handoff
