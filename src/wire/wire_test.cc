// SPDX-License-Identifier: Apache-2.0
// Frames, tickets and chunk headers: round trips, mutation of every byte, bounds, golden vectors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "base/bytes.h"
#include "isthmus/v1/handoff.pb.h"
#include "kv/published.h"
#include "kv/sample.h"
#include "wire/chunk_header.h"
#include "wire/descriptor_codec.h"
#include "wire/frames.h"
#include "wire/proto_fields.h"
#include "wire/ticket.h"

namespace isthmus::wire {
namespace {

Key key(std::uint8_t fill) {
  Key made;
  made.fill(static_cast<std::byte>(fill));
  return made;
}

Mac mac(std::uint8_t first) {
  Mac made;
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(first + i);
  return made;
}

// Every field differs from its default.
kv::Descriptor full_descriptor() {
  kv::Descriptor built;
  built.schema_major = 1;
  built.schema_minor = 7;
  built.identity = {"llama", "lineage", "config", "tokenizer", {{"lora", "d1"}, {"style", "d2"}},
                    "rope",  500000.5,  "yarn",   false,       3};
  built.weights_recipe = "gguf-q4_1";
  built.weights_digest = "w";
  built.groups = {{{0, 2, 4},
                   kv::AttentionKind::kSlidingWindow,
                   4096,
                   {{"k", 3, 64, false, {"rope:halves", "hadamard:64"}}}},
                  {{1, 3}, kv::AttentionKind::kMla, 0, {{"latent", 1, 512, true, {}}}}};
  kv::DecodeForm form;
  form.component = "k";
  form.codes = kv::Format::kU8;
  form.operation = kv::DecodeOperation::kScaledZeroPoint;
  form.scale = kv::Format::kBf16;
  form.zero = kv::Format::kI8;
  form.granule_dim = 32;
  form.granule_tokens = 16;
  form.high_nibble_first = true;
  form.recipe = "recipe";
  kv::DecodeForm constant = form;
  constant.operation = kv::DecodeOperation::kScaledConstantZero;
  constant.zero_constant = 8;
  kv::DecodeForm fixed;
  fixed.component = "latent";
  fixed.operation = kv::DecodeOperation::kStaticScaled;
  fixed.static_scales = {0.1F, 0x1p-149F};
  built.representation = {{"region K = tok head dim k:f16", 32, {form}},
                          {"region L = tok dim latent:bf16", 0, {constant, fixed}}};
  built.partition = {{1, 0, 1, 2, 3, 4, 5, 6, 7, 16, 32, 64}, {2, 1, 0, 2, 0, 1, 0}};
  return built;
}

Address address() {
  return {{{0x1111222233334444, 0x5555666677778888}, 42}, 2, 3};
}

// One of each, every field set.
std::vector<Frame> all_frames() {
  const Digest128 digest{0xaaaabbbbccccdddd, 0x1234};
  return {
      Hello{"p1", {1, 2}, {3, 4}, {full_descriptor()}},
      HelloProof{mac(1)},
      DataHello{{5, 6}, 3, true, mac(2)},
      Open{address(),
           "ticket",
           mac(3),
           digest,
           {16, 600},
           kv::Exactness::kBounded,
           2,
           30000,
           true,
           {{0, 1}, {3, 9}},
           true},
      Plan{address(),
           digest,
           {16, 600},
           kv::VerdictKind::kRedistributeConvert,
           "k f16",
           {7, 8},
           9,
           1 << 20,
           5 << 20,
           10000,
           true},
      Reject{address(),
             Code::kIncompatible,
             "model differs",
             TicketFault::kExpired,
             {{"identity.lineage", "a", "b", "other model"}}},
      Promised{address(), 1500},
      Busy{address(), 50},
      Credit{address(), 8, 12, {1, 2, 9}},
      Seal{address(), {7, 8}, {16, 600}, digest, {9, 9}, {17, -1}, FinishState::kLength, mac(4)},
      Done{address()},
      Released{address(), ReleaseOutcome::kLate},
      Cancel{address(), "client left", {1, 2}},
      Abort{address(), Code::kCorrupt, "chunk 3", {4}},
      Restart{address()},
      Renew{{{address(), 5, 6}, {address(), 7, 8}}},
      Renewed{{{address(), 5, 9000}}},
      Valid{address(), 5, mac(5)},
      Validity{address(), 5, true, mac(6)},
      GroupBegin{
          3, 600, digest, 30000, {{0, 1, "ticket", {"tcp://h:1", "shm://h/x"}}, {1, 2}}, {{1, 5000, 7}}},
      GroupWord{3, GroupWordKind::kEnd, 1, Code::kAborted, "a rank is gone", 7,
                GroupSeal{{0, 600}, {7, 8}, {17, -1}, FinishState::kStop}},
      GroupReport{3, GroupReportKind::kVerified, 1, Code::kCorrupt, "x", 8, digest,
                  GroupSeal{{0, 600}, {7, 8}, {17, -1}, FinishState::kStop}, 1 << 20, 9},
  };
}

ChunkHeader full_header() {
  return {address(),
          {7, 8},
          3,
          1,
          1,
          {2, 4, 1, 3, {256, 512}},
          Codec::kNone,
          4096,
          4096,
          0xfeed,
          {{1, 2}, {3, 4}, {5, 6}}};
}

Ticket full_ticket() {
  return {"p1", {1, 2}, {3, 4}, {5, 6}, {0, 600}, 12345, {7, 8}, false};
}

Ticket member_ticket() {
  Ticket ticket = full_ticket();
  ticket.membership = {{9, 10}, 1, 4};
  return ticket;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

// --- Frames

TEST(DescriptorCodec, GivesBackEveryField) {
  const kv::Descriptor descriptor = full_descriptor();
  const auto bytes = encode_descriptor(descriptor);
  ASSERT_TRUE(bytes.ok());
  const auto decoded = decode_descriptor(*bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.error().text();
  EXPECT_TRUE(kv::diff(*decoded, descriptor).empty());
  EXPECT_EQ(decode_descriptor(std::span(*bytes).first(bytes->size() / 2)).code(), Code::kMalformed);
  EXPECT_EQ(decode_descriptor(std::vector<std::byte>(kFrameBytesMax + 1)).code(), Code::kMalformed);
}

TEST(Frames, EachKindComesBackAsItWas) {
  const std::vector<Frame> frames = all_frames();
  ASSERT_EQ(frames.size(), std::variant_size_v<Frame>);
  for (const Frame& frame : frames) {
    const auto bytes = encode(frame);
    ASSERT_TRUE(bytes.ok()) << bytes.error().text();
    const auto back = decode(*bytes);
    ASSERT_TRUE(back.ok()) << name(frame) << ": " << back.error().text();
    EXPECT_EQ(back->index(), frame.index());
    EXPECT_EQ(*encode(*back), *bytes) << name(frame);
    EXPECT_EQ(*back, frame) << name(frame);
  }
}

kv::Descriptor off_the_wire(const kv::Descriptor& descriptor) {
  return *decode_descriptor(*encode_descriptor(descriptor));
}

void expect_equal(const std::vector<kv::Reason>& a, const std::vector<kv::Reason>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].path, b[i].path);
    EXPECT_EQ(a[i].source, b[i].source);
    EXPECT_EQ(a[i].target, b[i].target);
    EXPECT_EQ(a[i].text, b[i].text);
  }
}

// Each end has its own descriptor in memory and the other's off the wire.
void expect_one_verdict(const kv::Descriptor& source, const kv::Descriptor& target,
                        const kv::Policy& policy) {
  const kv::Verdict at_source = kv::negotiate(source, off_the_wire(target), policy);
  const kv::Verdict at_target = kv::negotiate(off_the_wire(source), target, policy);
  EXPECT_EQ(at_source.kind, at_target.kind);
  expect_equal(at_source.rejects, at_target.rejects);
  expect_equal(at_source.redistributions, at_target.redistributions);
  expect_equal(at_source.conversions, at_target.conversions);
  EXPECT_EQ(at_source.warnings, at_target.warnings);
  EXPECT_EQ(at_source.roundings, at_target.roundings);
  EXPECT_EQ(at_source.exact, at_target.exact);
  EXPECT_EQ(at_source.wire.text(), at_target.wire.text());
  if (at_source.kind == kv::VerdictKind::kReject) EXPECT_FALSE(at_source.rejects.empty());
}

TEST(DescriptorCodec, BothEndsComeToOneVerdict) {
  for (const kv::Exactness exactness : {kv::Exactness::kLossless, kv::Exactness::kUnqualified}) {
    const kv::Policy policy{.exactness = exactness, .qualifications = {}};
    for (const kv::Storage& from : kv::catalogue()) {
      for (const kv::Storage& to : kv::catalogue()) {
        kv::Descriptor source = kv::sample::descriptor(from.name), target = kv::sample::descriptor(to.name);
        target.identity.rope_theta = source.identity.rope_theta = 0.1;
        source.weights_recipe = "a/b";
        expect_one_verdict(source, target, policy);
        if (&from > &to) target.identity.adapters = {{"tone \\ of voice", "4567"}};
        expect_one_verdict(source, target, policy);
      }
    }
    for (const kv::published::Pair& pair : kv::published::pairs())
      expect_one_verdict(pair.prefill, pair.decode, policy);
  }
}

// Every byte of an encoded descriptor flipped in each bit, and every cut: an error, or a descriptor that is
// valid or says why not, and that comes back the same when it is sent on.
TEST(DescriptorCodec, DamagedBytesGiveAnErrorOrADescriptorThatStays) {
  std::vector<kv::Descriptor> all{full_descriptor(), kv::sample::descriptor("vllm:cpu_amx_fp8"),
                                  kv::sample::descriptor("llamacpp:q8_0_v_q4_0")};
  for (const auto& pair : kv::published::pairs()) {
    if (pair.name.starts_with("hybrid") || pair.name.starts_with("grouped")) all.push_back(pair.decode);
  }
  const auto check = [](std::span<const std::byte> bytes) {
    const auto read = decode_descriptor(bytes);
    if (!read.ok()) {
      EXPECT_FALSE(read.error().detail.empty());
      return;
    }
    EXPECT_FALSE(!read->validate().ok() && read->validate().error().detail.empty());
    const auto again = encode_descriptor(*read);
    ASSERT_TRUE(again.ok()) << again.error().text();
    EXPECT_EQ(off_the_wire(*read).canonical_text(), read->canonical_text());
    EXPECT_EQ(*encode_descriptor(off_the_wire(*read)), *again);
  };
  for (const kv::Descriptor& descriptor : all) {
    std::vector<std::byte> bytes = *encode_descriptor(descriptor);
    EXPECT_EQ(off_the_wire(descriptor).digest(), descriptor.digest());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      check(std::span(bytes).first(i));
      for (int bit = 0; bit < 8; ++bit) {
        const std::byte flip{static_cast<unsigned char>(1U << bit)};
        bytes[i] ^= flip;
        check(bytes);
        bytes[i] ^= flip;
      }
    }
  }
}

