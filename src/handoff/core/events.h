// SPDX-License-Identifier: Apache-2.0
// Every kind of event that can reach a reservation or a handoff. With the state that it meets it is a cell of
// the table that `isthmus sim handoff --coverage` prints; what can't be is asserted by the cores as they meet
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "handoff/core/states.h"

namespace isthmus::handoff {

// Frames count for the slot's holder whatever their attempt and generation are; kReleased stands for "none":
// unknown, or over.
enum class ProducerEvent : std::uint8_t {
  kAdmitted,
  kGrew,
  kPrefillDone,
  kPrefillFailed,
  kPreempted,
  kWithdrawn,  // cancel() of the own side.
  kSuperseded,
  kSessionLost,
  kChannelLost,  // One that the holder's CREDIT named.
  kLifeOver,     // The holder's agent has restarted.
  kOpen,         // The first one, or the holder's again.
  kOpenNext,     // A later attempt of the holder.
  kOpenOther,    // Another handoff's, of a slot that is held.
  kCredit,
  kDone,
  kCancel,
  kAbort,
  kRenew,
  kValid,
  kPlanReady,
  kPlanFailed,
  kChunkPacked,
  kChunkSent,
  kChunkLost,  // chunk_sent() with an error.
  kSealReady,
  kDeadline,
};
inline constexpr std::size_t kProducerEvents = 26;

// kClosed stands for "none".
enum class ConsumerEvent : std::uint8_t {
  kWithdrawn,
  kSessionLost,
  kSessionFound,    // Of NeedSession.
  kSessionRefused,  // Of NeedSession.
  kChannelLost,     // One that was named, before its fence.
  kPlan,
  kReject,
  kPromised,
  kBusy,
  kSeal,
  kReleased,
  kCancel,
  kAbort,
  kRestart,
  kRenewed,
  kPlanReady,
  kPlanFailed,
  kMemoryReady,
  kMemoryRefused,
  kChunk,  // Its header: judge().
  kChunkArrived,
  kChunkPlaced,
  kPlacementFailed,
  kFence,
  kVerified,
  kVerifyFailed,
  kValidity,
  kDecided,    // Its group's word.
  kAbandoned,  // Its group's word.
  kDeadline,
};
inline constexpr std::size_t kConsumerEvents = 30;

std::string_view name(ProducerEvent event);
std::string_view name(ConsumerEvent event);

// A pair that can't be, and why. Nothing that a peer sends decides it.
template <typename State, typename Event>
struct Impossible {
  State state;
  Event event;
  std::string_view why;
};
std::span<const Impossible<ProducerState, ProducerEvent>> producer_impossible();
std::span<const Impossible<ConsumerState, ConsumerEvent>> consumer_impossible();
bool is_possible(ProducerState state, ProducerEvent event);
bool is_possible(ConsumerState state, ConsumerEvent event);

}  // namespace isthmus::handoff
