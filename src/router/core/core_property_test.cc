// SPDX-License-Identifier: Apache-2.0
// Random interleavings of everything that can happen: each request ends exactly once, loads return to zero.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <set>

#include "router/core/core.h"
#include "router/core/test_fleet.h"

namespace isthmus::router::core {
namespace {

struct Outstanding {
  RequestId request;
  std::uint32_t attempt;
  Leg leg;
  bool streaming = false;
};

// Plays workers and clients against a core and records how each request ends.
class World {
 public:
  World(const fleet::Fleet& fleet, const Config& config) : fleet_(fleet), core_(config, fleet) {
    for (WorkerIndex i = 0; i < fleet.workers.size(); ++i) send(WorkerReport{i, true, ""});
  }

  void send(const Event& event) {
    std::vector<Action> out;
    core_.step(event, now_, out);
    const Status checked = core_.check();
    RC_ASSERT(checked.ok());
    for (const Action& action : out) carry_out(action);
  }

  void carry_out(const Action& action) {
    if (const auto* a = std::get_if<DispatchPrefill>(&action)) {
      RC_ASSERT(fleet_.workers[a->worker].role != fleet::Role::kDecode);
      // A worker that isn't ready may still give away the state that it keeps: one that drains, for instance.
      RC_ASSERT(a->supersedes || down_.count(a->worker) == 0);
      legs_.push_back({a->request, a->attempt, Leg::kPrefill});
    } else if (const auto* b = std::get_if<DispatchDecode>(&action)) {
      RC_ASSERT(fleet_.workers[b->worker].role != fleet::Role::kPrefill);
      legs_.push_back({b->request, b->attempt, Leg::kDecode});
    } else if (const auto* c = std::get_if<AnswerError>(&action)) {
      finish(c->request);
    }
  }

  void finish(RequestId request) { RC_ASSERT(ended_.insert(request).second); }

  void arrive(std::uint64_t tokens) {
    ++arrived_;
    send(Arrived{arrived_, "m", tokens, tokens / 2});
  }

  // One outcome of one outstanding leg; late and repeated ones too.
  void answer(std::size_t which, std::uint32_t outcome) {
    if (legs_.empty()) return;
    which %= legs_.size();
    Outstanding& leg = legs_[which];
    const bool is_live = ended_.count(leg.request) == 0;
    if (outcome % 4 == 0) {
      const Code code = std::array{Code::kUnavailable, Code::kExhausted, Code::kInvalidArgument}[outcome % 3];
      return send(Failed{leg.request, leg.attempt, leg.leg, {code, "x"}});
    }
    if (leg.leg == Leg::kPrefill) return send(PrefillAdmitted{leg.request, leg.attempt, outcome % 3 != 0});
    if (outcome % 4 == 1) return send(FirstToken{leg.request, leg.attempt});
    const std::uint64_t finished = core_.ledger().finished;
    const RequestId request = leg.request;
    send(Finished{request, leg.attempt});
    if (core_.ledger().finished == finished) return;
    RC_ASSERT(is_live);
    finish(request);
  }

  void cancel(RequestId request) {
    if (arrived_ == 0) return;
    request = 1 + request % arrived_;
    const std::uint64_t cancelled = core_.ledger().cancelled;
    send(Cancelled{request});
    if (core_.ledger().cancelled != cancelled) finish(request);
  }

  void report(WorkerIndex worker, bool ready) {
    worker %= static_cast<WorkerIndex>(fleet_.workers.size());
    if (ready) {
      down_.erase(worker);
    } else {
      down_.insert(worker);
    }
    send(WorkerReport{worker, ready, "down"});
  }

  void pass(Duration time) {
    now_ = now_ + time;
    send(Tick{});
  }

  // Faults stop and nobody answers any more: deadlines end what is left.
  void settle() {
    for (int i = 0; i < 10'000 && core_.next_deadline() != kFarFuture; ++i) {
      now_ = std::max(now_, core_.next_deadline());
      send(Tick{});
    }
    const Ledger ledger = core_.ledger();
    RC_ASSERT(ledger.live == 0u);
    RC_ASSERT(ledger.queued == 0u);
    RC_ASSERT(ledger.arrived == arrived_);
    RC_ASSERT(ended_.size() == arrived_);
    for (WorkerIndex i = 0; i < fleet_.workers.size(); ++i) {
      RC_ASSERT(core_.view(i, now_).requests == 0u);
      RC_ASSERT(core_.view(i, now_).tokens == 0u);
    }
  }

 private:
  fleet::Fleet fleet_;
  Instant now_{std::chrono::seconds(1)};
  Core core_;
  std::vector<Outstanding> legs_;
  std::set<RequestId> ended_;
  std::set<WorkerIndex> down_;
  RequestId arrived_ = 0;
};

RC_GTEST_PROP(CoreProperty, EveryRequestEndsExactlyOnceAndLoadsReturnToZero, ()) {
  Config config;
  config.live_max = *rc::gen::inRange<std::uint32_t>(1, 8);
  config.worker_requests_max = *rc::gen::inRange<std::uint32_t>(1, 4);
  config.queue_max = *rc::gen::inRange<std::uint32_t>(0, 5);
  config.prefill_retries_max = *rc::gen::inRange<std::uint32_t>(0, 3);
  config.decode_retries_max = *rc::gen::inRange<std::uint32_t>(0, 3);
  const bool may_recompute = *rc::gen::arbitrary<bool>();
  World world(test_fleet("p1:prefill p2:prefill@west b1:both d1:decode d2:decode@west",
                         may_recompute ? fleet::OnFailure::kRecompute : fleet::OnFailure::kFail),
              config);
  const auto steps = *rc::gen::container<std::vector<std::tuple<std::uint32_t, std::uint32_t>>>(
      rc::gen::tuple(rc::gen::inRange<std::uint32_t>(0, 100), rc::gen::inRange<std::uint32_t>(0, 1000)));
  for (const auto& [kind, value] : steps) {
    if (kind < 30) {
      world.arrive(value);
    } else if (kind < 75) {
      world.answer(value, value / 7);
    } else if (kind < 82) {
      world.cancel(value);
    } else if (kind < 92) {
      world.report(value, value % 3 != 0);
    } else {
      world.pass(std::chrono::milliseconds(value * 50));
    }
  }
  world.settle();
}

}  // namespace
}  // namespace isthmus::router::core