v1::Descriptor message_of(const kv::Descriptor& descriptor) {
  v1::Descriptor message;
  write_descriptor(descriptor, message);
  return message;
}

TEST(DescriptorCodec, FieldsThatNotEveryReaderKnowsAreMarkedCritical) {
  kv::Descriptor descriptor = full_descriptor();
  const auto critical = [&] {
    const v1::Descriptor message = message_of(descriptor);
    return std::vector<std::string>(message.critical().begin(), message.critical().end());
  };
  EXPECT_EQ(critical(), (std::vector<std::string>{"groups.form.static_scales", "partition.replicas",
                                                  "partition.tokens"}));
  descriptor.representation[1].forms.pop_back();
  EXPECT_EQ(critical(), (std::vector<std::string>{"partition.replicas", "partition.tokens"}));
  descriptor.partition[0].gqa_replica = descriptor.partition[0].mla_replica = 0;
  EXPECT_EQ(critical().size(), 2U) << "the data-parallel one is left";
  descriptor.partition[0].data_replica = 0;
  EXPECT_EQ(critical(), (std::vector<std::string>{"partition.tokens"}));
  descriptor.partition[0].token_begin = descriptor.partition[0].token_period = 0;
  EXPECT_EQ(critical().size(), 1U) << "an end is left";
  descriptor.partition[0].token_end = 0;
  EXPECT_TRUE(critical().empty());
}

