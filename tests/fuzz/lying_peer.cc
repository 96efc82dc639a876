// SPDX-License-Identifier: Apache-2.0
// The liar's frames stay near the truth: far from it the first check refuses them.
#include "fuzz/lying_peer.h"

#include <utility>
#include <variant>

#include "sim/scene.h"

namespace isthmus::fuzz {
namespace {

using namespace handoff;
using namespace handoff::sim;

constexpr std::uint64_t kTokens = 600;
constexpr int kMovesMax = 300;
constexpr std::uint32_t kChannels = 2;
const Id128 kSelf{1, 1}, kPeer{1, 2}, kReservation{5, 1}, kNonce{6, 1}, kPeersReservation{5, 2};

Key session_key() {
  return test_key(3);
}

Peer peer() {
  return {"peer", kPeer, session_key(), {source_descriptor(), target_descriptor()}};
}

std::string ticket_of_peer() {
  const wire::Ticket ticket{
      "peer", kPeer, kPeersReservation, source_descriptor().digest(), {0, kTokens}, 1'000'000, {6, 2}, false};
  return wire::mint(ticket, test_key(1)).value();
}

}  // namespace

LyingPeer::LyingPeer(FuzzedDataProvider& choices)
    : choices_(choices),
      producer_ledger_(Capacity{{10'000, 0}, std::uint64_t{3} * kTestTile * 8}),
      consumer_ledger_(Capacity{{1000, 0}, std::uint64_t{20} * kTestTile * 8}),
      producer_({"self", kSelf, now_, test_key(1), {source_descriptor()}, {}, {}}, &producer_ledger_),
      consumer_({"self", kSelf, test_key(1), {target_descriptor()}, 4, {}, {}}, &consumer_ledger_),
      peers_ticket_(ticket_of_peer()) {}

void LyingPeer::run() {
  link_changes();
  for (int moves = 0; moves < kMovesMax && choices_.remaining_bytes() > 0; ++moves) move_once();
  settle();
}

void LyingPeer::move_once() {
  switch (small(7)) {
    case 0:
    case 1:
      return peer_sends();
    case 2:
      return peer_sends_data();
    case 3:
    case 4:
      if (!owed_.empty()) shell_reports(small(63) % owed_.size(), small(15) == 15);
      return;
    case 5:
      return engine_goes_on();
    case 6:
      return wait(std::chrono::milliseconds(small(4000)));
    default:
      if (small(7) == 7) link_changes();
  }
}

wire::Address LyingPeer::near(const wire::Address& truth) {
  wire::Address address = truth;
  address.attempt = 1 + small(2);
  address.generation = small(3);
  address.handoff.sequence += small(15) == 15 ? 1 : 0;
  return address;
}

wire::Frame LyingPeer::frame_to_producer() {
  const wire::Address address = near({{kPeer, 1 + small(1)}, 1, 1});
  switch (small(5)) {
    case 0:
    case 1: {
      wire::Open open{address,
                      ticket_,
                      {},
                      target_descriptor().digest(),
                      {small(2) * 100, kTokens},
                      kv::Exactness::kLossless,
                      0,
                      60'000};
      open.address.generation = 0;
      if (small(3) != 0) open.codecs = {static_cast<wire::Codec>(small(2)), wire::Codec::kZstdPlanes};
      open.proof = wire::open_proof(session_key(), kNonce, address.handoff, address.attempt);
      return open;
    }
    case 2:
      return wire::Credit{address, small(8), small(6), {1, 1 + small(2)}};
    case 3:
      return wire::Done{address};
    case 4:
      if (small(1) == 0) return wire::Cancel{address, "no", {1, small(3)}};
      return wire::Abort{address, Code::kAborted, "no", {1, small(3)}};
    default:
      return wire::Renew{{{address, small(5), small(4)}, {address, 1, 1}}};
  }
}

wire::Frame LyingPeer::frame_to_consumer() {
  const wire::Address address = near({handoff_.value_or(wire::HandoffId{kSelf, 1}), 1, 1});
  const PlanFacts facts = plan_facts({0, kTokens});
  switch (small(7)) {
    case 0:
    case 1: {
      const kv::Verdict verdict = kv::negotiate(source_descriptor(), target_descriptor(), {});
      wire::Plan plan{address,
                      source_descriptor().digest(),
                      {0, kTokens},
                      verdict.kind,
                      verdict.wire.text(),
                      facts.digest,
                      facts.chunk_count,
                      facts.slot_bytes,
                      facts.total_bytes,
                      small(20'000)};
      plan.codec = static_cast<wire::Codec>(small(2));
      if (small(7) == 7) plan.chunk_count = choices_.ConsumeIntegral<std::uint32_t>();
      if (small(7) == 7) plan.slot_bytes = choices_.ConsumeIntegral<std::uint64_t>();
      return plan;
    }
    case 2: {
      wire::Seal seal{address,
                      facts.digest,
                      {0, kTokens},
                      token_digest_of(kTokens),
                      {},
                      {42},
                      small(7) == 7 ? wire::FinishState::kStop : wire::FinishState::kNone,
                      {}};
      seal.mac = wire::seal_mac(session_key(), seal);
      return seal;
    }
    case 3:
      return wire::Reject{address, Code::kIncompatible, "no", wire::TicketFault::kNone, {}};
    case 4:
      if (small(1) == 0) return wire::Promised{address, small(40'000)};
      return wire::Busy{address, small(1000)};
    case 5:
      if (small(1) == 0) return wire::Restart{address};
      return wire::Released{address, static_cast<wire::ReleaseOutcome>(small(4))};
    case 6:
      return wire::Abort{address, Code::kAborted, "no", {1}};
    default:
      return wire::Renewed{{{address, small(5), small(20'000)}}};
  }
}

void LyingPeer::deliver(const wire::Frame& frame) {
  Status status;
  if (wire::is_for_consumer(frame, kSelf)) {
    consume([&](auto& out) { status = consumer_.frame_in(session_, frame, now_, out); });
  } else {
    produce([&](auto& out) { status = producer_.frame_in(session_, frame, now_, out); });
  }
  if (!status.ok()) link_changes();  // As the shell does: the session is closed.
}

void LyingPeer::peer_sends() {
  if (!is_up_) return;
  const wire::Frame frame = small(1) == 0 ? frame_to_producer() : frame_to_consumer();
  const auto bytes = wire::encode(frame);
  // A liar's own encoder would let it pass, this end's decoder doesn't: the shell closes the session.
  if (!bytes.ok()) return link_changes();
  deliver(wire::decode(*bytes).value());
}

void LyingPeer::peer_sends_data() {
  if (!is_up_ || !handoff_) return;
  const ChannelId channel{session_, 1 + small(kChannels)};
  if (channel.number > kChannels) return;
  const wire::Address address = near({*handoff_, 1, 1});
  if (small(3) == 0) {
    consume([&](auto& out) {
      consumer_.fence_seen(channel, wire::fence_token(address.handoff, address.attempt), now_, out);
    });
    return;
  }
  const PlanFacts facts = plan_facts({0, kTokens});
  const std::uint32_t index = small(facts.chunk_count);
  wire::ChunkHeader header = sim::chunk_header(facts, address, index % facts.chunk_count, small(4));
  header.index = index;
  if (small(2) == 0) {
    header.codec = wire::Codec::kZstdPlanes;
    header.stored_bytes = header.raw_bytes / (1 + small(2));  // Or no fewer: a lie.
  }
  const auto judged = consumer_.judge(channel, header, header.stored_bytes, now_);
  check();
  if (judged.ok()) {
    if (judged->place) ISTHMUS_CHECK(judged->slot < 4 && judged->bytes <= facts.slot_bytes);
    consume([&](auto& out) { consumer_.chunk_arrived(channel, now_, out); });
  } else {
    consume([&](auto& out) { consumer_.channel_down(channel, judged.error(), now_, out); });
    produce([&](auto& out) { producer_.channel_down(channel, now_, out); });
  }
}

void LyingPeer::shell_reports(std::size_t which, bool fails) {
  const auto report = std::move(owed_[which]);
  owed_.erase(owed_.begin() + static_cast<std::ptrdiff_t>(which));
  report(fails);
}

void LyingPeer::engine_goes_on() {
  switch (small(6)) {
    case 0:
      if (ticket_.empty()) {
        Reservation made;
        made.id = kReservation;
        made.nonce = kNonce;
        made.source = source_descriptor().digest();
        made.tokens = {0, kTokens};
        made.deadline = now_ + std::chrono::seconds(60);
        made.pinned = {kTokens, 0};
        produce([&](auto& out) {
          const auto minted = producer_.admitted(made, now_, out);
          if (minted.ok()) ticket_ = *minted;
        });
      }
      return;
    case 1:
      watermark_ = std::min<std::uint64_t>(kTokens - 1, watermark_ + small(300));
      return produce([&](auto& out) { producer_.grew(kReservation, watermark_, now_, out); });
    case 2:
      return produce([&](auto& out) {
        producer_.prefill_done(kReservation, {token_digest_of(kTokens), {42}, wire::FinishState::kNone}, now_,
                               out);
      });
    case 3:
      watermark_ = 0;
      return produce([&](auto& out) { producer_.preempted(kReservation, now_, out); });
    case 4:
      if (small(7) == 7) {
        produce(
            [&](auto& out) { producer_.cancel(kReservation, Error{Code::kCancelled, "left"}, now_, out); });
      }
      return;
    case 5:
      if (small(7) == 7 && handoff_) {
        consume([&](auto& out) { consumer_.cancel(*handoff_, Error{Code::kCancelled, "left"}, now_, out); });
      }
      return;
    default:
      if (!is_up_) return;
      Begin begin{session_,
                  peers_ticket_,
                  target_descriptor().digest(),
                  {0, kTokens},
                  token_digest_of(kTokens),
                  {},
                  now_ + std::chrono::seconds(30),
                  {kTokens, 0},
                  0};
      consume([&](auto& out) {
        const auto begun = consumer_.begin(std::move(begin), now_, out);
        if (begun.ok()) handoff_ = *begun;
      });
  }
}

void LyingPeer::link_changes() {
  if (is_up_) {
    produce([&](auto& out) { producer_.session_down(session_, now_, out); });
    consume([&](auto& out) { consumer_.session_down(session_, now_, out); });
    ++session_;
  } else {
    produce([&](auto& out) { ISTHMUS_CHECK(producer_.session_up(session_, peer(), now_, out).ok()); });
    consume([&](auto& out) { ISTHMUS_CHECK(consumer_.session_up(session_, peer(), now_, out).ok()); });
    for (std::uint32_t number = 1; number <= kChannels; ++number) {
      producer_.channel_up({session_, number});
      ISTHMUS_CHECK(consumer_.channel_up({session_, number}).ok());
    }
  }
  is_up_ = !is_up_;
}

void LyingPeer::wait(Duration time) {
  now_ = now_ + time;
  produce([&](auto& out) { producer_.tick(now_, out); });
  consume([&](auto& out) { consumer_.tick(now_, out); });
}

// The peer falls silent, the shell reports what it owes: nothing may be left.
void LyingPeer::settle() {
  if (is_up_) link_changes();
  for (int rounds = 0; rounds < 200; ++rounds) {
    while (!owed_.empty()) shell_reports(0, false);
    wait(std::chrono::seconds(1));
  }
  for (const GrantId grant : owned_) consumer_ledger_.release(grant);
  ISTHMUS_CHECK(producer_.live() == 0 && consumer_.live() == 0 && consumer_.quarantined() == 0);
  ISTHMUS_CHECK(producer_ledger_.live() == 0 && consumer_ledger_.live() == 0);
}

void LyingPeer::check() const {
  const Status producer = producer_.check(), consumer = consumer_.check();
  ISTHMUS_CHECK(producer.ok());
  ISTHMUS_CHECK(consumer.ok());
}

void LyingPeer::act(const ProducerActions& actions) {
  for (const ProducerAction& action : actions) {
    if (const auto* plan = std::get_if<MakePlan>(&action)) {
      owed_.emplace_back([this, plan = *plan](bool fails) {
        produce([&](auto& out) {
          if (fails)
            return producer_.plan_failed(plan.handoff, plan.attempt, {Code::kExhausted, "x"}, now_, out);
          PlanFacts facts = plan_facts(plan.tokens);
          if (plan.may_compress) facts.codec = wire::Codec::kZstdPlanes;
          producer_.plan_ready(plan.handoff, plan.attempt, std::move(facts), now_, out);
        });
      });
    } else if (const auto* send = std::get_if<SendChunk>(&action)) {
      owed_.emplace_back([this, chunk = send->chunk](bool fails) {
        if (!fails) produce([&](auto& out) { producer_.chunk_packed(chunk, now_, out); });
        produce([&](auto& out) {
          producer_.chunk_sent(chunk, fails ? Status(Error{Code::kUnavailable, "x"}) : ok_status(), now_,
                               out);
        });
      });
    } else if (const auto* seal = std::get_if<ComputeSeal>(&action)) {
      owed_.emplace_back([this, seal = *seal](bool) {
        produce([&](auto& out) {
          producer_.seal_ready(seal.handoff, seal.attempt, seal.generation, {}, now_, out);
        });
      });
    }
  }
}

void LyingPeer::act(const ConsumerActions& actions) {
  for (const ConsumerAction& action : actions) {
    if (const auto* plan = std::get_if<MakePlan>(&action)) {
      owed_.emplace_back([this, plan = *plan](bool fails) {
        consume([&](auto& out) {
          if (fails)
            return consumer_.plan_failed(plan.handoff, plan.attempt, {Code::kExhausted, "x"}, now_, out);
          consumer_.plan_ready(plan.handoff, plan.attempt, plan_facts(plan.tokens), now_, out);
        });
      });
    } else if (const auto* reserve = std::get_if<ReserveCapacity>(&action)) {
      owed_.emplace_back([this, reserve = *reserve](bool fails) {
        consume([&](auto& out) {
          if (fails)
            return consumer_.capacity_refused(reserve.handoff, reserve.attempt, {Code::kExhausted, "x"}, now_,
                                              out);
          consumer_.capacity_ready(reserve.handoff, reserve.attempt, now_, out);
        });
      });
    } else if (const auto* place = std::get_if<PlaceChunk>(&action)) {
      owed_.emplace_back([this, place = *place](bool fails) {
        consume([&](auto& out) {
          consumer_.chunk_placed(place, fails ? Status(Error{Code::kCorrupt, "x"}) : ok_status(), now_, out);
        });
      });
    } else if (const auto* verify = std::get_if<Verify>(&action)) {
      owed_.emplace_back([this, verify = *verify](bool fails) {
        consume([&](auto& out) {
          consumer_.verified(verify.handoff, verify.attempt,
                             fails ? Status(Error{Code::kCorrupt, "x"}) : ok_status(), now_, out);
        });
      });
    } else if (const auto* own = std::get_if<Own>(&action)) {
      owned_.push_back(own->destination);
    }
  }
}

}  // namespace isthmus::fuzz
