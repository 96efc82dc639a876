// SPDX-License-Identifier: Apache-2.0
// The transition tables; spec/handoff.md, "States".
#include "handoff/core/states.h"

#include <algorithm>

namespace isthmus::handoff {
namespace {

using P = ProducerState;
using C = ConsumerState;

constexpr Transition<P> kProducer[] = {
    {P::kPromised, P::kPinned, "admitted"},
    {P::kPromised, P::kReleased, "ended"},
    {P::kPinned, P::kOpened, "open"},
    {P::kPinned, P::kReleased, "ended"},
    {P::kOpened, P::kGrowing, "credit"},
    {P::kGrowing, P::kOpened, "preempted"},
    {P::kOpened, P::kSealed, "finished"},
    {P::kOpened, P::kSealed, "sealed"},
    {P::kGrowing, P::kSealed, "finished"},
    {P::kGrowing, P::kSealed, "sealed"},
    {P::kOpened, P::kQuiescing, "ended"},
    {P::kGrowing, P::kQuiescing, "ended"},
    {P::kSealed, P::kQuiescing, "ended"},
    {P::kSealed, P::kQuiescing, "done"},
    {P::kQuiescing, P::kPinned, "quiet, reservation holds"},
    {P::kQuiescing, P::kReleased, "quiet"},
    {P::kQuiescing, P::kQuarantined, "not quiet in time"},
    {P::kQuarantined, P::kReleased, "quiet"},
    {P::kOpened, P::kSevered, "lost"},
    {P::kGrowing, P::kSevered, "lost"},
    {P::kSevered, P::kOpened, "resumed"},
    {P::kSealed, P::kOpened, "resumed"},
    {P::kSevered, P::kQuiescing, "ended"},
};

constexpr Transition<C> kConsumer[] = {
    {C::kOpening, C::kPromised, "promised"},
    {C::kOpening, C::kPlanning, "plan"},
    {C::kPromised, C::kPlanning, "plan"},
    {C::kPlanning, C::kReserving, "plans agree"},
    {C::kReserving, C::kReceiving, "capacity"},
    {C::kReceiving, C::kVerifying, "complete"},
    {C::kVerifying, C::kOwned, "verified"},
    {C::kVerifying, C::kConfirming, "verified"},
    {C::kConfirming, C::kOwned, "confirmed"},
    {C::kConfirming, C::kQuiescing, "ended"},
    {C::kOwned, C::kClosed, "released"},
    {C::kOpening, C::kQuiescing, "ended"},
    {C::kPromised, C::kQuiescing, "ended"},
    {C::kPlanning, C::kQuiescing, "ended"},
    {C::kReserving, C::kQuiescing, "ended"},
    {C::kReceiving, C::kQuiescing, "ended"},
    {C::kVerifying, C::kQuiescing, "ended"},
    {C::kQuiescing, C::kClosed, "quiet"},
    {C::kQuiescing, C::kQuarantined, "not quiet in time"},
    {C::kQuarantined, C::kClosed, "quiet"},
    {C::kOpening, C::kResuming, "lost"},
    {C::kPromised, C::kResuming, "lost"},
    {C::kPlanning, C::kResuming, "lost"},
    {C::kReserving, C::kResuming, "lost"},
    {C::kReceiving, C::kResuming, "lost"},
    {C::kResuming, C::kOpening, "resumed"},
    {C::kResuming, C::kQuiescing, "ended"},
};

using enum Holds;

// By state, in the order of ProducerDuty: pages, slot, sends, seal, deadline.
constexpr Holds kProducerHolds[kProducerStates][kProducerDuties] = {
    {kNo, kYes, kNo, kNo, kYes},     // promised
    {kYes, kNo, kNo, kNo, kYes},     // pinned
    {kYes, kYes, kMay, kNo, kYes},   // opened: sends of an earlier generation
    {kYes, kYes, kMay, kNo, kYes},   // growing
    {kYes, kYes, kMay, kNo, kYes},   // severed
    {kYes, kYes, kMay, kYes, kYes},  // sealed
    {kYes, kYes, kYes, kMay, kYes},  // quiescing
    {kYes, kYes, kYes, kMay, kNo},   // quarantined
    {kNo, kNo, kNo, kNo, kNo},       // released
};

// By state, in the order of ConsumerDuty: memory, channels, work, seal, deadline.
constexpr Holds kConsumerHolds[kConsumerStates][kConsumerDuties] = {
    {kMay, kMay, kNo, kNo, kYes},    // opening: what an earlier attempt left
    {kNo, kNo, kNo, kNo, kYes},      // promised
    {kNo, kNo, kNo, kNo, kYes},      // planning
    {kMay, kNo, kNo, kNo, kYes},     // reserving
    {kYes, kMay, kMay, kMay, kYes},  // receiving
    {kMay, kMay, kMay, kNo, kYes},   // resuming
    {kYes, kNo, kYes, kYes, kYes},   // verifying
    {kYes, kNo, kNo, kYes, kYes},    // confirming
    {kNo, kNo, kNo, kYes, kYes},     // owned
    {kMay, kMay, kMay, kMay, kYes},  // quiescing
    {kYes, kNo, kYes, kMay, kNo},    // quarantined
    {kNo, kNo, kNo, kNo, kNo},       // closed
};

template <typename State, std::size_t N>
bool has(const Transition<State> (&table)[N], State from, State to, std::string_view cause) {
  return std::ranges::any_of(table, [&](const Transition<State>& transition) {
    return transition.from == from && transition.to == to && transition.cause == cause;
  });
}

}  // namespace

std::string_view name(ProducerState state) {
  constexpr std::string_view kNames[] = {"promised", "pinned",    "opened",      "growing", "severed",
                                         "sealed",   "quiescing", "quarantined", "released"};
  static_assert(std::size(kNames) == kProducerStates);
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view name(ConsumerState state) {
  constexpr std::string_view kNames[] = {"opening",   "promised",  "planning",    "reserving",
                                         "receiving", "resuming",  "verifying",   "confirming",
                                         "owned",     "quiescing", "quarantined", "closed"};
  static_assert(std::size(kNames) == kConsumerStates);
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view name(Holds holds) {
  constexpr std::string_view kNames[] = {"–", "may", "yes"};
  return kNames[static_cast<std::size_t>(holds)];
}
std::string_view name(ProducerDuty duty) {
  constexpr std::string_view kNames[] = {"pages", "slot", "sends", "seal", "deadline"};
  static_assert(std::size(kNames) == kProducerDuties);
  return kNames[static_cast<std::size_t>(duty)];
}
std::string_view name(ConsumerDuty duty) {
  constexpr std::string_view kNames[] = {"memory", "channels", "work", "seal", "deadline"};
  static_assert(std::size(kNames) == kConsumerDuties);
  return kNames[static_cast<std::size_t>(duty)];
}

Holds holds(ProducerState state, ProducerDuty duty) {
  return kProducerHolds[static_cast<std::size_t>(state)][static_cast<std::size_t>(duty)];
}
Holds holds(ConsumerState state, ConsumerDuty duty) {
  return kConsumerHolds[static_cast<std::size_t>(state)][static_cast<std::size_t>(duty)];
}

std::span<const Transition<ProducerState>> producer_transitions() {
  return kProducer;
}
std::span<const Transition<ConsumerState>> consumer_transitions() {
  return kConsumer;
}

bool is_transition(ProducerState from, ProducerState to, std::string_view cause) {
  return has(kProducer, from, to, cause);
}
bool is_transition(ConsumerState from, ConsumerState to, std::string_view cause) {
  return has(kConsumer, from, to, cause);
}

}  // namespace isthmus::handoff
