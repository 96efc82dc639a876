// SPDX-License-Identifier: Apache-2.0
// Frames to and from Protocol Buffers; the one user of the generated code besides the descriptor's.
#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>

#include "base/bytes.h"
#include "wire/frames.h"
#include "wire/proto_fields.h"

namespace isthmus::wire {
namespace {

constexpr std::uint64_t kSequenceMax = (std::uint64_t{1} << 48) - 1;

// --- Fields. put() writes, get() reads and checks.

template <typename Pair, typename Out>
void put_pair(const Pair& value, Out& out) {
  out.set_high(value.high);
  out.set_low(value.low);
}
void put(const kv::TokenRange& range, v1::TokenRange& out) {
  out.set_begin(range.begin);
  out.set_end(range.end);
}
void put(const Address& address, v1::Address& out) {
  put_pair(address.handoff.consumer, *out.mutable_consumer());
  out.set_sequence(address.handoff.sequence);
  out.set_attempt(address.attempt);
  out.set_generation(address.generation);
}
std::string mac_text(const Mac& mac) {
  return std::string(text_of(mac));
}

Id128 get_id(const v1::Id& in) {
  return {in.high(), in.low()};
}
Digest128 get_digest(const v1::Digest& in) {
  return {in.high(), in.low()};
}

Result<Address> get(const v1::Address& in) {
  Address address{{get_id(in.consumer()), in.sequence()}, in.attempt(), in.generation()};
  if (address.handoff.sequence == 0 || address.handoff.sequence > kSequenceMax) {
    return malformed_field("address.sequence",
                           fmt::format("{} isn't in [1, 2^48)", address.handoff.sequence));
  }
  if (address.attempt == 0 || address.attempt > kAttemptMax) {
    return malformed_field("address.attempt",
                           fmt::format("{} isn't in [1, {}]", address.attempt, kAttemptMax));
  }
  return address;
}

Result<Mac> get_mac(std::string_view field, const std::string& in) {
  Mac mac{};
  if (in.size() != mac.size())
    return malformed_field(field, fmt::format("{} bytes isn't a MAC's {}", in.size(), mac.size()));
  std::ranges::copy(bytes_of(in), mac.begin());
  return mac;
}

template <typename Repeated>
Result<kv::TokenRange> get_range(std::string_view field, const Repeated& in) {
  if (in.size() != 1)
    return malformed_field(field, fmt::format("{} ranges; this version has exactly one", in.size()));
  const kv::TokenRange range{in.Get(0).begin(), in.Get(0).end()};
  if (range.begin >= range.end)
    return malformed_field(field, fmt::format("[{}, {}) is empty", range.begin, range.end));
  return range;
}

template <typename Enum>
Result<Enum> get_enum(std::string_view field, std::uint32_t value, std::uint32_t count) {
  if (value >= count) return malformed_field(field, fmt::format("{} is unknown", value));
  return static_cast<Enum>(value);
}

Result<Code> get_code(std::string_view field, std::uint32_t value) {
  if (value == 0) return malformed_field(field, "0 (ok) isn't a failure");
  return get_enum<Code>(field, value, kCodeCount);
}

template <typename Repeated>
Result<std::vector<std::uint32_t>> get_channels(const Repeated& in) {
  if (static_cast<std::size_t>(in.size()) > kChannelsMax) {
    return malformed_field("channels",
                           fmt::format("{} entries, at most {} are allowed", in.size(), kChannelsMax));
  }
  return std::vector<std::uint32_t>(in.begin(), in.end());
}

Result<std::string> get_text(std::string_view field, const std::string& in) {
  if (in.size() > kTextBytesMax)
    return malformed_field(field, fmt::format("{} bytes, at most {} are allowed", in.size(), kTextBytesMax));
  return in;
}

// --- Frames, each way.

void put(const Hello& frame, v1::Frame& out, Bounds& bounds) {
  v1::Hello& hello = *out.mutable_hello();
  bounds.text("hello.name", frame.name, kNameBytesMax);
  bounds.count("hello.descriptors", frame.descriptors.size(), kDescriptorsMax);
  hello.set_name(frame.name);
  put_pair(frame.incarnation, *hello.mutable_incarnation());
  put_pair(frame.challenge, *hello.mutable_challenge());
  for (const kv::Descriptor& descriptor : frame.descriptors) {
    const Status fits = check_bounds(descriptor, Code::kInvalidArgument);
    if (!fits.ok()) bounds.fail("hello.descriptors: " + fits.error().detail);
    write_descriptor(descriptor, *hello.add_descriptors());
  }
}

Result<Frame> get(const v1::Hello& in) {
  Hello frame;
  frame.name = in.name();
  if (frame.name.empty() || frame.name.size() > kNameBytesMax) {
    return malformed_field("hello.name",
                           fmt::format("{} bytes, 1 to {} are allowed", frame.name.size(), kNameBytesMax));
  }
  frame.incarnation = get_id(in.incarnation());
  frame.challenge = get_id(in.challenge());
  if (frame.incarnation.is_zero()) return malformed_field("hello.incarnation", "it is zero");
  if (static_cast<std::size_t>(in.descriptors_size()) > kDescriptorsMax) {
    return malformed_field("hello.descriptors", fmt::format("{} entries, at most {} are allowed",
                                                            in.descriptors_size(), kDescriptorsMax));
  }
  for (const v1::Descriptor& descriptor : in.descriptors()) {
    ISTHMUS_TRY(kv::Descriptor read, read_descriptor(descriptor));
    frame.descriptors.push_back(std::move(read));
  }
  return Frame(std::move(frame));
}

void put(const HelloProof& frame, v1::Frame& out, Bounds&) {
  out.mutable_hello_proof()->set_mac(mac_text(frame.mac));
}

Result<Frame> get(const v1::HelloProof& in) {
  ISTHMUS_TRY(const Mac mac, get_mac("hello_proof.mac", in.mac()));
  return Frame(HelloProof{mac});
}

void put(const DataHello& frame, v1::Frame& out, Bounds&) {
  v1::DataHello& hello = *out.mutable_data_hello();
  put_pair(frame.session, *hello.mutable_session());
  hello.set_number(frame.number);
  hello.set_from_acceptor(frame.from_acceptor);
  hello.set_mac(mac_text(frame.mac));
}

Result<Frame> get(const v1::DataHello& in) {
  ISTHMUS_TRY(const Mac mac, get_mac("data_hello.mac", in.mac()));
  if (in.number() == 0) return malformed_field("data_hello.number", "0 isn't a channel");
  return Frame(DataHello{get_id(in.session()), in.number(), in.from_acceptor(), mac});
}

void put(const Open& frame, v1::Frame& out, Bounds& bounds) {
  v1::Open& open = *out.mutable_open();
  bounds.text("open.ticket", frame.ticket, kTicketTextMax);
  put(frame.address, *open.mutable_address());
  open.set_ticket(frame.ticket);
  open.set_proof(mac_text(frame.proof));
  put_pair(frame.target, *open.mutable_target());
  put(frame.wanted, *open.add_wanted());
  open.set_exactness(static_cast<v1::Exactness>(frame.exactness));
  open.set_roundings_max(frame.roundings_max);
  open.set_deadline_ms(frame.deadline_ms);
}

Result<Frame> get(const v1::Open& in) {
  Open frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  frame.ticket = in.ticket();
  if (frame.ticket.size() > kTicketTextMax) {
    return malformed_field(
        "open.ticket", fmt::format("{} bytes, at most {} are allowed", frame.ticket.size(), kTicketTextMax));
  }
  ISTHMUS_TRY(frame.proof, get_mac("open.proof", in.proof()));
  frame.target = get_digest(in.target());
  ISTHMUS_TRY(frame.wanted, get_range("open.wanted", in.wanted()));
  ISTHMUS_TRY(frame.exactness,
              get_enum<kv::Exactness>("open.exactness", static_cast<std::uint32_t>(in.exactness()), 3));
  frame.roundings_max = in.roundings_max();
  frame.deadline_ms = in.deadline_ms();
  return Frame(std::move(frame));
}

void put(const Plan& frame, v1::Frame& out, Bounds& bounds) {
  v1::Plan& plan = *out.mutable_plan();
  bounds.text("plan.wire_text", frame.wire_text, kTextBytesMax);
  put(frame.address, *plan.mutable_address());
  put_pair(frame.source, *plan.mutable_source());
  put(frame.tokens, *plan.add_tokens());
  plan.set_verdict(static_cast<v1::VerdictKind>(frame.verdict));
  plan.set_wire_text(frame.wire_text);
  put_pair(frame.plan, *plan.mutable_plan());
  plan.set_chunk_count(frame.chunk_count);
  plan.set_slot_bytes(frame.slot_bytes);
  plan.set_total_bytes(frame.total_bytes);
  plan.set_lease_ms(frame.lease_ms);
}

Result<Frame> get(const v1::Plan& in) {
  Plan frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  frame.source = get_digest(in.source());
  ISTHMUS_TRY(frame.tokens, get_range("plan.tokens", in.tokens()));
  ISTHMUS_TRY(frame.verdict,
              get_enum<kv::VerdictKind>("plan.verdict", static_cast<std::uint32_t>(in.verdict()), 5));
  ISTHMUS_TRY(frame.wire_text, get_text("plan.wire_text", in.wire_text()));
  frame.plan = get_digest(in.plan());
  frame.chunk_count = in.chunk_count();
  frame.slot_bytes = in.slot_bytes();
  frame.total_bytes = in.total_bytes();
  frame.lease_ms = in.lease_ms();
  return Frame(std::move(frame));
}

void put(const Reject& frame, v1::Frame& out, Bounds& bounds) {
  v1::Reject& reject = *out.mutable_reject();
  bounds.text("reject.detail", frame.detail, kTextBytesMax);
  bounds.count("reject.reasons", frame.reasons.size(), kReasonsMax);
  put(frame.address, *reject.mutable_address());
  reject.set_code(static_cast<std::uint32_t>(frame.code));
  reject.set_detail(frame.detail);
  reject.set_fault(static_cast<std::uint32_t>(frame.fault));
  for (const kv::Reason& reason : frame.reasons) {
    for (const std::string* text : {&reason.path, &reason.source, &reason.target, &reason.text}) {
      bounds.text("reject.reasons", *text, kTextBytesMax);
    }
    v1::Reason& written = *reject.add_reasons();
    written.set_path(reason.path);
    written.set_source(reason.source);
    written.set_target(reason.target);
    written.set_text(reason.text);
  }
}

Result<Frame> get(const v1::Reject& in) {
  Reject frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  ISTHMUS_TRY(frame.code, get_code("reject.code", in.code()));
  ISTHMUS_TRY(frame.detail, get_text("reject.detail", in.detail()));
  ISTHMUS_TRY(frame.fault, get_enum<TicketFault>("reject.fault", in.fault(), kTicketFaultCount));
  if (static_cast<std::size_t>(in.reasons_size()) > kReasonsMax) {
    return malformed_field("reject.reasons",
                           fmt::format("{} entries, at most {} are allowed", in.reasons_size(), kReasonsMax));
  }
  for (const v1::Reason& reason : in.reasons()) {
    kv::Reason read;
    ISTHMUS_TRY(read.path, get_text("reject.reasons.path", reason.path()));
    ISTHMUS_TRY(read.source, get_text("reject.reasons.source", reason.source()));
    ISTHMUS_TRY(read.target, get_text("reject.reasons.target", reason.target()));
    ISTHMUS_TRY(read.text, get_text("reject.reasons.text", reason.text()));
    frame.reasons.push_back(std::move(read));
  }
  return Frame(std::move(frame));
}

void put(const Promised& frame, v1::Frame& out, Bounds&) {
  put(frame.address, *out.mutable_promised()->mutable_address());
  out.mutable_promised()->set_deadline_ms(frame.deadline_ms);
}

Result<Frame> get(const v1::Promised& in) {
  ISTHMUS_TRY(const Address address, get(in.address()));
  return Frame(Promised{address, in.deadline_ms()});
}

void put(const Busy& frame, v1::Frame& out, Bounds&) {
  put(frame.address, *out.mutable_busy()->mutable_address());
  out.mutable_busy()->set_retry_after_ms(frame.retry_after_ms);
}

Result<Frame> get(const v1::Busy& in) {
  ISTHMUS_TRY(const Address address, get(in.address()));
  return Frame(Busy{address, in.retry_after_ms()});
}

void put(const Credit& frame, v1::Frame& out, Bounds& bounds) {
  v1::Credit& credit = *out.mutable_credit();
  bounds.count("credit.channels", frame.channels.size(), kChannelsMax);
  put(frame.address, *credit.mutable_address());
  credit.set_slots(frame.slots);
  credit.set_chunks_granted(frame.chunks_granted);
  credit.mutable_channels()->Add(frame.channels.begin(), frame.channels.end());
}

Result<Frame> get(const v1::Credit& in) {
  Credit frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  frame.slots = in.slots();
  frame.chunks_granted = in.chunks_granted();
  if (frame.slots == 0) return malformed_field("credit.slots", "0 slots hold no chunk");
  ISTHMUS_TRY(frame.channels, get_channels(in.channels()));
  return Frame(std::move(frame));
}

void put(const Seal& frame, v1::Frame& out, Bounds& bounds) {
  v1::Seal& seal = *out.mutable_seal();
  bounds.count("seal.first_tokens", frame.first_tokens.size(), kFirstTokensMax);
  put(frame.address, *seal.mutable_address());
  put_pair(frame.plan, *seal.mutable_plan());
  put(frame.tokens, *seal.add_tokens());
  put_pair(frame.token_digest, *seal.mutable_token_digest());
  put_pair(frame.tile_root, *seal.mutable_tile_root());
  seal.mutable_first_tokens()->Add(frame.first_tokens.begin(), frame.first_tokens.end());
  seal.set_finish(static_cast<v1::FinishState>(frame.finish));
  seal.set_mac(mac_text(frame.mac));
}

Result<Frame> get(const v1::Seal& in) {
  Seal frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  frame.plan = get_digest(in.plan());
  ISTHMUS_TRY(frame.tokens, get_range("seal.tokens", in.tokens()));
  frame.token_digest = get_digest(in.token_digest());
  frame.tile_root = get_digest(in.tile_root());
  if (static_cast<std::size_t>(in.first_tokens_size()) > kFirstTokensMax) {
    return malformed_field("seal.first_tokens", fmt::format("{} entries, at most {} are allowed",
                                                            in.first_tokens_size(), kFirstTokensMax));
  }
  frame.first_tokens.assign(in.first_tokens().begin(), in.first_tokens().end());
  ISTHMUS_TRY(frame.finish, get_enum<FinishState>("seal.finish", static_cast<std::uint32_t>(in.finish()), 3));
  ISTHMUS_TRY(frame.mac, get_mac("seal.mac", in.mac()));
  return Frame(std::move(frame));
}

void put(const Done& frame, v1::Frame& out, Bounds&) {
  put(frame.address, *out.mutable_done()->mutable_address());
}

Result<Frame> get(const v1::Done& in) {
  ISTHMUS_TRY(const Address address, get(in.address()));
  return Frame(Done{address});
}

void put(const Released& frame, v1::Frame& out, Bounds&) {
  put(frame.address, *out.mutable_released()->mutable_address());
  out.mutable_released()->set_outcome(static_cast<v1::ReleaseOutcome>(frame.outcome));
}

Result<Frame> get(const v1::Released& in) {
  Released frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  ISTHMUS_TRY(frame.outcome,
              get_enum<ReleaseOutcome>("released.outcome", static_cast<std::uint32_t>(in.outcome()), 5));
  return Frame(frame);
}

void put(const Cancel& frame, v1::Frame& out, Bounds& bounds) {
  bounds.text("cancel.detail", frame.detail, kTextBytesMax);
  bounds.count("cancel.channels", frame.channels.size(), kChannelsMax);
  v1::Cancel& cancel = *out.mutable_cancel();
  put(frame.address, *cancel.mutable_address());
  cancel.set_detail(frame.detail);
  cancel.mutable_channels()->Add(frame.channels.begin(), frame.channels.end());
}

Result<Frame> get(const v1::Cancel& in) {
  Cancel frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  ISTHMUS_TRY(frame.detail, get_text("cancel.detail", in.detail()));
  ISTHMUS_TRY(frame.channels, get_channels(in.channels()));
  return Frame(std::move(frame));
}

void put(const Abort& frame, v1::Frame& out, Bounds& bounds) {
  bounds.text("abort.detail", frame.detail, kTextBytesMax);
  bounds.count("abort.channels", frame.channels.size(), kChannelsMax);
  v1::Abort& abort = *out.mutable_abort();
  put(frame.address, *abort.mutable_address());
  abort.set_code(static_cast<std::uint32_t>(frame.code));
  abort.set_detail(frame.detail);
  abort.mutable_channels()->Add(frame.channels.begin(), frame.channels.end());
}

Result<Frame> get(const v1::Abort& in) {
  Abort frame;
  ISTHMUS_TRY(frame.address, get(in.address()));
  ISTHMUS_TRY(frame.code, get_code("abort.code", in.code()));
  ISTHMUS_TRY(frame.detail, get_text("abort.detail", in.detail()));
  ISTHMUS_TRY(frame.channels, get_channels(in.channels()));
  return Frame(std::move(frame));
}

void put(const Restart& frame, v1::Frame& out, Bounds&) {
  put(frame.address, *out.mutable_restart()->mutable_address());
}

Result<Frame> get(const v1::Restart& in) {
  ISTHMUS_TRY(const Address address, get(in.address()));
  return Frame(Restart{address});
}

void put(const Renew& frame, v1::Frame& out, Bounds& bounds) {
  bounds.count("renew.items", frame.items.size(), kRenewalsMax);
  out.mutable_renew();
  for (const Renewal& item : frame.items) {
    v1::Renewal& written = *out.mutable_renew()->add_items();
    put(item.address, *written.mutable_address());
    written.set_number(item.number);
    written.set_chunks_placed(item.chunks_placed);
  }
}

Result<Frame> get(const v1::Renew& in) {
  Renew frame;
  if (static_cast<std::size_t>(in.items_size()) > kRenewalsMax) {
    return malformed_field("renew.items",
                           fmt::format("{} entries, at most {} are allowed", in.items_size(), kRenewalsMax));
  }
  for (const v1::Renewal& item : in.items()) {
    ISTHMUS_TRY(const Address address, get(item.address()));
    frame.items.push_back({address, item.number(), item.chunks_placed()});
  }
  return Frame(std::move(frame));
}

void put(const Renewed& frame, v1::Frame& out, Bounds& bounds) {
  bounds.count("renewed.items", frame.items.size(), kRenewalsMax);
  out.mutable_renewed();
  for (const Renewed::Item& item : frame.items) {
    v1::RenewedItem& written = *out.mutable_renewed()->add_items();
    put(item.address, *written.mutable_address());
    written.set_number(item.number);
    written.set_lease_ms(item.lease_ms);
  }
}

Result<Frame> get(const v1::Renewed& in) {
  Renewed frame;
  if (static_cast<std::size_t>(in.items_size()) > kRenewalsMax) {
    return malformed_field("renewed.items",
                           fmt::format("{} entries, at most {} are allowed", in.items_size(), kRenewalsMax));
  }
  for (const v1::RenewedItem& item : in.items()) {
    ISTHMUS_TRY(const Address address, get(item.address()));
    frame.items.push_back({address, item.number(), item.lease_ms()});
  }
  return Frame(std::move(frame));
}

Result<Frame> get_body(const v1::Frame& in) {
  switch (in.body_case()) {
    case v1::Frame::kHello:
      return get(in.hello());
    case v1::Frame::kHelloProof:
      return get(in.hello_proof());
    case v1::Frame::kDataHello:
      return get(in.data_hello());
    case v1::Frame::kOpen:
      return get(in.open());
    case v1::Frame::kPlan:
      return get(in.plan());
    case v1::Frame::kReject:
      return get(in.reject());
    case v1::Frame::kPromised:
      return get(in.promised());
    case v1::Frame::kBusy:
      return get(in.busy());
    case v1::Frame::kCredit:
      return get(in.credit());
    case v1::Frame::kSeal:
      return get(in.seal());
    case v1::Frame::kDone:
      return get(in.done());
    case v1::Frame::kReleased:
      return get(in.released());
    case v1::Frame::kCancel:
      return get(in.cancel());
    case v1::Frame::kAbort:
      return get(in.abort());
    case v1::Frame::kRestart:
      return get(in.restart());
    case v1::Frame::kRenew:
      return get(in.renew());
    case v1::Frame::kRenewed:
      return get(in.renewed());
    case v1::Frame::BODY_NOT_SET:
      break;
  }
  return Error{Code::kUnsupported, "frame: of a kind that this version doesn't know"};
}

}  // namespace

Result<std::vector<std::byte>> encode(const Frame& frame) {
  v1::Frame out;
  out.set_major(kProtocolMajor);
  out.set_minor(kProtocolMinor);
  Bounds bounds(Code::kInvalidArgument);
  std::visit([&](const auto& body) { put(body, out, bounds); }, frame);
  ISTHMUS_TRY(bounds.status());
  const std::size_t size = out.ByteSizeLong();
  if (size > kFrameBytesMax) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{}: {} bytes, at most {} are allowed", name(frame), size, kFrameBytesMax)};
  }
  std::vector<std::byte> bytes(size);
  if (!out.SerializeToArray(bytes.data(), static_cast<int>(size))) {
    return Error{Code::kInvalidArgument, fmt::format("{}: it can't be serialised", name(frame))};
  }
  return bytes;
}

Result<Frame> decode(std::span<const std::byte> bytes) {
  // The library would write a line to stderr for each string of a peer that isn't UTF-8: errors are ours to
  // tell.
  [[maybe_unused]] static const auto previous = google::protobuf::SetLogHandler(nullptr);
  if (bytes.size() > kFrameBytesMax) {
    return Error{Code::kMalformed,
                 fmt::format("frame: {} bytes, at most {} are allowed", bytes.size(), kFrameBytesMax)};
  }
  v1::Frame in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Error{Code::kMalformed, fmt::format("frame: {} bytes aren't of the schema", bytes.size())};
  }
  if (in.major() != kProtocolMajor) {
    return Error{Code::kUnsupported,
                 fmt::format("frame: protocol major {} isn't {}", in.major(), kProtocolMajor)};
  }
  if (in.critical_size() != 0) {
    return Error{Code::kUnsupported,
                 fmt::format("frame: critical feature '{:.64}' is unknown", in.critical(0))};
  }
  return get_body(in);
}

}  // namespace isthmus::wire
