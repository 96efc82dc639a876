// SPDX-License-Identifier: Apache-2.0
// Frames without their encoding: names, addresses, MACs, durations.
#include "wire/frames.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "wire/byte_writer.h"

namespace isthmus::wire {
namespace {

constexpr std::string_view kNames[] = {
    "HELLO",   "HELLO_PROOF", "DATA_HELLO", "OPEN",        "PLAN",       "REJECT",      "PROMISED", "BUSY",
    "CREDIT",  "SEAL",        "DONE",       "RELEASED",    "CANCEL",     "ABORT",       "RESTART",  "RENEW",
    "RENEWED", "VALID?",      "VALIDITY",   "GROUP_BEGIN", "GROUP_WORD", "GROUP_REPORT"};
static_assert(std::size(kNames) == std::variant_size_v<Frame>);

constexpr std::uint64_t kMsMax = std::uint64_t{1} << 40;

}  // namespace

std::string HandoffId::text() const {
  return fmt::format("{}.{}", consumer.hex(), sequence);
}

std::uint64_t fence_token(const HandoffId& handoff, std::uint32_t attempt) {
  return (handoff.sequence << 16) | (attempt & kAttemptMax);
}

std::string_view name(const Frame& frame) {
  return kNames[frame.index()];
}

const Address* address_of(const Frame& frame) {
  return std::visit(
      [](const auto& body) -> const Address* {
        if constexpr (requires { body.address; }) {
          return &body.address;
        } else {
          return nullptr;
        }
      },
      frame);
}

bool is_for_consumer(const Frame& frame, const Id128& local) {
  if (std::holds_alternative<Renew>(frame)) return false;
  if (std::holds_alternative<Renewed>(frame)) return true;
  const Address* address = address_of(frame);
  if (address == nullptr) return false;
  if (std::holds_alternative<Cancel>(frame) || std::holds_alternative<Abort>(frame)) {
    return address->handoff.consumer == local;
  }
  return !(std::holds_alternative<Open>(frame) || std::holds_alternative<Credit>(frame) ||
           std::holds_alternative<Done>(frame) || std::holds_alternative<Valid>(frame));
}

namespace {

void write_address(ByteWriter& writer, const Address& address) {
  writer.id(address.handoff.consumer);
  writer.number(address.handoff.sequence);
  writer.number(address.attempt);
  writer.number(address.generation);
}

}  // namespace

Mac open_proof(const Key& session_key, const Id128& nonce, const HandoffId& handoff, std::uint32_t attempt) {
  ByteWriter writer;
  writer.text("isthmus open");
  writer.id(nonce);
  writer.id(handoff.consumer);
  writer.number(handoff.sequence);
  writer.number(attempt);
  return hmac_sha256(session_key, writer.bytes());
}

Mac seal_mac(const Key& session_key, const Seal& seal) {
  ByteWriter writer;
  writer.text("isthmus seal");
  write_address(writer, seal.address);
  writer.digest(seal.plan);
  writer.number(seal.tokens.begin);
  writer.number(seal.tokens.end);
  writer.digest(seal.token_digest);
  writer.digest(seal.tile_root);
  writer.number(static_cast<std::uint32_t>(seal.first_tokens.size()));
  for (const std::int32_t token : seal.first_tokens) writer.number(token);
  writer.number(static_cast<std::uint32_t>(seal.finish));
  return hmac_sha256(session_key, writer.bytes());
}

Mac valid_mac(const Key& session_key, const Valid& valid) {
  ByteWriter writer;
  writer.text("isthmus valid");
  write_address(writer, valid.address);
  writer.number(valid.number);
  return hmac_sha256(session_key, writer.bytes());
}

Mac validity_mac(const Key& session_key, const Validity& validity) {
  ByteWriter writer;
  writer.text("isthmus validity");
  write_address(writer, validity.address);
  writer.number(validity.number);
  writer.number(std::uint32_t{validity.is_valid});
  return hmac_sha256(session_key, writer.bytes());
}

std::uint64_t to_ms(Duration duration) {
  if (duration <= Duration::zero()) return 0;
  const auto ms =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
  return ms < kMsMax ? ms : kMsMax;
}

Duration from_ms(std::uint64_t ms) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(ms < kMsMax ? ms : kMsMax));
}

}  // namespace isthmus::wire
