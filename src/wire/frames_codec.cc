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

// --- Fields. put() writes, get() reads what check_frame() has passed.

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

Address get(const v1::Address& in) {
  return {{get_id(in.consumer()), in.sequence()}, in.attempt(), in.generation()};
}

Mac get_mac(const std::string& in) {
  Mac mac{};
  std::ranges::copy(bytes_of(in), mac.begin());
  return mac;
}

template <typename Repeated>
kv::TokenRange get_range(const Repeated& in) {
  return {in.Get(0).begin(), in.Get(0).end()};
}

template <typename Repeated>
std::vector<std::uint32_t> get_channels(const Repeated& in) {
  return {in.begin(), in.end()};
}

// --- Frames, each way.

void put(const Hello& frame, v1::Frame& out) {
  v1::Hello& hello = *out.mutable_hello();
  hello.set_name(frame.name);
  put_pair(frame.incarnation, *hello.mutable_incarnation());
  put_pair(frame.challenge, *hello.mutable_challenge());
  for (const kv::Descriptor& descriptor : frame.descriptors) {
    write_descriptor(descriptor, *hello.add_descriptors());
  }
  hello.set_repeats_states(frame.repeats_states);
}

Result<Frame> get(const v1::Hello& in) {
  Hello frame;
  frame.name = in.name();
  frame.incarnation = get_id(in.incarnation());
  frame.challenge = get_id(in.challenge());
  for (const v1::Descriptor& descriptor : in.descriptors()) {
    ISTHMUS_TRY(kv::Descriptor read, read_descriptor(descriptor));
    frame.descriptors.push_back(std::move(read));
  }
  frame.repeats_states = in.repeats_states();
  return Frame(std::move(frame));
}

void put(const HelloProof& frame, v1::Frame& out) {
  out.mutable_hello_proof()->set_mac(mac_text(frame.mac));
}

Result<Frame> get(const v1::HelloProof& in) {
  return Frame(HelloProof{get_mac(in.mac())});
}

void put(const DataHello& frame, v1::Frame& out) {
  v1::DataHello& hello = *out.mutable_data_hello();
  put_pair(frame.session, *hello.mutable_session());
  hello.set_number(frame.number);
  hello.set_from_acceptor(frame.from_acceptor);
  hello.set_mac(mac_text(frame.mac));
}

Result<Frame> get(const v1::DataHello& in) {
  return Frame(DataHello{get_id(in.session()), in.number(), in.from_acceptor(), get_mac(in.mac())});
}

void put(const Open& frame, v1::Frame& out) {
  v1::Open& open = *out.mutable_open();
  put(frame.address, *open.mutable_address());
  open.set_ticket(frame.ticket);
  open.set_proof(mac_text(frame.proof));
  put_pair(frame.target, *open.mutable_target());
  put(frame.wanted, *open.add_wanted());
  open.set_exactness(static_cast<v1::Exactness>(frame.exactness));
  open.set_roundings_max(frame.roundings_max);
  open.set_deadline_ms(frame.deadline_ms);
  open.set_resumes(frame.resumes);
  open.set_direct(frame.direct);
  open.set_target_rank(frame.target_rank);
  for (const ChunkRange& range : frame.missing) {
    v1::ChunkRange& written = *open.add_missing();
    written.set_begin(range.begin);
    written.set_end(range.end);
  }
  open.set_early_bytes(frame.early_bytes);
  open.set_early_chunks(frame.early_chunks);
  open.mutable_early_channels()->Add(frame.early_channels.begin(), frame.early_channels.end());
  for (const Codec codec : frame.codecs) open.add_codecs(static_cast<std::uint32_t>(codec));
}

Result<Frame> get(const v1::Open& in) {
  Open frame;
  frame.address = get(in.address());
  frame.ticket = in.ticket();
  frame.proof = get_mac(in.proof());
  frame.target = get_digest(in.target());
  frame.wanted = get_range(in.wanted());
  frame.exactness = static_cast<kv::Exactness>(in.exactness());
  frame.roundings_max = in.roundings_max();
  frame.deadline_ms = in.deadline_ms();
  frame.resumes = in.resumes();
  frame.direct = in.direct();
  frame.target_rank = in.target_rank();
  for (const v1::ChunkRange& range : in.missing()) frame.missing.push_back({range.begin(), range.end()});
  frame.early_bytes = in.early_bytes();
  frame.early_chunks = in.early_chunks();
  frame.early_channels = get_channels(in.early_channels());
  for (const std::uint32_t codec : in.codecs()) frame.codecs.push_back(static_cast<Codec>(codec));
  return Frame(std::move(frame));
}

