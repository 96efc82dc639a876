// SPDX-License-Identifier: Apache-2.0
// The bounds of every frame, on its message; spec/handoff.md, "Frames".
#include <google/protobuf/stubs/common.h>

#include "wire/proto_fields.h"

namespace isthmus::wire {
namespace {

constexpr std::uint64_t kSequenceMax = (std::uint64_t{1} << 48) - 1;

void check_mac(std::string_view field, const std::string& mac, Bounds& bounds) {
  if (mac.size() != sizeof(Mac)) {
    bounds.fail(field, fmt::format("{} bytes isn't a MAC's {}", mac.size(), sizeof(Mac)));
  }
}

template <typename Repeated>
void check_range(std::string_view field, const Repeated& ranges, Bounds& bounds) {
  if (ranges.size() != 1) {
    bounds.fail(field, fmt::format("{} ranges; this version has exactly one", ranges.size()));
  } else if (ranges.Get(0).begin() >= ranges.Get(0).end()) {
    bounds.fail(field, fmt::format("[{}, {}) is empty", ranges.Get(0).begin(), ranges.Get(0).end()));
  }
}

void check(const v1::Address& in, Bounds& bounds) {
  bounds.between("address.sequence", in.sequence(), 1, kSequenceMax);
  bounds.between("address.attempt", in.attempt(), 1, kAttemptMax);
}

void check_failure(std::string_view field, std::uint32_t code, Bounds& bounds) {
  if (code == 0) bounds.fail(field, "0 (ok) isn't a failure");
  bounds.known(field, code, kCodeCount);
}

void check(const v1::Hello& in, Bounds& bounds) {
  bounds.text("hello.name", in.name(), kNameBytesMax);
  if (in.name().empty()) bounds.fail("hello.name", "it is empty");
  if (in.incarnation().high() == 0 && in.incarnation().low() == 0)
    bounds.fail("hello.incarnation", "it is zero");
  bounds.count("hello.descriptors", in.descriptors_size(), kDescriptorsMax);
  if (!bounds.status().ok()) return;  // Before a million descriptors are looked at.
  for (const v1::Descriptor& descriptor : in.descriptors()) check(descriptor, bounds);
}

void check(const v1::HelloProof& in, Bounds& bounds) {
  check_mac("hello_proof.mac", in.mac(), bounds);
}

void check(const v1::DataHello& in, Bounds& bounds) {
  check_mac("data_hello.mac", in.mac(), bounds);
  if (in.number() == 0) bounds.fail("data_hello.number", "0 isn't a channel");
}

void check(const v1::Open& in, Bounds& bounds) {
  check(in.address(), bounds);
  bounds.text("open.ticket", in.ticket(), kTicketTextMax);
  check_mac("open.proof", in.proof(), bounds);
  check_range("open.wanted", in.wanted(), bounds);
  bounds.known("open.exactness", in.exactness(), v1::Exactness_ARRAYSIZE);
  bounds.count("open.missing", in.missing_size(), kMissingMax);
  bounds.count("open.early_channels", in.early_channels_size(), kChannelsMax);
  bounds.count("open.codecs", in.codecs_size(), kCodecsMax);
  if (!in.resumes() && in.missing_size() > 0) bounds.fail("open.missing", "nothing is resumed");
  std::uint32_t after = 0;
  for (const v1::ChunkRange& range : in.missing()) {
    if (range.begin() < after || range.begin() >= range.end()) {
      bounds.fail("open.missing", fmt::format("[{}, {}) after {}", range.begin(), range.end(), after));
    }
    after = range.end();
  }
}

void check(const v1::Plan& in, Bounds& bounds) {
  check(in.address(), bounds);
  check_range("plan.tokens", in.tokens(), bounds);
  bounds.known("plan.verdict", in.verdict(), v1::VerdictKind_ARRAYSIZE);
  bounds.text("plan.wire_text", in.wire_text(), kTextBytesMax);
  bounds.known("plan.codec", in.codec(), kCodecCount);
}

void check(const v1::Reject& in, Bounds& bounds) {
  check(in.address(), bounds);
  check_failure("reject.code", in.code(), bounds);
  bounds.bytes("reject.detail", in.detail(), kTextBytesMax);
  bounds.known("reject.fault", in.fault(), kTicketFaultCount);
  bounds.count("reject.reasons", in.reasons_size(), kReasonsMax);
  for (const v1::Reason& reason : in.reasons()) {
    bounds.bytes("reject.reasons.path", reason.path(), kTextBytesMax);
    bounds.bytes("reject.reasons.source", reason.source(), kTextBytesMax);
    bounds.bytes("reject.reasons.target", reason.target(), kTextBytesMax);
    bounds.bytes("reject.reasons.text", reason.text(), kTextBytesMax);
  }
}

void check(const v1::Credit& in, Bounds& bounds) {
  check(in.address(), bounds);
  if (in.slots() == 0) bounds.fail("credit.slots", "0 slots hold no chunk");
  bounds.count("credit.channels", in.channels_size(), kChannelsMax);
}

void check(const v1::Seal& in, Bounds& bounds) {
  check(in.address(), bounds);
  check_range("seal.tokens", in.tokens(), bounds);
  bounds.count("seal.first_tokens", in.first_tokens_size(), kFirstTokensMax);
  bounds.known("seal.finish", in.finish(), v1::FinishState_ARRAYSIZE);
  check_mac("seal.mac", in.mac(), bounds);
}

void check(const v1::Released& in, Bounds& bounds) {
  check(in.address(), bounds);
  bounds.known("released.outcome", in.outcome(), v1::ReleaseOutcome_ARRAYSIZE);
}

void check(const v1::Cancel& in, Bounds& bounds) {
  check(in.address(), bounds);
  bounds.bytes("cancel.detail", in.detail(), kTextBytesMax);
  bounds.count("cancel.channels", in.channels_size(), kChannelsMax);
}

void check(const v1::Abort& in, Bounds& bounds) {
  check(in.address(), bounds);
  check_failure("abort.code", in.code(), bounds);
  bounds.bytes("abort.detail", in.detail(), kTextBytesMax);
  bounds.count("abort.channels", in.channels_size(), kChannelsMax);
}

void check(const v1::Renew& in, Bounds& bounds) {
  bounds.count("renew.items", in.items_size(), kRenewalsMax);
  for (const v1::Renewal& item : in.items()) check(item.address(), bounds);
}

void check(const v1::Renewed& in, Bounds& bounds) {
  bounds.count("renewed.items", in.items_size(), kRenewalsMax);
  for (const v1::RenewedItem& item : in.items()) check(item.address(), bounds);
}

void check(const v1::Valid& in, Bounds& bounds) {
  check(in.address(), bounds);
  check_mac("valid.mac", in.mac(), bounds);
}

void check(const v1::Validity& in, Bounds& bounds) {
  check(in.address(), bounds);
  check_mac("validity.mac", in.mac(), bounds);
}

void check(const v1::GroupBegin& in, Bounds& bounds) {
  if (in.tokens() == 0) bounds.fail("group_begin.tokens", "there is nothing to fetch");
  bounds.between("group_begin.members", static_cast<std::uint64_t>(in.members_size()), 1, kGroupMembersMax);
  bounds.count("group_begin.destination", in.destination_size(), kGroupMembersMax);
  if (!bounds.status().ok()) return;
  for (const v1::GroupMember& member : in.members()) {
    bounds.text("group_begin.members.ticket", member.ticket(), kTicketTextMax);
    bounds.count("group_begin.members.endpoints", member.endpoints_size(), kEndpointsMax);
    if (!bounds.status().ok()) return;
    for (const std::string& endpoint : member.endpoints())
      bounds.text("group_begin.members.endpoints", endpoint, kNameBytesMax);
  }
}

void check(const v1::GroupSeal& in, Bounds& bounds) {
  check_range("group_seal.tokens", in.tokens(), bounds);
  bounds.count("group_seal.first_tokens", in.first_tokens_size(), kFirstTokensMax);
  bounds.known("group_seal.finish", in.finish(), v1::FinishState_ARRAYSIZE);
}

void check(const v1::GroupWord& in, Bounds& bounds) {
  bounds.known("group_word.word", in.word(), v1::GroupWordKind_ARRAYSIZE);
  bounds.known("group_word.code", in.code(), kCodeCount);
  bounds.bytes("group_word.detail", in.detail(), kTextBytesMax);
  bounds.known("group_word.ending", in.ending(), kEndingCount);
  if (in.has_seal()) check(in.seal(), bounds);
}

void check(const v1::GroupReport& in, Bounds& bounds) {
  bounds.known("group_report.report", in.report(), v1::GroupReportKind_ARRAYSIZE);
  bounds.known("group_report.code", in.code(), kCodeCount);
  bounds.bytes("group_report.detail", in.detail(), kTextBytesMax);
  bounds.known("group_report.ending", in.ending(), kEndingCount);
  if (in.has_seal()) check(in.seal(), bounds);
}

// Frames that say nothing beside their address, or only numbers of any value.
template <typename Message>
void check(const Message& in, Bounds& bounds) {
  check(in.address(), bounds);
}

}  // namespace

void Bounds::text(std::string_view field, const std::string& value, std::size_t max) {
  bytes(field, value, max);
  // The parser's own test, so that the two can't differ.
  if (!google::protobuf::internal::IsStructurallyValidUTF8(value.data(), static_cast<int>(value.size())))
    fail(field, "it isn't UTF-8");
}

Status check_frame(const v1::Frame& frame, Code code) {
  Bounds bounds(code);
  if (!with_body(frame, [&bounds](const auto& body) { check(body, bounds); }))
    return Error{Code::kUnsupported, "frame: of a kind that this version doesn't know"};
  return bounds.status();
}

}  // namespace isthmus::wire
