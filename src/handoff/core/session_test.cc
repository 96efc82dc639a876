// SPDX-License-Identifier: Apache-2.0
// Sessions: who gets in, what a replay is worth, what a changed byte does.
#include "handoff/core/session.h"

#include <gtest/gtest.h>

#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using sim::source_descriptor;
using sim::target_descriptor;
using sim::test_id;
using sim::test_key;

using Bytes = std::vector<std::byte>;

Session make(SessionRole role, std::uint64_t life, std::uint8_t key = 1, std::uint64_t challenge = 77) {
  const bool dialer = role == SessionRole::kDialer;
  auto session = Session::make({test_key(key),
                                role,
                                dialer ? "d1" : "p1",
                                test_id(1, life),
                                test_id(2, challenge + life),
                                {dialer ? target_descriptor() : source_descriptor()},
                                {}});
  EXPECT_TRUE(session.ok());
  return *std::move(session);
}

struct Pair {
  Session dialer = make(SessionRole::kDialer, 10);
  Session acceptor = make(SessionRole::kAcceptor, 20);
};

// Both hellos and both proofs.
void establish(Pair& pair) {
  const auto to_acceptor = pair.acceptor.receive(pair.dialer.hello());
  const auto to_dialer = pair.dialer.receive(pair.acceptor.hello());
  ASSERT_TRUE(to_acceptor.ok() && to_dialer.ok());
  ASSERT_FALSE(pair.dialer.is_established() || pair.acceptor.is_established());
  const auto dialer = pair.dialer.receive(to_acceptor->send.at(0));
  const auto acceptor = pair.acceptor.receive(to_dialer->send.at(0));
  ASSERT_TRUE(dialer.ok() && acceptor.ok());
  ASSERT_TRUE(dialer->established && acceptor->established);
}

wire::Frame done() {
  return wire::Done{{{test_id(1, 10), 1}, 1, 1}};
}

TEST(Session, BothEndsKnowEachOtherAndShareAKey) {
  Pair pair;
  establish(pair);
  EXPECT_EQ(pair.dialer.peer().name, "p1");
  EXPECT_EQ(pair.acceptor.peer().incarnation, test_id(1, 10));
  EXPECT_EQ(pair.dialer.peer().session_key, pair.acceptor.peer().session_key);
  EXPECT_EQ(pair.dialer.id(), pair.acceptor.id());
  EXPECT_NE(pair.dialer.peer().descriptors.find(source_descriptor().digest()), nullptr);
  EXPECT_EQ(pair.dialer.peer().descriptors.find(target_descriptor().digest()), nullptr);
  Pair other;
  other.dialer = make(SessionRole::kDialer, 10, 1, 78);
  establish(other);
  EXPECT_NE(other.dialer.peer().session_key, pair.dialer.peer().session_key);  // Fresh challenges, fresh key.
}

TEST(Session, AFrameCrossesOnceAndInOrder) {
  Pair pair;
  establish(pair);
  const Bytes first = *pair.dialer.seal(done()), second = *pair.dialer.seal(done());
  EXPECT_EQ(pair.acceptor.receive(second).code(), Code::kAborted);
  const auto input = pair.acceptor.receive(first);
  ASSERT_TRUE(input.ok());
  EXPECT_TRUE(std::holds_alternative<wire::Done>(*input->frame));
  EXPECT_EQ(pair.acceptor.receive(first).code(), Code::kAborted);  // Replay.
  EXPECT_TRUE(pair.acceptor.receive(second).ok());
  EXPECT_EQ(pair.dialer.receive(*pair.dialer.seal(done())).code(),
            Code::kCorrupt);  // Reflected: each direction has its key.
}

TEST(Session, NoChangedByteOfAFramePasses) {
  Pair pair;
  establish(pair);
  const Bytes bytes = *pair.dialer.seal(done());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    Bytes changed = bytes;
    changed[at] ^= std::byte{1};
    EXPECT_EQ(pair.acceptor.receive(changed).code(), Code::kCorrupt) << at;
  }
  EXPECT_EQ(pair.acceptor.receive(std::span(bytes).first(20)).code(), Code::kMalformed);
  EXPECT_TRUE(pair.acceptor.receive(bytes).ok());
}

