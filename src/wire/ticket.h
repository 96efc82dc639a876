// SPDX-License-Identifier: Apache-2.0
// Tickets: signed capabilities, as text that any router may relay, to open one slot of one reservation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/id.h"
#include "base/mac.h"
#include "base/status.h"
#include "kv/geometry.h"

namespace isthmus::wire {

inline constexpr std::size_t kTicketTextMax = 2048;  // Fits an HTTP header and a JSON field of any relay.

inline constexpr std::uint32_t kGroupMembersMax = 256;

// Of a reservation that is a part of a state on several ranks: one holds a whole state with all others of its
// group only.
struct Membership {
  Id128 group;  // Fresh random value; the same in all tickets of one offer.
  std::uint32_t member = 0, members = 0;
  friend bool operator==(const Membership&, const Membership&) = default;
};

// Endpoints travel beside a ticket, not in it: gateways rewrite them.
struct Ticket {
  std::string producer;  // The producing agent's name, ≤ 255 bytes.
  Id128 incarnation;     // The producer's life that will honour it.
  Id128 reservation;
  Digest128 descriptor;  // Of the source state.
  kv::TokenRange tokens;
  std::uint64_t expires_ms = 0;  // Milliseconds since that incarnation began, on its clock.
  Id128 nonce;
  bool may_precede_admission =
      false;  // Minted by a router: OPEN may arrive before the reservation is admitted.
  std::optional<Membership> membership = std::nullopt;
  friend bool operator==(const Ticket&, const Ticket&) = default;
};

// Why a ticket isn't honoured. Numbers cross the wire in REJECT.
enum class TicketFault : std::uint8_t {
  kNone = 0,
  kMalformed = 1,  // Not a ticket.
  kAltered = 2,    // Its MAC isn't the fleet's.
  kExpired = 3,
  kOtherProducer = 4,     // For an agent of another name.
  kOtherIncarnation = 5,  // Of this agent's past (or not its) life.
  kUnknownReservation = 6,
  kOtherDescriptor = 7,  // The reservation's state has another descriptor.
  kOtherRange = 8,       // Asks for tokens outside the reservation.
  kSuperseded = 10,      // The slot was given to another opener; an older ticket.
  kNoProof = 9,          // The opener didn't prove possession of the session key.
};
inline constexpr std::uint8_t kTicketFaultCount = 11;
std::string_view name(TicketFault fault);  // "altered", "other_incarnation", …

// A ticket as read from text: nothing in it may be believed before verify().
struct SignedTicket {
  Ticket ticket;
  std::vector<std::byte> signed_bytes;
  Mac mac{};
};

// base64url text of the ticket and its HMAC-SHA-256 under the fleet key. invalid_argument if the name is too
// long.
Result<std::string> mint(const Ticket& ticket, const Key& fleet_key);

// malformed, saying what is wrong with the text.
Result<SignedTicket> parse_ticket(std::string_view text);

// What the verifier knows. An empty field isn't checked: a consumer has no view of the producer's clock or
// reservations.
struct TicketFence {
  std::string producer;
  Id128 incarnation;
  std::optional<std::uint64_t> now_ms;  // Milliseconds since the producer's incarnation began.
};

// The first fault, in the order altered, other producer, other incarnation, expired. The reservation, its
// descriptor and range are the producer core's to check.
TicketFault verify(const SignedTicket& ticket, const Key& fleet_key, const TicketFence& fence);

}  // namespace isthmus::wire