TEST(DescriptorCodec, AnUnknownFieldIsIgnoredUnlessMarkedCritical) {
  v1::Descriptor message = message_of(full_descriptor());
  // What a later minor might add: fields of a number that nobody here knows, at the top and inside.
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(4000, 7);
  v1::LayerGroup& group = *message.mutable_groups(0);
  group.GetReflection()->MutableUnknownFields(&group)->AddLengthDelimited(4001, "remark");
  const auto read = decode_descriptor(bytes_of(message.SerializeAsString()));
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->digest(), full_descriptor().digest());
  message.add_critical("groups.colour");
  const auto refused = decode_descriptor(bytes_of(message.SerializeAsString()));
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_EQ(refused.error().detail, "descriptor.critical: \"groups.colour\" isn't known here");
}

TEST(Frames, ADescriptorKeepsEveryField) {
  const auto back = decode(*encode(Hello{"p1", {1, 2}, {3, 4}, {full_descriptor()}}));
  ASSERT_TRUE(back.ok()) << back.error().text();
  const kv::Descriptor& read = std::get<Hello>(*back).descriptors.at(0);
  EXPECT_EQ(read.canonical_text(), full_descriptor().canonical_text());
  EXPECT_EQ(read.digest(), full_descriptor().digest());
  const kv::DecodeForm& form = read.representation.at(0).forms.at(0);
  EXPECT_EQ(form.recipe, "recipe");  // Recorded, not digested.
  EXPECT_EQ(read.representation.at(0).layout_text, full_descriptor().representation.at(0).layout_text);
}

