// SPDX-License-Identifier: Apache-2.0
// States of both sides and every transition there is; spec/handoff.md holds the same tables, and a test
// compares them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace isthmus::handoff {

//   promised ─admitted→ pinned ⇄ opened → growing → sealed ─done→ quiescing → released
// severed from opened and growing when a connection is lost, back to opened by the holder's next attempt;
// from any of them to quiescing on cancel, expiry, failure, abort; from quiescing back to pinned when only
// the attempt ended and the reservation still holds.
enum class ProducerState : std::uint8_t {
  kPromised,     // OPEN came before the reservation was admitted; nothing is held.
  kPinned,       // Pages are held, no consumer.
  kOpened,       // A consumer holds the slot; PLAN is being made or has been sent.
  kGrowing,      // CREDIT has come; chunks move below the stability watermark.
  kSevered,      // A connection is lost; the slot waits for its holder's next attempt.
  kSealed,       // SEAL has been sent; pages stay until DONE or expiry.
  kQuiescing,    // Senders may still read pages.
  kQuarantined,  // A pack never reported back; the pages are kept until it does.
  kReleased,     // Final.
};
inline constexpr std::size_t kProducerStates = 9;

//   opening → (promised →) planning → reserving → receiving → verifying → owned → closed
// from any before verifying to resuming and back to opening when a connection is lost;
// from any before owned to quiescing; from there to closed, or quarantined.
enum class ConsumerState : std::uint8_t {
  kOpening,      // OPEN has been sent.
  kPromised,     // PROMISED has come.
  kPlanning,     // PLAN has come; the own plan is being made.
  kReserving,    // Waiting for the transient peak: ledger first, then memory.
  kReceiving,    // CREDIT has been sent; chunks land.
  kResuming,     // A connection is lost; what has come is kept for the next attempt.
  kVerifying,    // Everything has come and is fenced; the state is being read back.
  kConfirming,   // Read back; waits for the producer's VALIDITY, or for its group.
  kOwned,        // Own. DONE is repeated until RELEASED.
  kQuiescing,    // Not to be owned; the destination may still be written.
  kQuarantined,  // A placement never reported back; the destination is kept until it does.
  kClosed,       // Final.
};
inline constexpr std::size_t kConsumerStates = 12;

template <typename State>
struct Transition {
  State from, to;
  std::string_view cause;  // As in the spec's table.
};

std::string_view name(ProducerState state);
std::string_view name(ConsumerState state);
std::span<const Transition<ProducerState>> producer_transitions();
std::span<const Transition<ConsumerState>> consumer_transitions();

// What an entry has in hand in a state; what it hasn't, nobody has to give back. check() compares.
enum class Holds : std::uint8_t { kNo, kMay, kYes };
enum class ProducerDuty : std::uint8_t {
  kPages,     // Pinned in the ledger.
  kSlot,      // A holder, or an opener that waits.
  kSends,     // Chunks that haven't reported.
  kSeal,      // A SEAL that has been sent.
  kDeadline,  // Something that will happen if nothing else does.
};
inline constexpr std::size_t kProducerDuties = 5;
enum class ConsumerDuty : std::uint8_t {
  kMemory,    // Destination and staging, granted in the ledger; the engine's once owned.
  kChannels,  // Named, not yet fenced or closed.
  kWork,      // Chunks that land or are being placed, or a reading back.
  kSeal,      // An accepted SEAL.
  kDeadline,
};
inline constexpr std::size_t kConsumerDuties = 5;
std::string_view name(Holds holds);
std::string_view name(ProducerDuty duty);
std::string_view name(ConsumerDuty duty);
Holds holds(ProducerState state, ProducerDuty duty);
Holds holds(ConsumerState state, ConsumerDuty duty);

// True if the table has this transition. A core that makes another one has a bug.
bool is_transition(ProducerState from, ProducerState to, std::string_view cause);
bool is_transition(ConsumerState from, ConsumerState to, std::string_view cause);

}  // namespace isthmus::handoff
