// SPDX-License-Identifier: Apache-2.0
// What the producer's and consumer's cores cost: time an event, memory a live reservation, and whether either
// grows with the number of live ones. `handoff_cost`, without arguments.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "handoff/core/consumer.h"
#include "handoff/core/producer.h"
#include "sim/scene.h"

namespace isthmus::handoff::sim {
namespace {

constexpr std::uint64_t kTokens = 2048;  // Eight chunks.
constexpr SessionId kSession = 1;
const Id128 kConsumer{7, 1}, kProducer{7, 2};
constexpr int kRuns = 9;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::size_t used_bytes() {
  return mallinfo2().uordblks;
}

// One producer with `live` reservations, each opened and growing.
class Producer {
 public:
  explicit Producer(std::uint32_t live) : ledger_({{1ull << 40, 0}, 1ull << 40}) {
    ProducerOptions options{"p", kProducer, Instant{}, test_key(1), {source_descriptor()}, {}, {}};
    options.limits.reservations_max = live + 1;
    core_ = std::make_unique<ProducerCore>(std::move(options), &ledger_);
    ISTHMUS_CHECK(
        core_->session_up(kSession, Peer{"d", kConsumer, test_key(1), {target_descriptor()}}, now_, out_)
            .ok());
    core_->channel_up({kSession, 1});
    const std::size_t before = used_bytes();
    for (std::uint32_t i = 0; i < live; ++i) open(i);
    bytes_each_ = static_cast<double>(used_bytes() - before) / live;
  }

  void open(std::uint32_t i) {
    Reservation spec;
    spec.id = test_id(9, i + 1);
    spec.nonce = test_id(10, i + 1);
    spec.source = source_;
    spec.tokens = {0, kTokens};
    spec.pinned = {kTokens, 0};
    spec.lease = spread(i);
    const std::string ticket = *core_->admitted(spec, now_, out_);
    wire::Open frame;
    frame.address = {{kConsumer, i + 1}, 1, 0};
    frame.ticket = ticket;
    frame.proof = wire::open_proof(test_key(1), spec.nonce, frame.address.handoff, 1);
    frame.target = target_;
    frame.wanted = spec.tokens;
    frame.deadline_ms = 1'000'000'000;
    ISTHMUS_CHECK(core_->frame_in(kSession, frame, now_, out_).ok());
    core_->plan_ready(frame.address.handoff, 1, plan_facts(spec.tokens), now_, out_);
    out_.clear();
  }
  // Leases that don't end together, and none here.
  static Duration spread(std::uint32_t i) { return std::chrono::hours(10) + std::chrono::milliseconds(i); }

  // Events of a reservation's life after OPEN: CREDIT, growth, packing, sending; nanoseconds each.
  double events(std::uint32_t first, std::uint32_t count) {
    std::uint64_t events = 0;
    const Instant start = now();
    for (std::uint32_t i = first; i < first + count; ++i) {
      const wire::HandoffId handoff{kConsumer, i + 1};
      ISTHMUS_CHECK(core_->frame_in(kSession, wire::Credit{{handoff, 1, 1}, 8, 8, {1}}, now_, out_).ok());
      core_->tick(now_, out_);
      core_->grew(test_id(9, i + 1), kTokens, now_, out_);
      for (std::uint32_t chunk = 0; chunk < 8; ++chunk) {
        const ChunkRef ref{handoff, 1, 1, chunk};
        core_->chunk_packed(ref, now_, out_);
        core_->chunk_sent(ref, ok_status(), now_, out_);
      }
      events += 19;
      out_.clear();
    }
    return static_cast<double>((now() - start).count()) / static_cast<double>(events);
  }
  double bytes_each() const { return bytes_each_; }

 private:
  static Instant now() { return isthmus::now(); }
  Instant now_{std::chrono::seconds(1)};
  Ledger ledger_;
  std::unique_ptr<ProducerCore> core_;
  Digest128 source_ = source_descriptor().digest(), target_ = target_descriptor().digest();
  ProducerActions out_;
  double bytes_each_ = 0;
};

// One consumer with `live` handoffs, each receiving.
class Consumer {
 public:
  explicit Consumer(std::uint32_t live) : ledger_({{1ull << 40, 0}, 1ull << 40}) {
    ConsumerOptions options{"d", kConsumer, test_key(1), {target_descriptor()}, 8, {}, {}};
    options.limits.handoffs_max = live + 1;
    core_ = std::make_unique<ConsumerCore>(std::move(options), &ledger_);
    ISTHMUS_CHECK(
        core_->session_up(kSession, Peer{"p", kProducer, test_key(1), {source_descriptor()}}, now_, out_)
            .ok());
    ISTHMUS_CHECK(core_->channel_up({kSession, 1}).ok());
    verdict_ = kv::negotiate(source_descriptor(), target_descriptor(), {});
    const std::size_t before = used_bytes();
    for (std::uint32_t i = 0; i < live; ++i) receive(i);
    bytes_each_ = static_cast<double>(used_bytes() - before) / live;
  }