TEST(Frames, FieldsOfSealArriveExactly) {
  const auto back = decode(*encode(all_frames().at(9)));
  const auto& seal = std::get<Seal>(*back);
  EXPECT_EQ(seal.first_tokens, (std::vector<std::int32_t>{17, -1}));
  EXPECT_EQ(seal.finish, FinishState::kLength);
  EXPECT_EQ(seal.tokens, (kv::TokenRange{16, 600}));
  EXPECT_EQ(seal.mac, mac(4));
}

// Every bit of the golden vectors' frames, and every cut: an error, or a frame that stays when it is sent on.
TEST(Frames, AnyByteMayChangeAndNothingBreaks) {
  const auto check = [](std::span<const std::byte> bytes, const std::string& what) {
    const auto back = decode(bytes);
    if (!back.ok()) {
      ASSERT_TRUE(back.code() == Code::kMalformed || back.code() == Code::kUnsupported)
          << back.error().text();
      return;
    }
    const auto again = encode(*back);
    ASSERT_TRUE(again.ok()) << what;
    const auto twice = decode(*again);
    ASSERT_TRUE(twice.ok()) << what;
    ASSERT_EQ(*encode(*twice), *again) << what;
  };
  for (const Frame& frame : all_frames()) {
    std::vector<std::byte> bytes = *encode(frame);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      const std::string what = fmt::format("{} byte {}", name(frame), at);
      check(std::span(bytes).first(at), what);
      for (const unsigned flip : {0x01U, 0x02U, 0x04U, 0x08U, 0x10U, 0x20U, 0x40U, 0x80U, 0xffU}) {
        bytes[at] ^= static_cast<std::byte>(flip);
        check(bytes, what);
        bytes[at] ^= static_cast<std::byte>(flip);
      }
    }
  }
}

TEST(Frames, RandomBytesAreRefusedWithoutACrash) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    (void)decode(bytes).ok();
    (void)decode_chunk_header(bytes).ok();
    (void)parse_ticket(text_of(bytes)).ok();
  }
}

TEST(Frames, BoundsHoldBothWays) {
  const auto expect_refused = [](const Frame& frame) {
    const auto bytes = encode(frame);
    ASSERT_FALSE(bytes.ok()) << name(frame);
    EXPECT_EQ(bytes.code(), Code::kInvalidArgument);
  };
  expect_refused(Hello{std::string(256, 'n'), {1, 2}, {3, 4}, {}});
  expect_refused(Hello{"p1", {1, 2}, {3, 4}, std::vector<kv::Descriptor>(kDescriptorsMax + 1)});
  expect_refused(Cancel{address(), std::string(kTextBytesMax + 1, 'x'), {}});
  expect_refused(Cancel{address(), "", std::vector<std::uint32_t>(kChannelsMax + 1)});
  expect_refused(Credit{address(), 1, 1, std::vector<std::uint32_t>(kChannelsMax + 1)});
  expect_refused(Renew{std::vector<Renewal>(kRenewalsMax + 1, Renewal{address(), 1, 1})});
  Seal seal;
  seal.first_tokens.resize(kFirstTokensMax + 1);
  expect_refused(seal);
  GroupBegin begin{
      .group = 1, .tokens = 1, .token_digest = {}, .deadline_ms = 1, .members = {}, .destination = {}};
  expect_refused(begin);
  begin.members.resize(kGroupMembersMax + 1);
  expect_refused(begin);
  begin.members.assign(1, {.ticket = std::string(kTicketTextMax + 1, 't')});
  expect_refused(begin);
  begin.members.assign(1, {.endpoints = std::vector<std::string>(kEndpointsMax + 1)});
  expect_refused(begin);
  begin.members.assign(1, {});
  EXPECT_TRUE(encode(begin).ok());
  begin.destination.resize(kGroupMembersMax + 1);
  expect_refused(begin);
  begin.destination.clear();
  begin.tokens = 0;
  expect_refused(begin);
  expect_refused(GroupWord{.detail = std::string(kTextBytesMax + 1, 'x')});
  expect_refused(GroupWord{.ending = kEndingCount});
  expect_refused(GroupReport{.ending = kEndingCount});
  expect_refused(GroupReport{.seal = GroupSeal{{1, 1}, {}, {}}});
  expect_refused(GroupReport{.seal = GroupSeal{{0, 1}, {}, std::vector<std::int32_t>(kFirstTokensMax + 1)}});

  v1::Frame beyond;
  beyond.set_major(kProtocolMajor);
  for (std::size_t i = 0; i <= kChannelsMax; ++i) beyond.mutable_abort()->add_channels(1);
  beyond.mutable_abort()->set_code(7);
  beyond.mutable_abort()->mutable_address()->set_attempt(1);
  beyond.mutable_abort()->mutable_address()->set_sequence(1);
  const std::string text = beyond.SerializeAsString();
  const auto back = decode(bytes_of(text));
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.code(), Code::kMalformed);
  EXPECT_NE(back.error().detail.find("channels: 17"), std::string::npos) << back.error().detail;
  EXPECT_EQ(decode(std::vector<std::byte>(kFrameBytesMax + 1)).code(), Code::kMalformed);
}

