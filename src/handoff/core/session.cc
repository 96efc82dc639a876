// SPDX-License-Identifier: Apache-2.0
// Handshake and frame MACs: spec/handoff.md, "Session".
#include "handoff/core/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/digest.h"
#include "wire/byte_writer.h"

namespace isthmus::handoff {
namespace {

constexpr std::size_t kFrameMacBytes = 16;
constexpr std::size_t kTrailerBytes = 8 + kFrameMacBytes;  // Counter, MAC.
constexpr std::size_t kNumbersMax =
    1024;  // Data channels that one session ever binds, reconnections included.

Error refuse(Code code, std::string detail) {
  return {code, "session: " + std::move(detail)};
}

std::string_view role_name(SessionRole role) {
  return role == SessionRole::kDialer ? "dialer" : "acceptor";
}
SessionRole other(SessionRole role) {
  return role == SessionRole::kDialer ? SessionRole::kAcceptor : SessionRole::kDialer;
}

Mac frame_mac(const Key& key, std::span<const std::byte> body_and_counter) {
  return hmac_sha256(key, body_and_counter);
}

}  // namespace

Session::Session(SessionOptions options) : options_(std::move(options)) {}

Result<Session> Session::make(SessionOptions options) {
  for (const kv::Descriptor& descriptor : options.descriptors) ISTHMUS_TRY(descriptor.validate());
  Session session(std::move(options));
  const SessionOptions& own = session.options_;
  ISTHMUS_TRY(session.hello_, wire::encode(wire::Hello{own.name, own.incarnation, own.challenge,
                                                       own.descriptors, own.repeats_states}));
  return session;
}

const Peer& Session::peer() const {
  ISTHMUS_CHECK(established_);
  return peer_;
}

Id128 Session::id() const {
  ISTHMUS_CHECK(has_id());
  const bool dialer = options_.role == SessionRole::kDialer;
  DigestStream stream;
  stream.add(dialer ? hello_ : peer_hello_);
  stream.add(dialer ? peer_hello_ : hello_);
  const Digest128 digest = stream.finish();
  return {digest.high, digest.low};
}

// Over the sender's role, so that a proof can't be sent back to its maker, and both hellos, which hold both
// challenges.
Mac Session::proof_mac(SessionRole sender) const {
  const bool dialer = options_.role == SessionRole::kDialer;
  wire::ByteWriter writer;
  writer.text("isthmus proof");
  writer.text(role_name(sender));
  writer.text(text_of(dialer ? hello_ : peer_hello_));
  writer.text(text_of(dialer ? peer_hello_ : hello_));
  return hmac_sha256(options_.fleet_key, writer.bytes());
}

Result<Session::Input> Session::receive(std::span<const std::byte> bytes) {
  if (peer_hello_.empty()) return receive_hello(bytes);
  if (!established_) return receive_proof(bytes);
  return receive_sealed(bytes);
}

Result<Session::Input> Session::receive_hello(std::span<const std::byte> bytes) {
  ISTHMUS_TRY(wire::Frame frame, wire::decode(bytes));
  auto* hello = std::get_if<wire::Hello>(&frame);
  if (hello == nullptr)
    return refuse(Code::kUnavailable, fmt::format("{} came before HELLO", wire::name(frame)));
  if (!options_.expected_peer.empty() && hello->name != options_.expected_peer) {
    return refuse(Code::kUnavailable, fmt::format("the peer says it is '{}', '{}' was dialled", hello->name,
                                                  options_.expected_peer));
  }
  if (hello->incarnation == options_.incarnation)
    return refuse(Code::kUnavailable, "the peer has this agent's own incarnation");
  for (const kv::Descriptor& descriptor : hello->descriptors) {
    ISTHMUS_TRY(descriptor.validate().with_context(fmt::format("session: descriptor of '{}'", hello->name)));
  }
  peer_hello_.assign(bytes.begin(), bytes.end());
  peer_.name = hello->name;
  peer_.incarnation = hello->incarnation;
  peer_.descriptors = std::move(hello->descriptors);
  peer_.repeats_states = hello->repeats_states;
  Input input;
  ISTHMUS_TRY(std::vector<std::byte> proof, wire::encode(wire::HelloProof{proof_mac(options_.role)}));
  input.send.push_back(std::move(proof));
  return input;
}

Result<Session::Input> Session::receive_proof(std::span<const std::byte> bytes) {
  ISTHMUS_TRY(const wire::Frame frame, wire::decode(bytes));
  const auto* proof = std::get_if<wire::HelloProof>(&frame);
  if (proof == nullptr)
    return refuse(Code::kUnavailable, fmt::format("{} came before HELLO_PROOF", wire::name(frame)));
  if (!equal_constant_time(proof->mac, proof_mac(other(options_.role)))) {
    return refuse(Code::kUnavailable, fmt::format("'{}' doesn't have the fleet key", peer_.name));
  }
  const bool dialer = options_.role == SessionRole::kDialer;
  wire::ByteWriter transcript;
  transcript.text(text_of(dialer ? hello_ : peer_hello_));
  transcript.text(text_of(dialer ? peer_hello_ : hello_));
  peer_.session_key = derive_key(options_.fleet_key, "isthmus session", transcript.bytes());
  send_key_ = derive_key(peer_.session_key, role_name(options_.role), {});
  receive_key_ = derive_key(peer_.session_key, role_name(other(options_.role)), {});
  established_ = true;
  Input input;
  input.established = true;
  return input;
}

Result<Session::Input> Session::receive_sealed(std::span<const std::byte> bytes) {
  if (bytes.size() < kTrailerBytes)
    return refuse(Code::kMalformed, fmt::format("a frame of {} bytes has no MAC", bytes.size()));
  const auto signed_bytes = bytes.first(bytes.size() - kFrameMacBytes);
  const Mac mac = frame_mac(receive_key_, signed_bytes);
  if (!equal_constant_time(std::span(mac).first(kFrameMacBytes), bytes.last(kFrameMacBytes))) {
    return refuse(Code::kCorrupt, "a frame's MAC is wrong");
  }
  const auto counter = load_le<std::uint64_t>(signed_bytes.last(8));
  if (counter != received_ + 1) {
    return refuse(Code::kAborted, fmt::format("frame {} came where {} was due", counter, received_ + 1));
  }
  ISTHMUS_TRY(wire::Frame frame, wire::decode(signed_bytes.first(signed_bytes.size() - 8)));
  if (std::holds_alternative<wire::Hello>(frame) || std::holds_alternative<wire::HelloProof>(frame) ||
      std::holds_alternative<wire::DataHello>(frame)) {
    return refuse(Code::kUnavailable, fmt::format("{} came within a session", wire::name(frame)));
  }
  received_ = counter;
  Input input;
  input.frame = std::move(frame);
  return input;
}

Result<std::vector<std::byte>> Session::seal(const wire::Frame& frame) {
  ISTHMUS_CHECK(established_);
  ISTHMUS_TRY(std::vector<std::byte> bytes, wire::encode(frame));
  wire::ByteWriter counter;
  counter.number(++sent_);
  bytes.insert(bytes.end(), counter.bytes().begin(), counter.bytes().end());
  const Mac mac = frame_mac(send_key_, bytes);
  bytes.insert(bytes.end(), mac.begin(), mac.begin() + kFrameMacBytes);
  return bytes;
}

Mac Session::data_mac(std::uint32_t number, bool from_acceptor) const {
  wire::ByteWriter writer;
  writer.text("isthmus data");
  writer.id(id());
  writer.number(number);
  writer.number(static_cast<std::uint8_t>(from_acceptor ? 1 : 0));
  return hmac_sha256(peer_.session_key, writer.bytes());
}

Status Session::take_number(std::uint32_t number) {
  if (numbers_.size() >= kNumbersMax) {
    return refuse(Code::kExhausted,
                  fmt::format("{} data channels have been bound; open another session", kNumbersMax));
  }
  if (!numbers_.insert(number).second)
    return refuse(Code::kAborted, fmt::format("data channel {} was bound before", number));
  return ok_status();
}

Result<std::vector<std::byte>> Session::data_hello(std::uint32_t number) {
  ISTHMUS_CHECK(established_);
  ISTHMUS_TRY(take_number(number));
  return wire::encode(wire::DataHello{id(), number, false, data_mac(number, false)});
}

Result<std::vector<std::byte>> Session::accept_data(const wire::DataHello& hello) {
  if (!established_ || options_.role != SessionRole::kAcceptor) {
    return refuse(Code::kUnavailable, "a data channel came to a session that takes none");
  }
  if (hello.from_acceptor || hello.session != id() ||
      !equal_constant_time(hello.mac, data_mac(hello.number, false))) {
    return refuse(Code::kUnavailable, fmt::format("data channel {} isn't of this session", hello.number));
  }
  ISTHMUS_TRY(take_number(hello.number));
  return wire::encode(wire::DataHello{id(), hello.number, true, data_mac(hello.number, true)});
}

Status Session::confirm_data(const wire::DataHello& answer) {
  if (!established_ || !answer.from_acceptor || answer.session != id() || !numbers_.contains(answer.number) ||
      !equal_constant_time(answer.mac, data_mac(answer.number, true))) {
    return refuse(Code::kUnavailable,
                  fmt::format("data channel {}: the acceptor's answer isn't of this session", answer.number));
  }
  return ok_status();
}

}  // namespace isthmus::handoff