void put(const Plan& frame, v1::Frame& out) {
  v1::Plan& plan = *out.mutable_plan();
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
  plan.set_resumed(frame.resumed);
  plan.set_early(frame.early);
  plan.set_codec(static_cast<std::uint32_t>(frame.codec));
}

Result<Frame> get(const v1::Plan& in) {
  Plan frame;
  frame.address = get(in.address());
  frame.source = get_digest(in.source());
  frame.tokens = get_range(in.tokens());
  frame.verdict = static_cast<kv::VerdictKind>(in.verdict());
  frame.wire_text = in.wire_text();
  frame.plan = get_digest(in.plan());
  frame.chunk_count = in.chunk_count();
  frame.slot_bytes = in.slot_bytes();
  frame.total_bytes = in.total_bytes();
  frame.lease_ms = in.lease_ms();
  frame.resumed = in.resumed();
  frame.early = in.early();
  frame.codec = static_cast<Codec>(in.codec());
  return Frame(std::move(frame));
}

void put(const Reject& frame, v1::Frame& out) {
  v1::Reject& reject = *out.mutable_reject();
  put(frame.address, *reject.mutable_address());
  reject.set_code(static_cast<std::uint32_t>(frame.code));
  reject.set_detail(frame.detail);
  reject.set_fault(static_cast<std::uint32_t>(frame.fault));
  for (const kv::Reason& reason : frame.reasons) {
    v1::Reason& written = *reject.add_reasons();
    written.set_path(reason.path);
    written.set_source(reason.source);
    written.set_target(reason.target);
    written.set_text(reason.text);
  }
}

Result<Frame> get(const v1::Reject& in) {
  Reject frame;
  frame.address = get(in.address());
  frame.code = static_cast<Code>(in.code());
  frame.detail = in.detail();
  frame.fault = static_cast<TicketFault>(in.fault());
  for (const v1::Reason& reason : in.reasons()) {
    kv::Reason read;
    read.path = reason.path();
    read.source = reason.source();
    read.target = reason.target();
    read.text = reason.text();
    frame.reasons.push_back(std::move(read));
  }
  return Frame(std::move(frame));
}

void put(const Promised& frame, v1::Frame& out) {
  put(frame.address, *out.mutable_promised()->mutable_address());
  out.mutable_promised()->set_deadline_ms(frame.deadline_ms);
}

Result<Frame> get(const v1::Promised& in) {
  return Frame(Promised{get(in.address()), in.deadline_ms()});
}

void put(const Busy& frame, v1::Frame& out) {
  put(frame.address, *out.mutable_busy()->mutable_address());
  out.mutable_busy()->set_retry_after_ms(frame.retry_after_ms);
}

Result<Frame> get(const v1::Busy& in) {
  return Frame(Busy{get(in.address()), in.retry_after_ms()});
}

void put(const Credit& frame, v1::Frame& out) {
  v1::Credit& credit = *out.mutable_credit();
  put(frame.address, *credit.mutable_address());
  credit.set_slots(frame.slots);
  credit.set_chunks_granted(frame.chunks_granted);
  credit.mutable_channels()->Add(frame.channels.begin(), frame.channels.end());
}

Result<Frame> get(const v1::Credit& in) {
  Credit frame;
  frame.address = get(in.address());
  frame.slots = in.slots();
  frame.chunks_granted = in.chunks_granted();
  frame.channels = get_channels(in.channels());
  return Frame(std::move(frame));
}

void put(const Seal& frame, v1::Frame& out) {
  v1::Seal& seal = *out.mutable_seal();
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
  frame.address = get(in.address());
  frame.plan = get_digest(in.plan());
  frame.tokens = get_range(in.tokens());
  frame.token_digest = get_digest(in.token_digest());
  frame.tile_root = get_digest(in.tile_root());
  frame.first_tokens.assign(in.first_tokens().begin(), in.first_tokens().end());
  frame.finish = static_cast<FinishState>(in.finish());
  frame.mac = get_mac(in.mac());
  return Frame(std::move(frame));
}