TEST(Frames, UnknownThingsAreRefusedByName) {
  v1::Frame frame;
  frame.set_major(2);
  frame.mutable_done();
  EXPECT_EQ(decode(bytes_of(frame.SerializeAsString())).code(), Code::kUnsupported);
  frame.set_major(1);
  frame.add_critical("time-travel");
  const auto critical = decode(bytes_of(frame.SerializeAsString()));
  EXPECT_EQ(critical.code(), Code::kUnsupported);
  EXPECT_NE(critical.error().detail.find("time-travel"), std::string::npos);
  v1::Frame empty;
  empty.set_major(1);
  EXPECT_EQ(decode(bytes_of(empty.SerializeAsString())).code(), Code::kUnsupported);
  v1::Frame attemptless;
  attemptless.set_major(1);
  attemptless.mutable_done()->mutable_address()->set_sequence(1);
  EXPECT_EQ(decode(bytes_of(attemptless.SerializeAsString())).code(), Code::kMalformed);
}

TEST(Frames, ACodecOfALaterVersionIsNothingInOpenAndRefusedInPlan) {
  std::vector<Frame> frames = all_frames();
  Open open = std::get<Open>(frames[3]);
  EXPECT_TRUE(std::get<Open>(*decode(*encode(Frame(open)))).codecs.empty());  // Of an earlier one.
  open.codecs = {static_cast<Codec>(77), Codec::kZstdPlanes};
  EXPECT_EQ(std::get<Open>(*decode(*encode(Frame(open)))), open);
  open.codecs.assign(kCodecsMax + 1, Codec::kZstdPlanes);
  EXPECT_EQ(encode(Frame(open)).code(), Code::kInvalidArgument);
  Plan plan = std::get<Plan>(frames[4]);
  EXPECT_EQ(std::get<Plan>(*decode(*encode(Frame(plan)))).codec, Codec::kNone);
  plan.codec = Codec::kZstdPlanes;
  EXPECT_EQ(std::get<Plan>(*decode(*encode(Frame(plan)))), plan);
  plan.codec = static_cast<Codec>(kCodecCount);
  EXPECT_EQ(encode(Frame(plan)).code(), Code::kInvalidArgument);
}

TEST(Frames, AFieldOfALaterMinorIsIgnored) {
  v1::Frame frame;
  frame.set_major(1);
  frame.set_minor(9);
  frame.mutable_busy()->mutable_address()->set_sequence(1);
  frame.mutable_busy()->mutable_address()->set_attempt(1);
  std::string text = frame.SerializeAsString();
  text += std::string("\xa2\x06\x03new", 6);  // Field 100, length-delimited.
  EXPECT_TRUE(decode(bytes_of(text)).ok());
}

TEST(Frames, EachGoesToTheRightCore) {
  const Id128 consumer = address().handoff.consumer, producer{9, 9};
  for (const Frame& frame : all_frames()) {
    const std::string_view kind = name(frame);
    if (kind.starts_with("HELLO") || kind == "DATA_HELLO") continue;
    const bool from_producer = kind == "PLAN" || kind == "REJECT" || kind == "PROMISED" || kind == "BUSY" ||
                               kind == "SEAL" || kind == "RELEASED" || kind == "RESTART" ||
                               kind == "RENEWED" || kind == "VALIDITY";
    const bool both = kind == "CANCEL" || kind == "ABORT";
    EXPECT_EQ(is_for_consumer(frame, consumer), from_producer || both) << kind;
    EXPECT_EQ(is_for_consumer(frame, producer), from_producer) << kind;
  }
}

