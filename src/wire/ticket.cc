// SPDX-License-Identifier: Apache-2.0
// Ticket bytes: spec/handoff.md, "Ticket". Fixed little-endian fields, MAC last, the whole as base64url
// without padding.
#include "wire/ticket.h"

#include <fmt/format.h>

#include <array>

#include "base/bytes.h"
#include "wire/byte_writer.h"

namespace isthmus::wire {
namespace {

constexpr std::uint32_t kTicketMagic = 0x4b544849;  // "IHTK" read as bytes.
constexpr std::uint16_t kTicketVersion = 1;
constexpr std::uint16_t kFlagMayPrecedeAdmission = 1, kFlagMember = 2;
constexpr std::size_t kProducerBytesMax = 255;
constexpr std::string_view kTicketLabel = "isthmus ticket";
constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

constexpr std::string_view kFaultNames[] = {"none",
                                            "malformed",
                                            "altered",
                                            "expired",
                                            "other_producer",
                                            "other_incarnation",
                                            "unknown_reservation",
                                            "other_descriptor",
                                            "other_range",
                                            "no_proof",
                                            "superseded"};
static_assert(std::size(kFaultNames) == kTicketFaultCount);

Error malformed(std::string detail) {
  return {Code::kMalformed, "ticket: " + std::move(detail)};
}

std::string encode_base64url(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() * 4 + 2) / 3);
  std::uint32_t bits = 0;
  int held = 0;
  for (const std::byte byte : bytes) {
    bits = (bits << 8) | std::to_integer<std::uint32_t>(byte);
    for (held += 8; held >= 6; held -= 6) text += kAlphabet[(bits >> (held - 6)) & 63];
  }
  if (held > 0) text += kAlphabet[(bits << (6 - held)) & 63];
  return text;
}

Result<std::vector<std::byte>> decode_base64url(std::string_view text) {
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() * 3 / 4);
  std::uint32_t bits = 0;
  int held = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t value = kAlphabet.find(text[i]);
    if (value == std::string_view::npos) return malformed(fmt::format("character {} isn't base64url", i));
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<std::byte>((bits >> held) & 0xff));
  }
  // One text for one ticket: spare bits would let a relay alter the text unnoticed.
  if (held >= 6 || (bits & ((1u << held) - 1)) != 0) return malformed("its last character has spare bits");
  return bytes;
}

bool is_sound(const Membership& membership) {
  return membership.members <= kGroupMembersMax && membership.member < membership.members;
}

Mac ticket_mac(std::span<const std::byte> signed_bytes, const Key& fleet_key) {
  return hmac_sha256(derive_key(fleet_key, kTicketLabel, {}), signed_bytes);
}

}  // namespace

std::string_view name(TicketFault fault) {
  return kFaultNames[static_cast<std::size_t>(fault)];
}

Result<std::string> mint(const Ticket& ticket, const Key& fleet_key) {
  if (ticket.producer.empty() || ticket.producer.size() > kProducerBytesMax) {
    return Error{Code::kInvalidArgument, fmt::format("ticket: producer name of {} bytes, 1 to {} are allowed",
                                                     ticket.producer.size(), kProducerBytesMax)};
  }
  if (ticket.membership && !is_sound(*ticket.membership)) {
    return Error{Code::kInvalidArgument, fmt::format("ticket: member {} of {}", ticket.membership->member,
                                                     ticket.membership->members)};
  }
  std::uint16_t flags = ticket.may_precede_admission ? kFlagMayPrecedeAdmission : 0;
  if (ticket.membership) flags |= kFlagMember;
  ByteWriter writer;
  writer.number(kTicketMagic);
  writer.number(kTicketVersion);
  writer.number(flags);
  writer.id(ticket.incarnation);
  writer.id(ticket.reservation);
  writer.digest(ticket.descriptor);
  writer.number(ticket.tokens.begin);
  writer.number(ticket.tokens.end);
  writer.number(ticket.expires_ms);
  writer.id(ticket.nonce);
  writer.text(ticket.producer);
  if (ticket.membership) {
    writer.id(ticket.membership->group);
    writer.number(ticket.membership->member);
    writer.number(ticket.membership->members);
  }
  const Mac mac = ticket_mac(writer.bytes(), fleet_key);
  writer.raw(mac);
  return encode_base64url(writer.bytes());
}

Result<SignedTicket> parse_ticket(std::string_view text) {
  if (text.size() > kTicketTextMax) {
    return malformed(fmt::format("{} characters, at most {} are allowed", text.size(), kTicketTextMax));
  }
  ISTHMUS_TRY(const std::vector<std::byte> bytes, decode_base64url(text));
  SignedTicket parsed;
  if (bytes.size() < parsed.mac.size()) return malformed("it is too short for a MAC");
  const std::size_t signed_size = bytes.size() - parsed.mac.size();
  parsed.signed_bytes.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(signed_size));
  std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(signed_size), bytes.end(), parsed.mac.begin());
  ByteReader reader(parsed.signed_bytes);
  const auto magic = reader.number<std::uint32_t>();
  const auto version = reader.number<std::uint16_t>();
  const auto flags = reader.number<std::uint16_t>();
  parsed.ticket.incarnation = reader.id();
  parsed.ticket.reservation = reader.id();
  parsed.ticket.descriptor = reader.digest();
  parsed.ticket.tokens.begin = reader.number<std::uint64_t>();
  parsed.ticket.tokens.end = reader.number<std::uint64_t>();
  parsed.ticket.expires_ms = reader.number<std::uint64_t>();
  parsed.ticket.nonce = reader.id();
  parsed.ticket.producer = reader.text(kProducerBytesMax);
  parsed.ticket.may_precede_admission = (flags & kFlagMayPrecedeAdmission) != 0;
  if ((flags & kFlagMember) != 0) {
    Membership& membership = parsed.ticket.membership.emplace();
    membership.group = reader.id();
    membership.member = reader.number<std::uint32_t>();
    membership.members = reader.number<std::uint32_t>();
  }
  if (!reader.ok()) return malformed("it is cut short");
  if (magic != kTicketMagic) return malformed(fmt::format("magic {:08x} != {:08x}", magic, kTicketMagic));
  if (version != kTicketVersion)
    return malformed(fmt::format("version {} isn't {}", version, kTicketVersion));
  if (flags > (kFlagMayPrecedeAdmission | kFlagMember))
    return malformed(fmt::format("flags {:#x} are unknown", flags));
  if (reader.left() != 0) return malformed(fmt::format("{} bytes too many", reader.left()));
  if (const auto& membership = parsed.ticket.membership; membership && !is_sound(*membership))
    return malformed(fmt::format("member {} of {}", membership->member, membership->members));
  if (parsed.ticket.producer.empty()) return malformed("its producer has no name");
  return parsed;
}

TicketFault verify(const SignedTicket& ticket, const Key& fleet_key, const TicketFence& fence) {
  if (!equal_constant_time(ticket_mac(ticket.signed_bytes, fleet_key), ticket.mac))
    return TicketFault::kAltered;
  if (ticket.ticket.producer != fence.producer) return TicketFault::kOtherProducer;
  if (ticket.ticket.incarnation != fence.incarnation) return TicketFault::kOtherIncarnation;
  if (fence.now_ms && *fence.now_ms >= ticket.ticket.expires_ms) return TicketFault::kExpired;
  return TicketFault::kNone;
}

}  // namespace isthmus::wire
