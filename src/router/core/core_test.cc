// SPDX-License-Identifier: Apache-2.0
// The router's decisions, one situation each, under virtual time.
#include "router/core/core.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/core/test_fleet.h"

namespace isthmus::router::core {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// Drives a core; every step also recounts its ledger.
class Driver {
 public:
  explicit Driver(const fleet::Fleet& fleet, const Config& config = {})
      : fleet_(fleet), core_(config, fleet) {
    for (WorkerIndex i = 0; i < fleet.workers.size(); ++i) send(WorkerReport{i, true, ""});
  }
  std::vector<Action> send(const Event& event) {
    std::vector<Action> out;
    core_.step(event, now_, out);
    const Status checked = core_.check();
    EXPECT_TRUE(checked.ok()) << (checked.ok() ? "" : checked.error().text());
    return out;
  }
  std::vector<Action> arrive(RequestId id, std::uint64_t prompt_tokens = 100) {
    return send(Arrived{id, "m", prompt_tokens, 10});
  }
  void pass(Duration time) { now_ = now_ + time; }
  const std::string& worker(WorkerIndex index) const { return fleet_.workers[index].name; }
  Core& core() { return core_; }
  Instant now() const { return now_; }

  // "prefill p1 #1", "decode d1 #2 with transfer", "cancel prefill p1", "error unavailable".
  std::string text(const std::vector<Action>& actions) const {
    std::string all;
    for (const Action& action : actions) {
      if (!all.empty()) all += ", ";
      if (const auto* a = std::get_if<DispatchPrefill>(&action)) {
        all +=
            fmt::format("{} {} #{}", a->supersedes ? "supersede" : "prefill", worker(a->worker), a->attempt);
      } else if (const auto* b = std::get_if<DispatchDecode>(&action)) {
        all += fmt::format("decode {} #{}{}", worker(b->worker), b->attempt,
                           b->with_transfer ? " with transfer" : "");
      } else if (const auto* c = std::get_if<CancelLeg>(&action)) {
        all += fmt::format("cancel {} {}", c->leg == Leg::kPrefill ? "prefill" : "decode", worker(c->worker));
      } else if (const auto* d = std::get_if<AnswerError>(&action)) {
        all += fmt::format("error {}{}", name(d->error.code), d->after_first_token ? " in stream" : "");
      }
    }
    return all;
  }

