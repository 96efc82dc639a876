// SPDX-License-Identifier: Apache-2.0
// For tests: both cores, face to face, with one state of 600 tokens that has been prefilled.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "handoff/core/consumer.h"
#include "handoff/core/producer.h"
#include "sim/scene.h"

namespace isthmus::handoff {

// Staging of both ends, and what may come early.
struct TestRoom {
  std::uint64_t at_producer = 0, at_consumer = 0, early_bytes = 0;
};

class TestCores {
 public:
  static constexpr SessionId kSession = 1;
  inline static const Id128 kProducer{1, 20}, kConsumer{1, 10}, kReservation{5, 1};

  explicit TestCores(TestRoom room, std::uint32_t channels, bool is_same_host = false)
      : at_consumer{Capacity{{1000, 0}, room.at_consumer}},
        at_producer{Capacity{{10'000, 0}, room.at_producer}},
        d{ConsumerOptions{"d1",
                          kConsumer,
                          sim::test_key(1),
                          {sim::target_descriptor()},
                          4,
                          {},
                          limits_with(room.early_bytes)},
          &at_consumer} {
    connect(kSession, channels, is_same_host);
    Reservation spec;
    spec.id = kReservation;
    spec.nonce = {6, 1};
    spec.source = sim::source_descriptor().digest();
    spec.tokens = {0, 600};
    spec.deadline = now + std::chrono::seconds(60);
    spec.pinned = {600, 0};
    ProducerActions said;
    ticket = *p.admitted(spec, now, said);
    p.prefill_done(kReservation, {sim::token_digest_of(600), {42}, wire::FinishState::kNone}, now, said);
  }

  void connect(SessionId session, std::uint32_t channels, bool is_same_host) {
    const Peer producer{"p1", kProducer, sim::test_key(1), {sim::source_descriptor()}, is_same_host};
    const Peer consumer{"d1", kConsumer, sim::test_key(1), {sim::target_descriptor()}, is_same_host};
    at_d([&](auto& o) { EXPECT_TRUE(d.session_up(session, producer, now, o).ok()); });
    at_p([&](auto& o) { EXPECT_TRUE(p.session_up(session, consumer, now, o).ok()); });
    for (std::uint32_t number = 1; number <= channels; ++number) {
      p.channel_up({session, number});
      EXPECT_TRUE(d.channel_up({session, number}).ok());
    }
  }
  // What an event brings, with the cores' own equations after it.
  template <typename Call>
  ConsumerActions at_d(Call event) {
    ConsumerActions actions;
    event(actions);
    EXPECT_TRUE(d.check().ok()) << d.check().error().text();
    return actions;
  }
  template <typename Call>
  ProducerActions at_p(Call event) {
    ProducerActions actions;
    event(actions);
    EXPECT_TRUE(p.check().ok()) << p.check().error().text();
    return actions;
  }
  ConsumerActions to_d(const wire::Frame& frame, SessionId session = kSession) {
    return at_d([&](auto& o) { EXPECT_TRUE(d.frame_in(session, frame, now, o).ok()); });
  }
  ProducerActions to_p(const wire::Frame& frame, SessionId session = kSession) {
    return at_p([&](auto& o) { EXPECT_TRUE(p.frame_in(session, frame, now, o).ok()); });
  }
  Begin whole(bool is_direct = false) const {
    Begin begin;
    begin.session = kSession;
    begin.ticket = ticket;
    begin.target = sim::target_descriptor().digest();
    begin.wanted = {0, 600};
    begin.token_digest = sim::token_digest_of(600);
    begin.deadline = now + std::chrono::seconds(60);
    begin.destination = {600, 0};
    begin.is_direct = is_direct;
    return begin;
  }
  wire::Open open(const Begin& begin) {
    return sim::frames<wire::Open>(at_d([&](auto& o) { handoff = *d.begin(begin, now, o); })).at(0);
  }
  wire::Open open(bool is_direct = false) { return open(whole(is_direct)); }

  static Limits limits_with(std::uint64_t early_bytes) {
    Limits limits;
    limits.early_bytes_max = early_bytes;
    return limits;
  }

  Instant now{std::chrono::seconds(100)};
  Ledger at_consumer, at_producer;
  ConsumerCore d;
  ProducerCore p{ProducerOptions{"p1",
                                 kProducer,
                                 Instant{std::chrono::seconds(90)},
                                 sim::test_key(1),
                                 {sim::source_descriptor()},
                                 {},
                                 {}},
                 &at_producer};
  std::string ticket;
  wire::HandoffId handoff;
};

}  // namespace isthmus::handoff
