// SPDX-License-Identifier: Apache-2.0
// What the cores show of their live entries: copies for people, metrics and tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/id.h"
#include "base/time.h"
#include "handoff/core/states.h"
#include "kv/geometry.h"
#include "wire/frames.h"

namespace isthmus::handoff {

// Producer: a reservation and, from kOpened on, the attempt that holds its slot.
struct ReservationView {
  Id128 id;
  ProducerState state = ProducerState::kPinned;
  kv::TokenRange tokens;
  std::uint64_t watermark = 0;  // Positions below it are final.
  std::uint32_t generation = 1;
  Instant lease_end = kFarFuture;  // When the reservation ends unless something happens.
  std::optional<wire::HandoffId> handoff;
  std::uint32_t attempt = 0;
  std::uint64_t session = 0;  // The holder's.
};

// Consumer: a handoff of its own.
struct HandoffView {
  wire::HandoffId handoff;
  std::uint32_t attempt = 0;
  std::uint32_t generation = 0;
  ConsumerState state = ConsumerState::kOpening;
  Instant lease_end = kFarFuture;  // kFarFuture: none has been granted yet.
  std::uint64_t session = 0;       // That it was begun on.
};

}  // namespace isthmus::handoff