  void receive(std::uint32_t i) {
    Begin wish;
    wish.session = kSession;
    wish.ticket = *wire::mint(
        {"p", kProducer, test_id(9, i + 1), source_, {0, kTokens}, 1'000'000'000, test_id(10, i + 1), false},
        test_key(1));
    wish.target = target_;
    wish.wanted = {0, kTokens};
    wish.token_digest = token_digest_of(kTokens);
    wish.destination = {kTokens, 0};
    const wire::HandoffId handoff = *core_->begin(std::move(wish), now_, out_);
    const PlanFacts facts = plan_facts({0, kTokens});
    const wire::Plan plan{{handoff, 1, 1},      source_,      {0, kTokens},      verdict_.kind,
                          verdict_.wire.text(), facts.digest, facts.chunk_count, facts.slot_bytes,
                          facts.total_bytes,    1'000'000'000};
    ISTHMUS_CHECK(core_->frame_in(kSession, plan, now_, out_).ok());
    core_->plan_ready(handoff, 1, facts, now_, out_);
    core_->capacity_ready(handoff, 1, now_, out_);
    out_.clear();
  }

  // Chunk headers, arrivals and placements; nanoseconds each.
  double events(std::uint32_t first, std::uint32_t count) {
    const PlanFacts facts = plan_facts({0, kTokens});
    std::uint64_t events = 0;
    const Instant start = isthmus::now();
    for (std::uint32_t i = first; i < first + count; ++i) {
      for (std::uint32_t chunk = 0; chunk < 8; ++chunk) {
        const wire::ChunkHeader header = chunk_header(facts, {{kConsumer, i + 1}, 1, 1}, chunk, chunk % 8);
        ISTHMUS_CHECK(core_->judge({kSession, 1}, header, header.stored_bytes, now_).ok());
        core_->chunk_arrived({kSession, 1}, now_, out_);
        core_->chunk_placed({{kConsumer, i + 1}, 1, 1, chunk, chunk % 8}, ok_status(), now_, out_);
        core_->tick(now_, out_);
        events += 4;
      }
      out_.clear();
    }
    return static_cast<double>((isthmus::now() - start).count()) / static_cast<double>(events);
  }
  double bytes_each() const { return bytes_each_; }

 private:
  Instant now_{std::chrono::seconds(1)};
  Ledger ledger_;
  std::unique_ptr<ConsumerCore> core_;
  kv::Verdict verdict_;
  Digest128 source_ = source_descriptor().digest(), target_ = target_descriptor().digest();
  ConsumerActions out_;
  double bytes_each_ = 0;
};

template <typename Core>
bool measure(const char* name) {
  constexpr std::uint32_t kFew = 1000, kMany = 10'000, kEach = 100;
  Core few(kFew), many(kMany);
  std::vector<double> at_few, at_many;
  for (std::uint32_t run = 0; run < kRuns; ++run) {
    at_few.push_back(few.events(run * kEach, kEach));
    at_many.push_back(many.events(run * kEach * 10, kEach));
  }
  const double ratio = median(at_many) / median(at_few);
  fmt::print("{}: {:.0f} ns an event at {} live, {:.0f} ns at {} ({:.2f} times); {:.0f} bytes a live one\n",
             name, median(at_few), kFew, median(at_many), kMany, ratio, many.bytes_each());
  // A scan over all would cost ten times as much.
  return median(at_many) <= 2000 && many.bytes_each() <= 6 * 1024 && ratio < 4;
}

}  // namespace
}  // namespace isthmus::handoff::sim

int main() {
  using namespace isthmus::handoff::sim;
  const bool producer = measure<Producer>("producer");
  const bool consumer = measure<Consumer>("consumer");
  return producer && consumer ? 0 : 1;
}