TEST(Frames, MacsDependOnEveryFieldTheyCover) {
  const Key session = key(5);
  const HandoffId handoff = address().handoff;
  const Mac proof = open_proof(session, {1, 2}, handoff, 1);
  EXPECT_NE(open_proof(key(6), {1, 2}, handoff, 1), proof);
  EXPECT_NE(open_proof(session, {1, 3}, handoff, 1), proof);
  EXPECT_NE(open_proof(session, {1, 2}, {handoff.consumer, 43}, 1), proof);
  EXPECT_NE(open_proof(session, {1, 2}, {{0, 0}, 42}, 1), proof);
  EXPECT_NE(open_proof(session, {1, 2}, handoff, 2), proof);
  const Seal seal = std::get<Seal>(all_frames().at(9));
  const Mac whole = seal_mac(session, seal);
  const std::vector<std::function<void(Seal&)>> changes = {[](Seal& s) { s.address.handoff.sequence++; },
                                                           [](Seal& s) { s.address.handoff.consumer.low++; },
                                                           [](Seal& s) { s.address.attempt++; },
                                                           [](Seal& s) { s.address.generation++; },
                                                           [](Seal& s) { s.plan.low++; },
                                                           [](Seal& s) { s.tokens.begin++; },
                                                           [](Seal& s) { s.tokens.end++; },
                                                           [](Seal& s) { s.token_digest.high++; },
                                                           [](Seal& s) { s.tile_root.low++; },
                                                           [](Seal& s) { s.first_tokens[0]++; },
                                                           [](Seal& s) { s.first_tokens.pop_back(); },
                                                           [](Seal& s) { s.finish = FinishState::kStop; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Seal changed = seal;
    changes[i](changed);
    EXPECT_NE(seal_mac(session, changed), whole) << "change " << i;
  }
  EXPECT_NE(seal_mac(key(6), seal), whole);
}

TEST(Frames, DurationsAreRoundedDownAndCapped) {
  EXPECT_EQ(to_ms(std::chrono::microseconds(1999)), 1u);
  EXPECT_EQ(to_ms(Duration(-5)), 0u);
  EXPECT_EQ(from_ms(~std::uint64_t{0}), from_ms(std::uint64_t{1} << 40));
  EXPECT_LT(Instant{} + from_ms(~std::uint64_t{0}), kFarFuture);
  EXPECT_EQ(fence_token({{1, 2}, 5}, 3), (5u << 16) + 3u);
}

// --- Tickets

TEST(Tickets, ComeBackAndVerify) {
  const std::string text = *mint(full_ticket(), key(1));
  EXPECT_LE(text.size(), 300u);
  const auto parsed = parse_ticket(text);
  ASSERT_TRUE(parsed.ok()) << parsed.error().text();
  EXPECT_EQ(parsed->ticket, full_ticket());
  EXPECT_EQ(verify(*parsed, key(1), {"p1", {1, 2}, 12344}), TicketFault::kNone);
  EXPECT_EQ(verify(*parsed, key(1), {"p1", {1, 2}, std::nullopt}), TicketFault::kNone);
  Ticket routed = full_ticket();
  routed.may_precede_admission = true;
  EXPECT_EQ(parse_ticket(*mint(routed, key(1)))->ticket, routed);
  routed.membership = {{10, 11}, 255, kGroupMembersMax};
  EXPECT_EQ(parse_ticket(*mint(routed, key(1)))->ticket, routed);
}

std::string base64url(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 6) {
    std::size_t digit = 0;
    for (std::size_t i = bit; i < bit + 6; ++i) {
      const unsigned byte = i / 8 < bytes.size() ? std::to_integer<unsigned>(bytes[i / 8]) : 0;
      digit = digit * 2 + ((byte >> (7 - i % 8)) & 1);
    }
    text += kDigits[digit];
  }
  return text;
}

