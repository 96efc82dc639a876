// SPDX-License-Identifier: Apache-2.0
// Each row is a way in which transfers of KV state are known to fail in practice: what goes wrong, and how
// both sides must end. In every row no rule may be broken: no wrong bytes owned, one terminal event a side
// and attempt, an answer in time, and both ledgers back at their baseline.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/world.h"

namespace isthmus::handoff::sim {
namespace {

struct Scenario {
  std::string name;
  std::string what;
  Faults faults = {};
  std::vector<std::string> consumer_ends = {}, producer_ends = {}, group_ends = {};  // Each must happen.
  std::vector<std::string> transitions = {};                                         // So must these.
  std::vector<std::string> never = {};      // Consumer's ends that must not.
  std::vector<std::uint64_t> lengths = {};  // Of prompts; else of any length.
};

const std::vector<Scenario> kScenarios = {
    // Ownership and lifetime.
    {.name = "ReferencesDieWithTheLifeThatMadeThem",
     .what = "workers restart under their names; tickets, sessions and half-read states of the past life "
             "are refused",
     .faults = {.crash = 0.3},
     .consumer_ends = {"owned", "peer_lost"},
     .producer_ends = {"peer_lost"},
     .transitions = {"C resuming>quiescing ended"}},
    {.name = "PagesAreNotReusedUnderASender",
     .what = "a request is cancelled while its pages are being packed; they stay until the last pack has "
             "reported",
     .faults = {.sticks = 0.1, .cancel = 0.4},
     .producer_ends = {"cancelled"},
     .transitions = {"P quiescing>quarantined not quiet in time", "P quarantined>released quiet"}},
    {.name = "ADestinationIsNotReusedUnderAWriter",
     .what = "a request is aborted while chunks are being placed; its blocks wait, or are quarantined and "
             "counted",
     .faults = {.sticks = 0.1, .cancel = 0.4},
     .consumer_ends = {"cancelled"},
     .transitions = {"C quiescing>quarantined not quiet in time", "C quarantined>closed quiet"}},
    {.name = "ACompletionIsOfOneHandoff",
     .what =
         "two decoders race for one prefill; DONE of one doesn't release the other's, and one of them owns",
     .faults = {.second_opener = 1},
     .consumer_ends = {"owned"},
     .producer_ends = {"done"}},
    {.name = "AStaleCompletionReleasesNothing",
     .what = "the router gives a slot to another decoder while the first one's DONE is under way",
     .faults = {.control_lost = 0.1, .control_slow = 0.1, .supersede = 0.7},
     .producer_ends = {"superseded", "done"}},
    {.name = "AReadWithoutAServerIsProven",
     .what = "pages are read one-sidedly; a lease that ran out or a preemption meanwhile is a no, never an "
             "answer",
     .faults =
         {.partition = 0.2, .pause = 0.3, .clock_stops = 0.3, .sticks = 0.03, .preempt = 0.1, .direct = 1},
     .consumer_ends = {"owned", "expired"},
     .transitions = {"C confirming>owned confirmed", "C confirming>quiescing ended"}},
    {.name = "LoadDoesNotMixStates",
     .what = "many states at once through small pools, reordered and repeated; each owner has its own bytes",
     .faults = {.control_repeated = 0.2, .small_pools = true, .slow_reader = 0.2, .preempt = 0.1},
     .consumer_ends = {"owned"}},
    // Cancel.
    {.name = "ACancelBeforeAdmissionIsRemembered",
     .what =
         "the client leaves before prefill is admitted; whoever comes later is told, and nothing is pinned",
     .faults = {.cancel = 0.5, .promised = 1},
     .consumer_ends = {"cancelled"},
     .transitions = {"P promised>released ended"}},
    {.name = "ACancelInAnyStateEndsOnce",
     .what = "the client leaves at any moment, on either side; blocks of both return",
     .faults = {.cancel = 1},
     .consumer_ends = {"cancelled"},
     .producer_ends = {"cancelled"}},
    {.name = "ACancelThatIsLostIsMadeGood",
     .what = "CANCEL and its answer are lost or late; deadlines and leases end both sides",
     .faults = {.control_lost = 0.3, .control_slow = 0.1, .cancel = 0.7},
     .consumer_ends = {"cancelled"},
     .producer_ends = {"cancelled"}},
    {.name = "ACancelThatCrossesTheCompletion",
     .what = "cancel and DONE cross: one terminal event each, and no worker fails over an id that it "
             "doesn't know",
     .faults = {.control_repeated = 0.3, .control_slow = 0.2, .cancel = 0.6},
     .consumer_ends = {"cancelled", "owned"},
     .producer_ends = {"done"}},
    {.name = "ADecoderThatNeverComes",
     .what =
         "the decoder dies between prefill and its first frame; pinned pages come back when the lease ends",
     .faults = {.crash = 0.05},
     .transitions = {"P pinned>released ended"}},
    // Leases and timeouts.
    {.name = "ALeaseIsKeptByHeartbeats",
     .what = "a decoder that is slow, and lives, is never cut off while chunks move",
     .faults = {.slow_reader = 1},
     .consumer_ends = {"owned"},
     .never = {"peer_lost", "corrupt"}},
    {.name = "ALeaseThatRanOutIsNotOwned",
     .what = "either side stops for longer than the lease, with or without its clock",
     .faults = {.pause = 0.5, .clock_stops = 0.5},
     .consumer_ends = {"expired"},
     .transitions = {"P sealed>quiescing ended"}},
    {.name = "ASilentPeerIsNotWaitedForForEver",
     .what = "one direction of the network stands still; every wait has a deadline of its own",
     .faults = {.partition = 1},
     .consumer_ends = {"timed_out"}},
    {.name = "APartThatNeverReportsEnds",
     .what = "making a plan, packing, placing or reading back takes longer than anyone waits",
     .faults = {.sticks = 0.7},
     .consumer_ends = {"timed_out"},
     .producer_ends = {"timed_out"}},
    // Restarts and stale peers.
    {.name = "AConnectionThatBreaksCostsAnAttempt",
     .what = "connections break again and again; the same handoff goes on with the chunks that are missing",
     .faults = {.channel_dies = 0.02, .cut = 1},
     .consumer_ends = {"owned"},
     .producer_ends = {"done", "peer_lost"},
     .transitions = {"C receiving>resuming lost", "C resuming>opening resumed", "P growing>severed lost",
                     "P severed>opened resumed", "P sealed>opened resumed"}},
    {.name = "APeerThatCameBackIsUsedAtOnce",
     .what = "after a restart at the same address new requests succeed without anyone's help",
     .faults = {.cut = 0.2, .crash = 0.15},
     .consumer_ends = {"owned", "peer_lost"},
     .producer_ends = {"done"}},
    {.name = "ADecoderThatDiedAfterOwning",
     .what = "it has answered and its DONE is lost: the sealed slot isn't given to another",
     .faults = {.control_lost = 0.2, .crash = 0.4},
     .producer_ends = {"peer_lost", "done"},
     .transitions = {"P sealed>quiescing ended"}},
    // Ranges and blocks.
    {.name = "LengthsAroundABlocksEdge",
     .what = "prompts of one token, and of one more, one fewer and exactly some blocks",
     .consumer_ends = {"owned"},
     .producer_ends = {"done"},
     .never = {"rejected", "corrupt", "failed", "timed_out", "expired", "peer_lost"},
     .lengths = {1, 255, 256, 257, 511, 512, 513, 2559, 2560, 2561}},
    {.name = "LengthsAroundABlocksEdgeInParts",
     .what = "the same, preempted, cut and resumed: a partial block moves once it is final",
     .faults = {.cut = 0.5, .preempt = 0.08},
     .consumer_ends = {"owned"},
     .transitions = {"P growing>opened preempted", "P severed>opened resumed"},
     .lengths = {1, 255, 256, 257, 511, 512, 513, 2559, 2560, 2561}},
    {.name = "AStateOfOtherTokensIsRefused",
     .what = "both sides' tokens differ by one: a difference of identity, not of size",
     .faults = {.other_tokens = 1},
     .consumer_ends = {"rejected"},
     .never = {"owned", "finished"}},
    // Queues and memory.
    {.name = "AFullPoolIsABoundedWait",
     .what = "no room at the decoder: a bounded wait, then `exhausted`, and the prefill worker's pages are "
             "free again",
     .faults = {.small_pools = true, .slow_reader = 0.7},
     .consumer_ends = {"exhausted", "owned"},
     .producer_ends = {"exhausted"}},
    {.name = "MemoryThatIsRefusedIsGivenBack",
     .what = "the engine has no blocks although the ledger had",
     .faults = {.refuses_memory = 0.5},
     .consumer_ends = {"exhausted", "owned"}},
    {.name = "NobodyWaitsInARing",
     .what = "both pools are small, both legs start at once, and every slot has two openers",
     .faults = {.small_pools = true, .second_opener = 1, .promised = 0.5},
     .consumer_ends = {"owned", "exhausted"}},
    {.name = "BothLegsStartAtOnce",
     .what = "the decoder opens before prefill is admitted: it is promised, and nothing is held for it",
     .faults = {.promised = 1},
     .consumer_ends = {"owned"},
     .transitions = {"P promised>pinned admitted", "C promised>planning plan"}},
    // Failures.
    {.name = "AFailedPrefillIsAFailure",
     .what = "prefill fails in the middle: the decoder hears it, and never goes on with a part of the state",
     .faults = {.prefill_fails = 0.2},
     .consumer_ends = {"failed", "owned"},
     .producer_ends = {"failed"}},
    {.name = "PrefillThatStartsAgain",
     .what = "preempted prefill computes other bits: what came before is void",
     .faults = {.preempt = 0.1},
     .consumer_ends = {"owned"},
     .transitions = {"P growing>opened preempted"},
     .never = {"corrupt"}},
    {.name = "DamageIsNeverOwned",
     .what = "a bit flips under way or where it was placed; the request is answered without that state",
     .faults = {.flips_in_staging = 0.05, .flips_when_placed = 0.05},
     .consumer_ends = {"corrupt", "owned"}},
    {.name = "APlanThatFailsIsTold",
     .what = "either side can't make its plan",
     .faults = {.plan_fails = 0.3},
     .consumer_ends = {"failed", "owned"},
     .producer_ends = {"failed"}},
    {.name = "AnAnswerThatEndsWithItsFirstToken",
     .what = "nothing is left to decode: no chunk is needed, and both sides end",
     .faults = {.finished = 1},
     .consumer_ends = {"finished"},
     .producer_ends = {"finished"},
     .never = {"owned"}},
    {.name = "AGroupIsOwnedWholeOrNotAtAll",
     .what = "ranks fail, restart and lose messages: all ranks own, or the group has failed",
     .faults = {.control_lost = 0.1, .cut = 0.1, .crash = 0.1, .cancel = 0.1, .grouped = 1},
     .consumer_ends = {"owned"},
     .group_ends = {"owned", "peer_lost"}},
    // Peers and shells that misbehave.
    {.name = "PeersThatLie",
     .what = "a peer that holds the session's key says anything at any time; others lose nothing",
     .faults = {.lies = 3},
     .consumer_ends = {"owned"}},
    {.name = "ReportsOfNothing",
     .what = "late and repeated reports of one's own parts change nothing",
     .faults = {.strays = 3},
     .consumer_ends = {"owned"}},
    {.name = "FramesAreLostRepeatedAndLate",
     .what = "the network does what networks do",
     .faults = {.control_lost = 0.15, .control_repeated = 0.3, .control_slow = 0.1},
     .consumer_ends = {"owned"},
     .producer_ends = {"done"}},
};

class Scenarios : public ::testing::TestWithParam<Scenario> {};

TEST_P(Scenarios, EndsAsItMust) {
  const Scenario& scenario = GetParam();
  Outcome all;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Outcome outcome = World(seed, scenario.faults, 60, scenario.lengths).run();
    for (const std::string& violation : outcome.violations)
      ADD_FAILURE() << "seed " << seed << ": " << violation;
    for (const auto& [kind, times] : outcome.consumer_ends) all.consumer_ends[kind] += times;
    for (const auto& [kind, times] : outcome.producer_ends) all.producer_ends[kind] += times;
    for (const auto& [kind, times] : outcome.group_ends) all.group_ends[kind] += times;
    all.transitions.insert(outcome.transitions.begin(), outcome.transitions.end());
  }
  const auto has = [](const std::map<std::string, std::uint64_t>& ends,
                      const std::vector<std::string>& wanted, std::string_view side) {
    for (const std::string& kind : wanted)
      EXPECT_TRUE(ends.contains(kind))
          << side << " never ended so: " << kind << " in " << fmt::format("{}", ends);
  };
  has(all.consumer_ends, scenario.consumer_ends, "a consumer");
  has(all.producer_ends, scenario.producer_ends, "a producer");
  has(all.group_ends, scenario.group_ends, "a group");
  for (const std::string& kind : scenario.never) EXPECT_FALSE(all.consumer_ends.contains(kind)) << kind;
  for (const std::string& transition : scenario.transitions)
    EXPECT_TRUE(all.transitions.contains(transition)) << transition;
}

INSTANTIATE_TEST_SUITE_P(Known, Scenarios, ::testing::ValuesIn(kScenarios),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace isthmus::handoff::sim