void put(const Done& frame, v1::Frame& out) {
  put(frame.address, *out.mutable_done()->mutable_address());
}

Result<Frame> get(const v1::Done& in) {
  return Frame(Done{get(in.address())});
}

void put(const Released& frame, v1::Frame& out) {
  put(frame.address, *out.mutable_released()->mutable_address());
  out.mutable_released()->set_outcome(static_cast<v1::ReleaseOutcome>(frame.outcome));
}

Result<Frame> get(const v1::Released& in) {
  Released frame;
  frame.address = get(in.address());
  frame.outcome = static_cast<ReleaseOutcome>(in.outcome());
  return Frame(frame);
}

void put(const Cancel& frame, v1::Frame& out) {
  v1::Cancel& cancel = *out.mutable_cancel();
  put(frame.address, *cancel.mutable_address());
  cancel.set_detail(frame.detail);
  cancel.mutable_channels()->Add(frame.channels.begin(), frame.channels.end());
}

Result<Frame> get(const v1::Cancel& in) {
  Cancel frame;
  frame.address = get(in.address());
  frame.detail = in.detail();
  frame.channels = get_channels(in.channels());
  return Frame(std::move(frame));
}

void put(const Abort& frame, v1::Frame& out) {
  v1::Abort& abort = *out.mutable_abort();
  put(frame.address, *abort.mutable_address());
  abort.set_code(static_cast<std::uint32_t>(frame.code));
  abort.set_detail(frame.detail);
  abort.mutable_channels()->Add(frame.channels.begin(), frame.channels.end());
}

Result<Frame> get(const v1::Abort& in) {
  Abort frame;
  frame.address = get(in.address());
  frame.code = static_cast<Code>(in.code());
  frame.detail = in.detail();
  frame.channels = get_channels(in.channels());
  return Frame(std::move(frame));
}

void put(const Restart& frame, v1::Frame& out) {
  put(frame.address, *out.mutable_restart()->mutable_address());
}

Result<Frame> get(const v1::Restart& in) {
  return Frame(Restart{get(in.address())});
}

void put(const Renew& frame, v1::Frame& out) {
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
  for (const v1::Renewal& item : in.items()) {
    frame.items.push_back({get(item.address()), item.number(), item.chunks_placed()});
  }
  return Frame(std::move(frame));
}

void put(const Renewed& frame, v1::Frame& out) {
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
  for (const v1::RenewedItem& item : in.items()) {
    frame.items.push_back({get(item.address()), item.number(), item.lease_ms()});
  }
  return Frame(std::move(frame));
}

void put(const Valid& frame, v1::Frame& out) {
  put(frame.address, *out.mutable_valid()->mutable_address());
  out.mutable_valid()->set_number(frame.number);
  out.mutable_valid()->set_mac(mac_text(frame.mac));
}

Result<Frame> get(const v1::Valid& in) {
  return Frame(Valid{get(in.address()), in.number(), get_mac(in.mac())});
}

void put(const Validity& frame, v1::Frame& out) {
  put(frame.address, *out.mutable_validity()->mutable_address());
  out.mutable_validity()->set_number(frame.number);
  out.mutable_validity()->set_is_valid(frame.is_valid);
  out.mutable_validity()->set_mac(mac_text(frame.mac));
}

Result<Frame> get(const v1::Validity& in) {
  return Frame(Validity{get(in.address()), in.number(), in.is_valid(), get_mac(in.mac())});
}

void put(const GroupBegin& frame, v1::Frame& out) {
  v1::GroupBegin& begin = *out.mutable_group_begin();
  begin.set_group(frame.group);
  begin.set_tokens(frame.tokens);
  put_pair(frame.token_digest, *begin.mutable_token_digest());
  begin.set_deadline_ms(frame.deadline_ms);
  for (const GroupMember& member : frame.members) {
    v1::GroupMember& written = *begin.add_members();
    written.set_source_rank(member.source_rank);
    written.set_target_rank(member.target_rank);
    written.set_ticket(member.ticket);
    for (const std::string& endpoint : member.endpoints) written.add_endpoints(endpoint);
  }
  for (const RankAmount& amount : frame.destination) {
    v1::RankAmount& written = *begin.add_destination();
    written.set_rank(amount.rank);
    written.set_bytes(amount.bytes);
    written.set_blocks(amount.blocks);
  }
}