TEST(Tickets, AMemberIsOneOfItsGroup) {
  Ticket ticket = member_ticket();
  for (const auto& [member, members] : {std::pair{4u, 4u}, {0u, 0u}, {0u, kGroupMembersMax + 1}}) {
    ticket.membership = {{10, 11}, member, members};
    EXPECT_EQ(mint(ticket, key(1)).code(), Code::kInvalidArgument) << member << " of " << members;
  }
  // A forger's, who may write any number.
  std::vector<std::byte> bytes = parse_ticket(*mint(member_ticket(), key(1)))->signed_bytes;
  store_le(std::span(bytes).last(4), std::uint32_t{1});
  bytes.resize(bytes.size() + sizeof(Mac));
  const auto forged = parse_ticket(base64url(bytes));
  EXPECT_EQ(forged.code(), Code::kMalformed);
  EXPECT_NE(forged.error().detail.find("member 1 of 1"), std::string::npos) << forged.error().detail;
}

TEST(Tickets, EachFaultHasItsName) {
  const SignedTicket parsed = *parse_ticket(*mint(full_ticket(), key(1)));
  EXPECT_EQ(verify(parsed, key(2), {"p1", {1, 2}, 0}), TicketFault::kAltered);
  EXPECT_EQ(verify(parsed, key(1), {"p2", {1, 2}, 0}), TicketFault::kOtherProducer);
  EXPECT_EQ(verify(parsed, key(1), {"p1", {1, 3}, 0}), TicketFault::kOtherIncarnation);
  EXPECT_EQ(verify(parsed, key(1), {"p1", {1, 2}, 12345}), TicketFault::kExpired);
  EXPECT_EQ(name(TicketFault::kOtherIncarnation), "other_incarnation");
  EXPECT_EQ(name(TicketFault::kNoProof), "no_proof");
}

TEST(Tickets, NoChangedCharacterPasses) {
  const std::string text = *mint(member_ticket(), key(1));
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      const auto other = static_cast<char>(value);
      std::string changed = text;
      if (changed[at] == other) continue;
      changed[at] = other;
      const auto parsed = parse_ticket(changed);
      if (!parsed.ok()) continue;
      EXPECT_EQ(verify(*parsed, key(1), {"p1", {1, 2}, 0}), TicketFault::kAltered) << at;
    }
    EXPECT_FALSE(parse_ticket(std::string_view(text).substr(0, at)).ok() &&
                 verify(*parse_ticket(std::string_view(text).substr(0, at)), key(1), {"p1", {1, 2}, 0}) ==
                     TicketFault::kNone);
  }
  EXPECT_EQ(parse_ticket(std::string(kTicketTextMax + 1, 'A')).code(), Code::kMalformed);
  EXPECT_EQ(parse_ticket("").code(), Code::kMalformed);
  EXPECT_EQ(mint({std::string(256, 'p'), {}, {}, {}, {}, 0, {}, false}, key(1)).code(),
            Code::kInvalidArgument);
}

// --- Chunk headers

TEST(ChunkHeaders, ComeBackAsTheyWere) {
  const auto bytes = encode_chunk_header(full_header());
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->size(), kChunkFixedBytes + 3 * kTileDigestBytes);
  const auto back = decode_chunk_header(*bytes);
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_EQ(*back, full_header());
}

TEST(ChunkHeaders, EveryChangedByteIsRefused) {
  const std::vector<std::byte> bytes = *encode_chunk_header(full_header());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x10, 0x80}) {
      std::vector<std::byte> mutated = bytes;
      mutated[at] ^= static_cast<std::byte>(flip);
      EXPECT_EQ(decode_chunk_header(mutated).code(), Code::kMalformed) << "byte " << at;
    }
  }
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_chunk_header(std::span(bytes).first(size)).ok());
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_chunk_header(longer).ok());
}

TEST(ChunkHeaders, TheChecksumIsCheckedFirst) {
  std::vector<std::byte> bytes = *encode_chunk_header(full_header());
  bytes[0] = std::byte{0};  // Magic.
  EXPECT_NE(decode_chunk_header(bytes).error().detail.find("checksum"), std::string::npos);
  // With a right checksum the field itself is named.
  store_le(std::span(bytes).subspan(kChunkFixedBytes - 8),
           digest64(std::span(bytes).first(kChunkFixedBytes - 8)));
  EXPECT_NE(decode_chunk_header(bytes).error().detail.find("magic"), std::string::npos);
}

