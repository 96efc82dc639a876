// SPDX-License-Identifier: Apache-2.0
// A read-only view of an agent: what is in flight, what it holds. For people and tests; no keys, tickets or
// content in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "handoff/core/ledger.h"
#include "kv/geometry.h"

namespace isthmus::handoff {

// One handoff in flight, at one of its sides.
struct HandoffSnapshot {
  std::string id;  // "c0ffee01.17": the consumer's life, shortened, and its sequence; the same at both sides.
  bool is_producer = false;
  std::string peer;       // Agent's name; "" while it isn't known.
  std::string state;      // As in the tables of spec/handoff.md; "dialing" before OPEN.
  std::string transport;  // "" before there is a session.
  std::string wire;       // Wire form on one line; "" before there is a plan.
  kv::TokenRange tokens;
  std::uint32_t attempt = 0, generation = 0;
  Duration age{0};  // Consumer: since it was asked for. Producer: since the reservation was made.
  std::uint64_t bytes_moved = 0;
  std::optional<std::uint64_t> bytes_total;  // Once there is a plan.
  std::optional<Duration> lease_left;        // Once there is a lease; not negative.
};

// A state that is kept here for a consumer.
struct ReservationSnapshot {
  std::string id;  // Shortened.
  std::string state;
  kv::TokenRange tokens;
  std::uint64_t computed = 0;  // Positions below it are final.
  Duration age{0};
  Duration lease_left{0};
};

struct AgentSnapshot {
  std::vector<HandoffSnapshot> handoffs;
  std::vector<ReservationSnapshot> reservations;
  std::uint64_t handoffs_left_off = 0, reservations_left_off = 0;  // Beyond the bound that was asked for.
  std::uint64_t quarantined = 0;                                   // Destinations kept from use.
  std::uint64_t sessions = 0;
};

}  // namespace isthmus::handoff
