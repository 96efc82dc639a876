// SPDX-License-Identifier: Apache-2.0
// Names, and the pairs that can't be.
#include "handoff/core/events.h"

#include <array>

namespace isthmus::handoff {
namespace {

using P = ProducerState;
using C = ConsumerState;
using PE = ProducerEvent;
using CE = ConsumerEvent;

constexpr std::string_view kNoHolder = "nobody holds the slot, and this is looked up by its holder";
constexpr std::string_view kUnborn = "prefill starts with admission";
constexpr std::string_view kNoChannels = "no CREDIT has named channels";
constexpr std::string_view kAsked = "reported once for each that was asked, and none is asked or left here";
constexpr std::string_view kQuiet = "every channel is fenced or closed by now";
constexpr std::string_view kByClass = "an OPEN of a slot that nobody holds is the first one";

constexpr Impossible<P, PE> kProducer[] = {
    {P::kPromised, PE::kGrew, kUnborn},
    {P::kPromised, PE::kPrefillDone, kUnborn},
    {P::kPromised, PE::kPreempted, kUnborn},
    {P::kPinned, PE::kSessionLost, kNoHolder},
    {P::kReleased, PE::kSessionLost, kNoHolder},
    {P::kPromised, PE::kChannelLost, kNoChannels},
    {P::kPinned, PE::kChannelLost, kNoHolder},
    {P::kQuarantined, PE::kChannelLost, "its channels were revoked"},
    {P::kReleased, PE::kChannelLost, kNoHolder},
    {P::kPromised, PE::kLifeOver, "the old life's sessions went first, and the promise with them"},
    {P::kPinned, PE::kLifeOver, kNoHolder},
    {P::kOpened, PE::kLifeOver, "the old life's sessions went first, and severed it"},
    {P::kGrowing, PE::kLifeOver, "the old life's sessions went first, and severed it"},
    {P::kReleased, PE::kLifeOver, kNoHolder},
    {P::kPinned, PE::kOpenNext, kByClass},
    {P::kReleased, PE::kOpenNext, kByClass},
    {P::kPinned, PE::kOpenOther, kByClass},
    {P::kReleased, PE::kOpenOther, kByClass},
    {P::kPinned, PE::kCredit, kNoHolder},
    {P::kPinned, PE::kDone, kNoHolder},
    {P::kPinned, PE::kCancel, kNoHolder},
    {P::kPinned, PE::kAbort, kNoHolder},
    {P::kPinned, PE::kRenew, kNoHolder},
    {P::kPinned, PE::kValid, kNoHolder},
    {P::kPinned, PE::kPlanReady, kNoHolder},
    {P::kPinned, PE::kPlanFailed, kNoHolder},
    {P::kPinned, PE::kChunkPacked, kNoHolder},
    {P::kPinned, PE::kChunkSent, kNoHolder},
    {P::kPinned, PE::kChunkLost, kNoHolder},
    {P::kPinned, PE::kSealReady, kNoHolder},
    {P::kQuarantined, PE::kDeadline, "it waits for a report alone"},
    {P::kReleased, PE::kDeadline, "what is over has no deadline"},
};

constexpr Impossible<C, CE> kConsumer[] = {
    {C::kClosed, CE::kSessionLost, "what is over has no session"},
    {C::kPromised, CE::kChannelLost, kNoChannels},
    {C::kPlanning, CE::kChannelLost, kNoChannels},
    {C::kReserving, CE::kChannelLost, kNoChannels},
    {C::kVerifying, CE::kChannelLost, kQuiet},
    {C::kConfirming, CE::kChannelLost, kQuiet},
    {C::kOwned, CE::kChannelLost, kQuiet},
    {C::kQuarantined, CE::kChannelLost, kQuiet},
    {C::kClosed, CE::kChannelLost, kQuiet},
    {C::kOpening, CE::kChunkArrived, kAsked},
    {C::kPromised, CE::kChunkArrived, kAsked},
    {C::kPlanning, CE::kChunkArrived, kAsked},
    {C::kReserving, CE::kChunkArrived, kAsked},
    {C::kVerifying, CE::kChunkArrived, kQuiet},
    {C::kConfirming, CE::kChunkArrived, kQuiet},
    {C::kOwned, CE::kChunkArrived, kQuiet},
    {C::kQuarantined, CE::kChunkArrived, kQuiet},
    {C::kClosed, CE::kChunkArrived, kQuiet},
    {C::kOpening, CE::kChunkPlaced, kAsked},
    {C::kPromised, CE::kChunkPlaced, kAsked},
    {C::kPlanning, CE::kChunkPlaced, kAsked},
    {C::kReserving, CE::kChunkPlaced, kAsked},
    {C::kVerifying, CE::kChunkPlaced, kAsked},
    {C::kConfirming, CE::kChunkPlaced, kAsked},
    {C::kOwned, CE::kChunkPlaced, kAsked},
    {C::kClosed, CE::kChunkPlaced, kAsked},
    {C::kOpening, CE::kPlacementFailed, kAsked},
    {C::kPromised, CE::kPlacementFailed, kAsked},
    {C::kPlanning, CE::kPlacementFailed, kAsked},
    {C::kReserving, CE::kPlacementFailed, kAsked},
    {C::kVerifying, CE::kPlacementFailed, kAsked},
    {C::kConfirming, CE::kPlacementFailed, kAsked},
    {C::kOwned, CE::kPlacementFailed, kAsked},
    {C::kClosed, CE::kPlacementFailed, kAsked},
    {C::kOpening, CE::kVerified, kAsked},
    {C::kPromised, CE::kVerified, kAsked},
    {C::kPlanning, CE::kVerified, kAsked},
    {C::kReserving, CE::kVerified, kAsked},
    {C::kReceiving, CE::kVerified, kAsked},
    {C::kResuming, CE::kVerified, kAsked},
    {C::kConfirming, CE::kVerified, kAsked},
    {C::kOwned, CE::kVerified, kAsked},
    {C::kClosed, CE::kVerified, kAsked},
    {C::kOpening, CE::kVerifyFailed, kAsked},
    {C::kPromised, CE::kVerifyFailed, kAsked},
    {C::kPlanning, CE::kVerifyFailed, kAsked},
    {C::kReserving, CE::kVerifyFailed, kAsked},
    {C::kReceiving, CE::kVerifyFailed, kAsked},
    {C::kResuming, CE::kVerifyFailed, kAsked},
    {C::kConfirming, CE::kVerifyFailed, kAsked},
    {C::kOwned, CE::kVerifyFailed, kAsked},
    {C::kClosed, CE::kVerifyFailed, kAsked},
    {C::kQuarantined, CE::kDeadline, "it waits for a report alone"},
    {C::kClosed, CE::kDeadline, "what is over has no deadline"},
};

template <std::size_t States, std::size_t Events, typename Pairs>
constexpr auto possible(const Pairs& impossible) {
  std::array<std::array<bool, Events>, States> table{};
  for (auto& row : table) row.fill(true);
  for (const auto& pair : impossible)
    table[static_cast<std::size_t>(pair.state)][static_cast<std::size_t>(pair.event)] = false;
  return table;
}
constexpr auto kProducerPossible = possible<kProducerStates, kProducerEvents>(kProducer);
constexpr auto kConsumerPossible = possible<kConsumerStates, kConsumerEvents>(kConsumer);

}  // namespace

std::string_view name(ProducerEvent event) {
  constexpr std::string_view kNames[] = {"admitted",
                                         "grew",
                                         "prefill done",
                                         "prefill failed",
                                         "preempted",
                                         "withdrawn",
                                         "superseded",
                                         "session lost",
                                         "channel lost",
                                         "consumer restarted",
                                         "OPEN",
                                         "OPEN, later attempt",
                                         "OPEN, another's",
                                         "CREDIT",
                                         "DONE",
                                         "CANCEL",
                                         "ABORT",
                                         "RENEW",
                                         "VALID?",
                                         "plan ready",
                                         "plan failed",
                                         "chunk packed",
                                         "chunk sent",
                                         "chunk lost",
                                         "seal ready",
                                         "deadline"};
  static_assert(std::size(kNames) == kProducerEvents);
  return kNames[static_cast<std::size_t>(event)];
}

std::string_view name(ConsumerEvent event) {
  constexpr std::string_view kNames[] = {
      "withdrawn",     "session lost",  "session found",    "session refused",
      "channel lost",  "PLAN",          "REJECT",           "PROMISED",
      "BUSY",          "SEAL",          "RELEASED",         "CANCEL",
      "ABORT",         "RESTART",       "RENEWED",          "plan ready",
      "plan failed",   "memory ready",  "memory refused",   "chunk header",
      "chunk arrived", "chunk placed",  "placement failed", "fence",
      "verified",      "verify failed", "VALIDITY",         "decided",
      "abandoned",     "deadline"};
  static_assert(std::size(kNames) == kConsumerEvents);
  return kNames[static_cast<std::size_t>(event)];
}

std::span<const Impossible<ProducerState, ProducerEvent>> producer_impossible() {
  return kProducer;
}
std::span<const Impossible<ConsumerState, ConsumerEvent>> consumer_impossible() {
  return kConsumer;
}

bool is_possible(ProducerState state, ProducerEvent event) {
  return kProducerPossible.at(static_cast<std::size_t>(state)).at(static_cast<std::size_t>(event));
}
bool is_possible(ConsumerState state, ConsumerEvent event) {
  return kConsumerPossible.at(static_cast<std::size_t>(state)).at(static_cast<std::size_t>(event));
}

}  // namespace isthmus::handoff