TEST(ChunkHeaders, GeometryMustBeThePlans) {
  const ChunkHeader header = full_header();
  const ChunkGeometry planned{1, {2, 4, 1, 3, {256, 512}}, 4096, 3};
  EXPECT_TRUE(equal_geometry(header, planned).ok());
  const std::vector<std::pair<std::string, std::function<void(ChunkGeometry&)>>> changes = {
      {"group", [](ChunkGeometry& g) { g.group = 0; }},
      {"first layer", [](ChunkGeometry& g) { g.box.layer_begin = 1; }},
      {"layer end", [](ChunkGeometry& g) { g.box.layer_end = 5; }},
      {"first head", [](ChunkGeometry& g) { g.box.head_begin = 0; }},
      {"head end", [](ChunkGeometry& g) { g.box.head_end = 2; }},
      {"first token", [](ChunkGeometry& g) { g.box.tokens.begin = 0; }},
      {"token end", [](ChunkGeometry& g) { g.box.tokens.end = 511; }},
      {"raw bytes", [](ChunkGeometry& g) { g.body_bytes = 4095; }},
      {"tile digests", [](ChunkGeometry& g) { g.tile_count = 2; }}};
  for (const auto& [what, change] : changes) {
    ChunkGeometry other = planned;
    change(other);
    const Status status = equal_geometry(header, other);
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_EQ(status.code(), Code::kMalformed);
    EXPECT_NE(status.error().detail.find(what), std::string::npos) << status.error().detail;
  }
}

TEST(ChunkHeaders, SizesAreBounded) {
  ChunkHeader header = full_header();
  header.tiles.resize(kChunkTilesMax + 1);
  EXPECT_EQ(encode_chunk_header(header).code(), Code::kInvalidArgument);
  header = full_header();
  header.stored_bytes = 1;
  EXPECT_EQ(encode_chunk_header(header).code(), Code::kInvalidArgument);
  header = full_header();
  header.box.head_end = header.box.head_begin;
  EXPECT_EQ(encode_chunk_header(header).code(), Code::kInvalidArgument);
}

// Of a peer that doesn't ask encode_chunk_header(): the checksum is right, the field isn't.
TEST(ChunkHeaders, AForgedFieldIsRefusedByName) {
  const auto expect_refused = [](std::size_t at, std::uint32_t value, std::string_view what) {
    std::vector<std::byte> bytes = *encode_chunk_header(full_header());
    store_le(std::span(bytes).subspan(at), value);
    store_le(std::span(bytes).subspan(kChunkFixedBytes - 8),
             digest64(std::span(bytes).first(kChunkFixedBytes - 8)));
    const auto back = decode_chunk_header(bytes);
    ASSERT_EQ(back.code(), Code::kMalformed) << what;
    EXPECT_NE(back.error().detail.find(what), std::string::npos) << back.error().detail;
  };
  expect_refused(32, 0, "attempt");
  expect_refused(32, 0x10000, "attempt");
  expect_refused(80, 1, "box");  // Head end.
  expect_refused(84, 2, "codec");
  expect_refused(84, 1, "with a codec, which makes fewer");
  expect_refused(112, 1, "stored");
  expect_refused(128, 4, "digests");
  expect_refused(132, 1, "flags");
  expect_refused(144, 1, "flags");
}

// --- Golden vectors: what these bytes were, they stay. ISTHMUS_UPDATE_VECTORS=1 writes them anew after a
// deliberate change.

void expect_vector(const std::string& file, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(ISTHMUS_VECTORS) / file;
  if (std::getenv("ISTHMUS_UPDATE_VECTORS") != nullptr) {
    std::ofstream(path, std::ios::binary) << text << "\n";
    return;
  }
  std::ifstream in(path);
  std::stringstream content;
  content << in.rdbuf();
  EXPECT_EQ(content.str(), text + "\n") << path;
}

TEST(Vectors, TicketHeaderAndFramesAreAsWritten) {
  expect_vector("ticket.txt", *mint(full_ticket(), key(1)));
  expect_vector("ticket_member.txt", *mint(member_ticket(), key(1)));
  expect_vector("chunk_header.hex", hex(*encode_chunk_header(full_header())));
  std::string frames;
  for (const Frame& frame : all_frames()) frames += fmt::format("{} {}\n", name(frame), hex(*encode(frame)));
  frames.pop_back();
  expect_vector("frames.hex", frames);
  const Seal seal = std::get<Seal>(all_frames().at(9));
  const Validity validity{address(), 5, true};
  expect_vector(
      "macs.txt",
      fmt::format("open_proof {}\nseal_mac {}\nvalid_mac {}\nvalidity_mac {}",
                  hex(open_proof(key(5), {1, 2}, address().handoff, 1)), hex(seal_mac(key(5), seal)),
                  hex(valid_mac(key(5), Valid{address(), 5})), hex(validity_mac(key(5), validity))));
}

}  // namespace
}  // namespace isthmus::wire
