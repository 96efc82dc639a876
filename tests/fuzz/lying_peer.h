// SPDX-License-Identifier: Apache-2.0
// One agent's two cores, a shell that reports late or not in order, and a peer that is authenticated and
// sends whatever it likes. In the end every duty must be over.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/input.h"
#include "handoff/core/consumer.h"
#include "handoff/core/ledger.h"
#include "handoff/core/producer.h"

namespace isthmus::fuzz {

class LyingPeer {
 public:
  explicit LyingPeer(FuzzedDataProvider& choices);
  void run();

 private:
  void move_once();
  void peer_sends();
  void peer_sends_data();
  wire::Frame frame_to_producer();
  wire::Frame frame_to_consumer();
  void deliver(const wire::Frame& frame);
  void shell_reports(std::size_t which, bool fails);
  void engine_goes_on();
  void link_changes();
  void wait(Duration time);
  void settle();
  void check() const;

  void act(const handoff::ProducerActions& actions);
  void act(const handoff::ConsumerActions& actions);
  template <typename Event>
  void produce(Event event) {
    handoff::ProducerActions out;
    event(out);
    act(out);
    check();
  }
  template <typename Event>
  void consume(Event event) {
    handoff::ConsumerActions out;
    event(out);
    act(out);
    check();
  }

  std::uint32_t small(std::uint32_t max) { return choices_.ConsumeIntegralInRange<std::uint32_t>(0, max); }
  wire::Address near(const wire::Address& truth);

  FuzzedDataProvider& choices_;
  Instant now_{std::chrono::hours(1)};
  handoff::Ledger producer_ledger_, consumer_ledger_;
  handoff::ProducerCore producer_;
  handoff::ConsumerCore consumer_;
  // What the shell still owes an answer; called with whether it failed.
  std::vector<std::function<void(bool fails)>> owed_;
  std::string ticket_, peers_ticket_;
  std::optional<wire::HandoffId> handoff_;  // Ours, with the peer as producer.
  handoff::SessionId session_ = 1;          // Of the peer.
  bool is_up_ = false;
  std::uint64_t watermark_ = 0;
  std::vector<handoff::GrantId> owned_;
};

}  // namespace isthmus::fuzz