// R1: a recorded handshake of a past life is a HELLO and a proof, and the proof is of another challenge.
TEST(Session, AReplayedHelloOfADeadLifeNeverEstablishes) {
  Pair past;
  const Bytes hello = past.dialer.hello();
  ASSERT_TRUE(past.acceptor.receive(hello).ok());
  const auto to_acceptor = past.dialer.receive(past.acceptor.hello());
  const Bytes proof = to_acceptor->send.at(0);

  Session acceptor = make(SessionRole::kAcceptor, 20, 1, 99);  // A new session, so a new challenge.
  ASSERT_TRUE(acceptor.receive(hello).ok());
  EXPECT_FALSE(acceptor.is_established());
  EXPECT_EQ(acceptor.receive(proof).code(), Code::kUnavailable);
  EXPECT_FALSE(acceptor.is_established());
}

TEST(Session, WithoutTheFleetKeyNobodyGetsIn) {
  Session dialer = make(SessionRole::kDialer, 10, 2);
  Session acceptor = make(SessionRole::kAcceptor, 20, 1);
  const auto to_acceptor = dialer.receive(acceptor.hello());
  ASSERT_TRUE(acceptor.receive(dialer.hello()).ok());
  EXPECT_EQ(acceptor.receive(to_acceptor->send.at(0)).code(), Code::kUnavailable);
}

TEST(Session, AProofCantBeSentBackToItsMaker) {
  Session first = make(SessionRole::kAcceptor, 20);
  Session mirror = make(SessionRole::kDialer, 10, 9);  // Doesn't have the key: it returns what it gets.
  const auto proof = first.receive(mirror.hello());
  ASSERT_TRUE(proof.ok());
  EXPECT_EQ(first.receive(proof->send.at(0)).code(), Code::kUnavailable);
}

TEST(Session, FramesOutOfTurnAreRefused) {
  Session acceptor = make(SessionRole::kAcceptor, 20);
  EXPECT_EQ(acceptor.receive(*wire::encode(done())).code(), Code::kUnavailable);
  Session dialer = make(SessionRole::kDialer, 10);
  ASSERT_TRUE(acceptor.receive(dialer.hello()).ok());
  EXPECT_EQ(acceptor.receive(*wire::encode(done())).code(), Code::kUnavailable);
  EXPECT_EQ(acceptor.receive(Bytes(10)).code(), Code::kMalformed);
  Pair pair;
  establish(pair);
  EXPECT_EQ(pair.acceptor.receive(*pair.dialer.seal(wire::HelloProof{})).code(), Code::kUnavailable);
}

TEST(Session, AnUnexpectedNameIsRefused) {
  auto dialer =
      Session::make({test_key(1), SessionRole::kDialer, "d1", test_id(1, 1), test_id(2, 1), {}, "p2"});
  ASSERT_TRUE(dialer.ok());
  EXPECT_EQ(dialer->receive(make(SessionRole::kAcceptor, 20).hello()).code(), Code::kUnavailable);
}

TEST(Session, DataChannelsAreBoundToTheirSession) {
  Pair pair;
  establish(pair);
  const auto parse = [](const Bytes& bytes) { return std::get<wire::DataHello>(*wire::decode(bytes)); };
  const wire::DataHello hello = parse(*pair.dialer.data_hello(1));
  EXPECT_EQ(hello.session, pair.acceptor.id());
  wire::DataHello forged = hello;
  forged.number = 2;
  EXPECT_EQ(pair.acceptor.accept_data(forged).code(), Code::kUnavailable);
  const auto answer = pair.acceptor.accept_data(hello);
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(pair.dialer.confirm_data(parse(*answer)).ok());
  EXPECT_FALSE(pair.dialer.confirm_data(hello).ok());                  // The own hello isn't an answer.
  EXPECT_EQ(pair.acceptor.accept_data(hello).code(), Code::kAborted);  // Replay.
  Pair other;
  other.acceptor = make(SessionRole::kAcceptor, 21);
  establish(other);
  EXPECT_EQ(other.acceptor.accept_data(hello).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace isthmus::handoff
