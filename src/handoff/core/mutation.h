// SPDX-License-Identifier: Apache-2.0
// Bugs that can be planted in the cores, to see the virtual world find them: `make mutations`,
// docs/mutations.md. In every other build mutation() is the constant false.
#pragma once

#include <cstdint>

namespace isthmus::handoff {

enum class Mutation : std::uint8_t {
  kNone,
  kSealWithoutR5,
  kDoneSkipsQuiesce,
  kOwnWithOpenChannel,
  kFenceOnControl,  // Planted in the world's shell: a core only names the channel.
  kLeaseFromReceipt,
  kRenewWithoutProgress,
  kPreemptionKeepsGeneration,
  kWatermarkInPartialTile,
  kFailureBeforeQuiet,
  kReserveBeforeAdmission,
  kAbortSkipsQuiesce,
  kCreditSurvivesRestart,
  kDoneKeepsReservation,
  kRestartFreesSealedSlot,
  kRootNotCompared,
  kOldGenerationCounts,
  kSlotFreeWhilePlacing,
  kTokenDigestNotCompared,
  kQuarantineFrees,
  kAttemptIgnored,
  kLeaseIgnored,
  kCreditSurvivesResume,
  kResumeKeepsOldGeneration,
  kStaleDoneReleases,
  kValidIgnoresAttempt,
  kValidFrees,
  kLeaderOwnsEarly,
};

}  // namespace isthmus::handoff