 private:
  fleet::Fleet fleet_;
  Instant now_{seconds(1000)};
  Core core_;
};

Failed failure(RequestId id, std::uint32_t attempt, Leg leg, Code code = Code::kUnavailable) {
  return Failed{id, attempt, leg, {code, "planned failure"}};
}

std::string detail_of(const std::vector<Action>& actions) {
  return actions.empty() ? "" : std::get<AnswerError>(actions.back()).error.detail;
}

TEST(Core, AWorkerThatComesBackTakesItsTurnAndNotAllTurns) {
  Driver d(test_fleet("p1:prefill d1:decode d2:decode"));
  const auto decoder_of = [&](RequestId id) {
    d.arrive(id);
    const std::string decode = d.text(d.send(PrefillAdmitted{id, 1, true}));
    d.send(Finished{id, 2});
    return decode.substr(0, decode.find(" #"));
  };
  d.send(WorkerReport{2, false, "gone"});
  for (RequestId id = 1; id <= 5; ++id) EXPECT_EQ(decoder_of(id), "decode d1");
  d.send(WorkerReport{2, true, ""});
  EXPECT_EQ(decoder_of(6), "decode d2");
  EXPECT_EQ(decoder_of(7), "decode d1");
  EXPECT_EQ(decoder_of(8), "decode d2");
}

TEST(Core, AsksPrefillThenDecodeWithTheTransferAndEndsOnce) {
  Driver d(test_fleet("p1:prefill d1:decode"));
  EXPECT_EQ(d.text(d.arrive(1)), "prefill p1 #1");
  EXPECT_EQ(d.core().view(0, d.now()).tokens, 100u);
  EXPECT_EQ(d.core().view(1, d.now()).tokens, 110u) << "D is counted at dispatch, so that it has room later";
  EXPECT_EQ(d.text(d.send(PrefillAdmitted{1, 1, true})), "decode d1 #2 with transfer");
  EXPECT_EQ(d.core().view(0, d.now()).tokens, 100u) << "the prefill still runs";
  EXPECT_EQ(d.text(d.send(FirstToken{1, 2})), "");
  EXPECT_EQ(d.core().view(0, d.now()).tokens, 0u);
  d.send(Finished{1, 2});
  EXPECT_EQ(d.core().view(1, d.now()).tokens, 0u);
  d.send(Finished{1, 2});
  EXPECT_EQ(d.core().ledger().finished, 1u);
}

TEST(Core, GivesEachRequestToTheLeastLoadedPair) {
  Driver d(test_fleet("p1:prefill p2:prefill d1:decode d2:decode"));
  EXPECT_EQ(d.text(d.arrive(1, 1000)), "prefill p1 #1");
  EXPECT_EQ(d.text(d.arrive(2, 10)), "prefill p2 #1");
  EXPECT_EQ(d.text(d.arrive(3, 10)), "prefill p2 #1");
  EXPECT_EQ(d.text(d.arrive(4, 2000)), "prefill p2 #1");
  EXPECT_EQ(d.text(d.arrive(5, 10)), "prefill p1 #1");
  EXPECT_EQ(d.text(d.send(PrefillAdmitted{2, 1, true})), "decode d2 #2 with transfer");
}

TEST(Core, LetsIdleWorkersTakeTurns) {
  Driver d(test_fleet("p1:prefill p2:prefill d1:decode"));
  EXPECT_EQ(d.text(d.arrive(1)), "prefill p1 #1");
  d.send(Cancelled{1});
  EXPECT_EQ(d.text(d.arrive(2)), "prefill p2 #1");
}

TEST(Core, NeverPairsAWorkerWithItselfOrAcrossPlanes) {
  Driver self(test_fleet("b1:both"));
  EXPECT_EQ(self.text(self.arrive(1)), "decode b1 #1");
  EXPECT_EQ(self.core().ledger().local_prefills, 0u) << "a lone worker isn't a lost prefill worker";
  Driver planes(test_fleet("p1:prefill@east d1:decode@west p2:prefill@west d2:decode@west"));
  for (RequestId id = 1; id < 5; ++id) EXPECT_EQ(planes.text(planes.arrive(id)), "prefill p2 #1");
}

fleet::Fleet tried_first(std::string_view workers,
                         fleet::OnFailure on_failure = fleet::OnFailure::kRecompute) {
  fleet::Fleet fleet = test_fleet(workers, on_failure);
  fleet.models[0].canary = fleet::Canary::kFirstContact;
  return fleet;
}

TEST(Core, HandsNothingOverBetweenAPairThatIsntKnownToBeSound) {
  Driver d(tried_first("p1:prefill p2:prefill d1:decode"));
  EXPECT_EQ(d.text(d.arrive(1)), "decode d1 #1") << "neither pair was tried: computed where it is decoded";
  d.send(PairTried{1, 2, true, ""});
  EXPECT_EQ(d.text(d.arrive(2)), "prefill p2 #1");
  d.send(PairTried{0, 2, false, "v differs"});
  EXPECT_EQ(d.text(d.arrive(3)), "prefill p2 #1");
  d.send(PairTried{0, 2, true, ""});
  EXPECT_EQ(d.text(d.arrive(4)), "prefill p1 #1");
  d.send(PairTried{0, 2, false, ""});
  EXPECT_EQ(d.core().pair_reason(0, 2), "not tried yet");
}

TEST(Core, SaysWhyAPairIsntUsedAndDoesntComputeElsewhereIfThatIsForbidden) {
  Driver d(tried_first("p1:prefill d1:decode", fleet::OnFailure::kFail));
  EXPECT_EQ(d.text(d.arrive(1)), "error unavailable");
  d.send(PairTried{0, 1, false, "v differs in 2 of 30 layers"});
  const Status status = d.core().can_serve("m", d.now());
  EXPECT_EQ(status.error().detail,
            "no prefill worker is ready for 'm' (p1: no pair with d1: v differs in 2 of 30 layers)");
}

TEST(Core, APairAcrossPlanesIsNeverSound) {
  Driver d(tried_first("p1:prefill@east d1:decode@west"));
  d.send(PairTried{0, 1, true, ""});
  EXPECT_EQ(d.text(d.arrive(1)), "decode d1 #1");
}

TEST(Core, StripsTheTransferWhenTheAnswerOfPHasNone) {
  Driver d(test_fleet("p1:prefill d1:decode"));
  d.arrive(1);
  EXPECT_EQ(d.text(d.send(PrefillAdmitted{1, 1, false})), "decode d1 #2");
  EXPECT_EQ(d.core().view(0, d.now()).requests, 0u);
}

TEST(Core, TriesOneOtherPrefillWorkerThenComputesAtD) {
  Driver d(test_fleet("p1:prefill p2:prefill p3:prefill d1:decode"));
  d.arrive(1);
  EXPECT_EQ(d.text(d.send(failure(1, 1, Leg::kPrefill))), "prefill p2 #2");
  const auto local = d.send(failure(1, 2, Leg::kPrefill));
  EXPECT_EQ(d.text(local), "decode d1 #3");
  EXPECT_THAT(std::get<DispatchDecode>(local[0]).why_local,
              HasSubstr("prefill worker p2 failed: unavailable"));
  EXPECT_EQ(d.core().ledger().local_prefills, 1u);
}

TEST(Core, AnswersTheErrorWhenPolicyForbidsToRecompute) {
  Driver d(test_fleet("p1:prefill d1:decode", fleet::OnFailure::kFail));
  d.arrive(1);
  EXPECT_EQ(d.text(d.send(failure(1, 1, Leg::kPrefill))), "error unavailable");
  d.send(WorkerReport{0, false, "probe failed"});
  const auto refused = d.arrive(2);
  EXPECT_EQ(d.text(refused), "error unavailable");
  EXPECT_EQ(detail_of(refused), "no prefill worker is ready for 'm' (p1: probe failed)");
}

TEST(Core, ComputesAtDWhenNoPrefillWorkerIsReady) {
  Driver d(test_fleet("p1:prefill d1:decode"));
  d.send(WorkerReport{0, false, "loading"});
  EXPECT_EQ(d.text(d.arrive(1)), "decode d1 #1");
}

TEST(Core, DoesNotRetryARequestThatIsWrongInItself) {
  Driver d(test_fleet("p1:prefill p2:prefill d1:decode d2:decode"));
  d.arrive(1);
  EXPECT_EQ(d.text(d.send(failure(1, 1, Leg::kPrefill, Code::kInvalidArgument))), "error invalid_argument");
  d.arrive(2);
  d.send(PrefillAdmitted{2, 1, true});
  EXPECT_EQ(d.text(d.send(failure(2, 2, Leg::kDecode, Code::kInvalidArgument))),
            "cancel prefill p2, error invalid_argument");
}

TEST(Core, StartsAnewWithAnotherDWhenTheStateIsThereNoMore) {
  Driver d(test_fleet("p1:prefill d1:decode d2:decode"));
  d.arrive(1);
  d.send(PrefillAdmitted{1, 1, true});
  EXPECT_EQ(d.text(d.send(failure(1, 2, Leg::kDecode))), "supersede p1 #3");
  EXPECT_EQ(d.text(d.send(failure(1, 3, Leg::kPrefill, Code::kNotFound))),
            "cancel prefill p1, prefill p1 #4");
  EXPECT_EQ(d.text(d.send(PrefillAdmitted{1, 4, true})), "decode d2 #5 with transfer");
  EXPECT_EQ(d.core().ledger().decode_retries, 1u);
}

TEST(Core, StartsAnewElsewhereWhenTheStatesHolderIsGone) {
  Driver d(test_fleet("p1:prefill p2:prefill d1:decode d2:decode"));
  d.arrive(1);
  d.send(PrefillAdmitted{1, 1, true});
  EXPECT_EQ(d.text(d.send(failure(1, 2, Leg::kDecode))), "supersede p1 #3");
  EXPECT_EQ(d.text(d.send(failure(1, 3, Leg::kPrefill))), "cancel prefill p1, prefill p2 #4");
}

TEST(Core, AClientThatLeavesWhileTheStateChangesHandsFreesIt) {
  Driver d(test_fleet("p1:prefill d1:decode d2:decode"));
  d.arrive(1);
  d.send(PrefillAdmitted{1, 1, true});
  d.send(failure(1, 2, Leg::kDecode));
  EXPECT_EQ(d.text(d.send(Cancelled{1})), "cancel prefill p1");
  EXPECT_TRUE(d.core().check().ok());
}

TEST(Core, GivesThePrefilledStateToAnotherDWhenDFailsBeforeTheFirstToken) {
  Driver d(test_fleet("p1:prefill d1:decode d2:decode"));
  d.arrive(1);
  d.send(PrefillAdmitted{1, 1, true});
  EXPECT_EQ(d.text(d.send(failure(1, 2, Leg::kDecode))), "supersede p1 #3");
  EXPECT_EQ(d.core().view(0, d.now()).tokens, 100u) << "its state is kept";
  EXPECT_EQ(d.core().view(1, d.now()).tokens, 0u);
  EXPECT_EQ(d.text(d.send(PrefillAdmitted{1, 3, true})), "decode d2 #4 with transfer");
  EXPECT_EQ(d.text(d.send(failure(1, 4, Leg::kDecode))), "cancel prefill p1, error unavailable");
}

TEST(Core, NeverAsksTheDThatFailedAgain) {
  Driver d(test_fleet("p1:prefill d1:decode"));
  d.arrive(1);
  d.send(PrefillAdmitted{1, 1, true});
  EXPECT_EQ(d.text(d.send(failure(1, 2, Leg::kDecode))), "cancel prefill p1, error unavailable");
}

TEST(Core, KeepsToItsBudgetOfOtherDecodeWorkers) {
  Driver d(test_fleet("d1:decode d2:decode d3:decode"));
  d.arrive(1);
  EXPECT_EQ(d.text(d.send(failure(1, 1, Leg::kDecode))), "decode d2 #2");
  EXPECT_EQ(d.text(d.send(failure(1, 2, Leg::kDecode))), "error unavailable");
}

TEST(Core, PutsAnErrorIntoTheStreamAfterTheFirstToken) {
  Driver d(test_fleet("p1:prefill d1:decode d2:decode"));
  d.arrive(1);
  d.send(PrefillAdmitted{1, 1, true});
  d.send(FirstToken{1, 2});
  EXPECT_EQ(d.text(d.send(failure(1, 2, Leg::kDecode))), "error unavailable in stream");
}

TEST(Core, TellsBothLegsWhenTheClientLeaves) {
  Driver d(test_fleet("p1:prefill d1:decode"));
  d.arrive(1);
  EXPECT_EQ(d.text(d.send(Cancelled{1})), "cancel prefill p1");
  d.arrive(2);
  d.send(PrefillAdmitted{2, 1, true});
  EXPECT_EQ(d.text(d.send(Cancelled{2})), "cancel decode d1, cancel prefill p1");
  d.arrive(3);
  d.send(PrefillAdmitted{3, 1, true});
  d.send(FirstToken{3, 2});
  EXPECT_EQ(d.text(d.send(Cancelled{3})), "cancel decode d1") << "P is done: its state is owned by D";
  EXPECT_EQ(d.text(d.send(Cancelled{3})), "");
  EXPECT_EQ(d.core().ledger().cancelled, 3u);
}

TEST(Core, IgnoresEventsOfAnAttemptThatIsOver) {
  Driver d(test_fleet("p1:prefill p2:prefill d1:decode"));
  d.arrive(1);
  d.send(failure(1, 1, Leg::kPrefill));
  EXPECT_EQ(d.text(d.send(PrefillAdmitted{1, 1, true})), "");
  EXPECT_EQ(d.text(d.send(failure(1, 1, Leg::kPrefill))), "");
  EXPECT_EQ(d.text(d.send(PrefillAdmitted{1, 2, true})), "decode d1 #3 with transfer");
  EXPECT_EQ(d.text(d.send(Finished{1, 2})), "");
  EXPECT_EQ(d.core().ledger().live, 1u);
}

TEST(Core, GivesUpOnAPrefillThatIsNotAdmittedInTime) {
  Config config;
  config.admission_timeout = seconds(5);
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  EXPECT_EQ(d.core().next_deadline(), d.now() + seconds(5));
  d.pass(seconds(4));
  EXPECT_EQ(d.text(d.send(Tick{})), "");
  d.pass(seconds(1));
  EXPECT_EQ(d.text(d.send(Tick{})), "cancel prefill p1, decode d1 #2");
}

TEST(Core, EndsARequestAtItsDeadlineInAnyPhase) {
  Config config;
  config.request_timeout = seconds(10);
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  d.arrive(2);
  d.send(PrefillAdmitted{2, 1, true});
  d.arrive(3);
  d.send(PrefillAdmitted{3, 1, true});
  d.send(FirstToken{3, 2});
  d.pass(seconds(10));
  EXPECT_EQ(d.text(d.send(Tick{})),
            "cancel prefill p1, error deadline_exceeded, cancel decode d1, cancel prefill p1, "
            "error deadline_exceeded, cancel decode d1, error deadline_exceeded in stream");
  EXPECT_EQ(d.core().ledger().live, 0u);
  EXPECT_EQ(d.core().next_deadline(), kFarFuture);
}

TEST(Core, QueuesWhenFullThenAnswersExhaustedBeyondTheQueue) {
  Config config;
  config.worker_requests_max = 1;
  config.queue_max = 1;
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  EXPECT_EQ(d.text(d.arrive(2)), "");
  EXPECT_EQ(d.text(d.arrive(3)), "error exhausted");
  EXPECT_EQ(d.core().ledger().queued, 1u);
  d.send(PrefillAdmitted{1, 1, true});
  EXPECT_EQ(d.text(d.send(FirstToken{1, 2})), "") << "D is still full";
  EXPECT_EQ(d.text(d.send(Finished{1, 2})), "prefill p1 #1");
  EXPECT_EQ(d.core().ledger().queued, 0u);
}

TEST(Core, BoundsRequestsInFlightOverAllWorkers) {
  Config config;
  config.live_max = 1;
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  EXPECT_EQ(d.text(d.arrive(2)), "");
  EXPECT_EQ(d.text(d.send(Cancelled{1})), "cancel prefill p1, prefill p1 #1");
}

TEST(Core, QueuedRequestsLeaveInOrderOrExpire) {
  Config config;
  config.worker_requests_max = 1;
  config.queue_timeout = seconds(3);
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  d.arrive(2);
  d.pass(seconds(1));
  d.arrive(3);
  d.pass(seconds(2));
  EXPECT_EQ(d.text(d.send(Tick{})), "error exhausted");
  const auto next = d.send(Cancelled{1});
  EXPECT_EQ(std::get<DispatchPrefill>(next.back()).request, 3u);
}

TEST(Core, AnswersUnavailableWithEachWorkersReasonWhenNoDecodeWorkerIsFit) {
  Driver d(test_fleet("p1:prefill d1:decode d2:decode"));
  d.send(WorkerReport{1, false, "KV pool is full"});
  d.send(WorkerReport{2, false, "connection refused"});
  const auto refused = d.arrive(1);
  EXPECT_EQ(d.text(refused), "error unavailable");
  EXPECT_EQ(detail_of(refused),
            "no decode worker is ready for 'm' (d1: KV pool is full; d2: connection refused)");
  EXPECT_EQ(d.core().can_serve("m", d.now()).code(), Code::kUnavailable);
  EXPECT_EQ(d.text(d.send(Arrived{2, "unknown", 1, 1})), "error invalid_argument");
}

TEST(Core, QueuedRequestsAreAnsweredWhenTheLastDecodeWorkerGoes) {
  Config config;
  config.worker_requests_max = 1;
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  d.arrive(2);
  EXPECT_EQ(d.text(d.send(WorkerReport{1, false, "gone"})), "error unavailable");
}

TEST(Breaker, OpensAfterFailuresInARowThenLetsOneTrialThrough) {
  Config config;
  config.prefill_retries_max = 0;
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  for (RequestId id = 1; id <= 3; ++id) {
    EXPECT_EQ(d.text(d.arrive(id)), "prefill p1 #1");
    d.send(failure(id, 1, Leg::kPrefill));
  }
  EXPECT_TRUE(d.core().view(0, d.now()).breaker_open);
  EXPECT_EQ(d.core().view(0, d.now()).reason, "3 failures in a row");
  EXPECT_EQ(d.text(d.arrive(4)), "decode d1 #1");
  d.pass(config.breaker_cooldown);
  EXPECT_EQ(d.text(d.arrive(5)), "prefill p1 #1");
  EXPECT_EQ(d.text(d.arrive(6)), "decode d1 #1") << "one trial at a time";
  EXPECT_EQ(d.text(d.send(failure(5, 1, Leg::kPrefill))), "decode d1 #2");
  EXPECT_EQ(d.text(d.arrive(7)), "decode d1 #1") << "a failed trial opens it again";
  d.pass(config.breaker_cooldown);
  d.arrive(8);
  d.send(PrefillAdmitted{8, 1, true});
  EXPECT_FALSE(d.core().view(0, d.now()).breaker_open);
  EXPECT_EQ(d.text(d.arrive(9)), "prefill p1 #1");
}

TEST(Breaker, ATrialWhoseClientLeavesFreesTheNextTrial) {
  Config config;
  config.breaker_failures = 1;
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  d.send(failure(1, 1, Leg::kPrefill));
  d.pass(config.breaker_cooldown);
  EXPECT_EQ(d.text(d.arrive(2)), "prefill p1 #1");
  d.send(Cancelled{2});
  EXPECT_EQ(d.text(d.arrive(3)), "prefill p1 #1");
}

TEST(Breaker, FullWorkersAndWrongRequestsAreNoFaults) {
  for (const Code code : {Code::kExhausted, Code::kInvalidArgument}) {
    Driver d(test_fleet("p1:prefill d1:decode"));
    for (RequestId id = 1; id <= 5; ++id) {
      d.arrive(id);
      d.send(failure(id, 1, Leg::kPrefill, code));
    }
    EXPECT_FALSE(d.core().view(0, d.now()).breaker_open) << name(code);
  }
}

TEST(Breaker, AQueueWaitsForItsCooldownAndNotForAMomentThatHasPassed) {
  Config config;
  config.live_max = 1;
  config.breaker_failures = 1;
  Driver d(test_fleet("p1:prefill d1:decode"), config);
  d.arrive(1);
  d.send(failure(1, 1, Leg::kPrefill));
  d.arrive(2);
  EXPECT_EQ(d.core().next_deadline(), d.now() + config.breaker_cooldown);
  d.pass(config.breaker_cooldown);
  d.send(Tick{});
  EXPECT_EQ(d.core().ledger().queued, 1u);
  EXPECT_GT(d.core().next_deadline(), d.now()) << "a timer would fire without end";
}

}  // namespace
}  // namespace isthmus::router::core