Result<Frame> get(const v1::GroupBegin& in) {
  GroupBegin frame;
  frame.group = in.group();
  frame.tokens = in.tokens();
  frame.token_digest = get_digest(in.token_digest());
  frame.deadline_ms = in.deadline_ms();
  for (const v1::GroupMember& member : in.members()) {
    frame.members.push_back({member.source_rank(),
                             member.target_rank(),
                             member.ticket(),
                             {member.endpoints().begin(), member.endpoints().end()}});
  }
  for (const v1::RankAmount& amount : in.destination())
    frame.destination.push_back({amount.rank(), amount.bytes(), amount.blocks()});
  return Frame(std::move(frame));
}

void put(const GroupSeal& seal, v1::GroupSeal& out) {
  put(seal.tokens, *out.add_tokens());
  put_pair(seal.token_digest, *out.mutable_token_digest());
  out.mutable_first_tokens()->Add(seal.first_tokens.begin(), seal.first_tokens.end());
  out.set_finish(static_cast<v1::FinishState>(seal.finish));
}

GroupSeal get_seal(const v1::GroupSeal& in) {
  return {get_range(in.tokens()),
          get_digest(in.token_digest()),
          {in.first_tokens().begin(), in.first_tokens().end()},
          static_cast<FinishState>(in.finish())};
}

void put(const GroupWord& frame, v1::Frame& out) {
  v1::GroupWord& word = *out.mutable_group_word();
  word.set_group(frame.group);
  word.set_word(static_cast<v1::GroupWordKind>(frame.word));
  word.set_member(frame.member);
  word.set_code(static_cast<std::uint32_t>(frame.code));
  word.set_detail(frame.detail);
  word.set_ending(frame.ending);
  if (frame.seal) put(*frame.seal, *word.mutable_seal());
}

Result<Frame> get(const v1::GroupWord& in) {
  GroupWord frame{in.group(),  static_cast<GroupWordKind>(in.word()),
                  in.member(), static_cast<Code>(in.code()),
                  in.detail(), in.ending()};
  if (in.has_seal()) frame.seal = get_seal(in.seal());
  return Frame(std::move(frame));
}

void put(const GroupReport& frame, v1::Frame& out) {
  v1::GroupReport& report = *out.mutable_group_report();
  report.set_group(frame.group);
  report.set_report(static_cast<v1::GroupReportKind>(frame.report));
  report.set_member(frame.member);
  report.set_code(static_cast<std::uint32_t>(frame.code));
  report.set_detail(frame.detail);
  report.set_ending(frame.ending);
  put_pair(frame.source, *report.mutable_source());
  if (frame.seal) put(*frame.seal, *report.mutable_seal());
  report.set_bytes(frame.bytes);
  report.set_chunks(frame.chunks);
}

Result<Frame> get(const v1::GroupReport& in) {
  GroupReport frame{.group = in.group(),
                    .report = static_cast<GroupReportKind>(in.report()),
                    .member = in.member(),
                    .code = static_cast<Code>(in.code()),
                    .detail = in.detail(),
                    .ending = in.ending(),
                    .source = get_digest(in.source()),
                    .bytes = in.bytes(),
                    .chunks = in.chunks()};
  if (in.has_seal()) frame.seal = get_seal(in.seal());
  return Frame(std::move(frame));
}

}  // namespace

Result<std::vector<std::byte>> encode(const Frame& frame) {
  v1::Frame out;
  out.set_major(kProtocolMajor);
  out.set_minor(kProtocolMinor);
  std::visit([&](const auto& body) { put(body, out); }, frame);
  ISTHMUS_TRY(check_frame(out, Code::kInvalidArgument));
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
  if (!parse_message(bytes, in)) {
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
  ISTHMUS_TRY(check_frame(in, Code::kMalformed));
  Result<Frame> read = Frame(HelloProof{});
  with_body(in, [&read](const auto& body) { read = get(body); });
  return read;
}

}  // namespace isthmus::wire
