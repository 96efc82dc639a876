// SPDX-License-Identifier: Apache-2.0
// For everything that an encoder accepts, its decoder gives the same back: random values at, below and beyond
// every bound.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <map>

#include "base/bytes.h"
#include "wire/chunk_header.h"
#include "wire/descriptor_codec.h"
#include "wire/frames.h"
#include "wire/ticket.h"

namespace isthmus::wire {
namespace {

// One in twenty, so that a frame of some fields is whole about as often as it isn't.
bool seldom() {
  return *rc::gen::inRange(0, 20) == 0;
}

template <typename T>
T any() {
  return *rc::gen::arbitrary<T>();
}

// In [low, high], and seldom its ends and their neighbours outside.
template <typename T>
T near(T low, T high) {
  if (!seldom()) return static_cast<T>(low + any<T>() % (high - low + 1));
  return *rc::gen::elementOf(std::vector<T>{low, high, static_cast<T>(low - 1), static_cast<T>(high + 1)});
}

template <typename Enum>
Enum enumerator(std::uint32_t count) {
  return static_cast<Enum>(seldom() ? count : any<std::uint32_t>() % count);
}

std::size_t size_up_to(std::size_t max) {
  if (seldom()) return max + any<std::uint8_t>() % 2;
  return any<std::uint32_t>() % std::min<std::size_t>(max + 1, 6);
}

// ASCII, UTF-8, and seldom bytes that are neither.
std::string text(std::size_t max) {
  std::string made(size_up_to(max), *rc::gen::inRange('a', 'z'));
  if (seldom() && made.size() >= 2) made.replace(0, 2, *rc::gen::element<std::string>("\xc3\xa9", "\xc3("));
  if (seldom() && made.size() >= 3)
    made.replace(0, 3, *rc::gen::element<std::string>("\xe2\x82\xac", "\xed\xa0\x80", "\xff\xfe_"));
  return made;
}

std::string any_bytes(std::size_t max) {
  return std::string(size_up_to(max), any<char>());
}

Id128 id() {
  return seldom() ? Id128{} : Id128{any<std::uint64_t>(), any<std::uint64_t>()};
}
Digest128 digest() {
  return {any<std::uint64_t>(), any<std::uint64_t>()};
}
Mac mac() {
  Mac made{};
  for (std::byte& byte : made) byte = static_cast<std::byte>(any<std::uint8_t>());
  return made;
}
kv::TokenRange range() {
  const auto begin = near<std::uint64_t>(0, 100'000);
  return {begin, begin + near<std::uint64_t>(1, 100'000)};
}
Address address() {
  return {{id(), near<std::uint64_t>(1, (std::uint64_t{1} << 48) - 1)},
          near<std::uint32_t>(1, kAttemptMax),
          any<std::uint32_t>()};
}

// Long ones repeat what they begin with: it is their length that matters.
template <typename Make>
auto several(std::size_t max, const Make& make) {
  constexpr std::size_t kUnlike = 5;
  std::vector<decltype(make())> made(size_up_to(max));
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = i < kUnlike ? make() : made[i - kUnlike];
  return made;
}

kv::DecodeForm form() {
  kv::DecodeForm made;
  const auto format = [] { return static_cast<kv::Format>(any<std::uint8_t>() % kv::kFormatCount); };
  made.component = text(kNameBytesMax);
  made.codes = format();
  made.operation = enumerator<kv::DecodeOperation>(5);
  made.scale = format();
  made.zero = format();
  made.zero_constant = any<std::uint32_t>();
  made.granule_dim = any<std::uint32_t>();
  made.granule_tokens = any<std::uint32_t>();
  made.high_nibble_first = any<bool>();
  made.recipe = text(kNameBytesMax);
  made.static_scales =
      several(kv::kStaticScalesMax, [] { return *rc::gen::element(1.0F, 0.1F, -0.0F, 0x1p-149F); });
  return made;
}

kv::LayerGroup group() {
  kv::LayerGroup made;
  made.layers = several(kv::kLayersMax, any<std::uint32_t>);
  made.attention = enumerator<kv::AttentionKind>(5);
  made.window = any<std::uint32_t>();
  made.components = several(kv::kComponentsMax, [] {
    return kv::Component{text(kNameBytesMax), any<std::uint32_t>(), any<std::uint32_t>(), any<bool>(),
                         several(kv::kTransformsMax, [] { return text(kNameBytesMax); })};
  });
  return made;
}

kv::Descriptor descriptor() {
  kv::Descriptor made;
  made.schema_major = any<std::uint32_t>();
  made.schema_minor = any<std::uint32_t>();
  const auto name = [] { return text(kNameBytesMax); };
  made.identity = {name(),
                   name(),
                   name(),
                   name(),
                   several(64, [&] { return kv::Adapter{name(), name()}; }),
                   name(),
                   *rc::gen::element(0.0, 1e6, 500000.5, -0.0),
                   name(),
                   any<bool>(),
                   any<std::uint64_t>()};
  made.weights_recipe = name();
  made.weights_digest = name();
  made.groups = several(64, group);
  made.representation = several(64, [] {
    return kv::GroupRepresentation{text(kTextBytesMax), any<std::uint32_t>(),
                                   several(kv::kComponentsMax, form)};
  });
  made.partition = several(kv::kBoxesMax, [] {
    const auto number = any<std::uint32_t>;
    const auto position = any<std::uint64_t>;
    return kv::RankBox{number(), number(), number(), number(),   number(),   number(),
                       number(), number(), number(), position(), position(), position()};
  });
  return made;
}

std::vector<std::uint32_t> channels() {
  return several(kChannelsMax, any<std::uint32_t>);
}
Code code() {
  return enumerator<Code>(kCodeCount);
}

std::optional<GroupSeal> seal_of_group() {
  if (any<bool>()) return std::nullopt;
  return GroupSeal{range(), digest(), several(kFirstTokensMax, any<std::int32_t>),
                   enumerator<FinishState>(3)};
}

Frame frame_of_ends(std::size_t kind) {
  switch (kind) {
    case 0:
      return Done{address()};
    case 1:
      return Released{address(), enumerator<ReleaseOutcome>(5)};
    case 2:
      return Cancel{address(), any_bytes(kTextBytesMax), channels()};
    case 3:
      return Abort{address(), code(), any_bytes(kTextBytesMax), channels()};
    case 4:
      return Restart{address()};
    case 5:
      return Renew{several(kRenewalsMax,
                           [] { return Renewal{address(), any<std::uint64_t>(), any<std::uint32_t>()}; })};
    case 9:
      return GroupBegin{any<std::uint64_t>(),
                        near<std::uint64_t>(1, 100),
                        digest(),
                        any<std::uint64_t>(),
                        several(kGroupMembersMax,
                                [] {
                                  return GroupMember{
                                      any<std::uint32_t>(), any<std::uint32_t>(), text(64),
                                      several(kEndpointsMax, [] { return text(kNameBytesMax); })};
                                }),
                        several(kGroupMembersMax, [] {
                          return RankAmount{any<std::uint32_t>(), any<std::uint64_t>(), any<std::uint64_t>()};
                        })};
    case 10:
      return GroupWord{
          any<std::uint64_t>(),     enumerator<GroupWordKind>(7),         any<std::uint32_t>(), code(),
          any_bytes(kTextBytesMax), near<std::uint32_t>(0, kEndingCount), seal_of_group()};
    case 11:
      return GroupReport{any<std::uint64_t>(),
                         enumerator<GroupReportKind>(6),
                         any<std::uint32_t>(),
                         code(),
                         any_bytes(kTextBytesMax),
                         near<std::uint32_t>(0, kEndingCount),
                         digest(),
                         seal_of_group(),
                         any<std::uint64_t>(),
                         any<std::uint32_t>()};
    case 7:
      return Valid{address(), any<std::uint64_t>(), mac()};
    case 8:
      return Validity{address(), any<std::uint64_t>(), any<bool>(), mac()};
    default:
      return Renewed{several(
          kRenewalsMax, [] { return Renewed::Item{address(), any<std::uint64_t>(), any<std::uint64_t>()}; })};
  }
}

Frame frame(std::size_t kind) {
  const auto number = any<std::uint64_t>;
  const auto small = any<std::uint32_t>;
  switch (kind) {
    case 0:
      return Hello{text(kNameBytesMax), id(), id(), several(2, descriptor), any<bool>()};
    case 1:
      return HelloProof{mac()};
    case 2:
      return DataHello{id(), near<std::uint32_t>(1, 100), any<bool>(), mac()};
    case 3: {
      Open made{address(), text(kTicketTextMax),         mac(),   digest(),
                range(),   enumerator<kv::Exactness>(3), small(), number(),
                !seldom()};
      std::uint32_t after = 0;
      made.direct = any<bool>();
      made.target_rank = any<std::uint32_t>();
      made.missing =
          several(kMissingMax, [] { return ChunkRange{any<std::uint32_t>() % 9, seldom() ? 0u : 9u}; });
      for (ChunkRange& range : made.missing) {
        range = {range.begin + after, range.end + after};
        after = range.end;
      }
      made.early_bytes = number();
      made.early_chunks = small();
      made.early_channels = channels();
      made.codecs = several(kCodecsMax, [] { return static_cast<Codec>(any<std::uint32_t>()); });
      return made;
    }
    case 4:
      return Plan{address(),
                  digest(),
                  range(),
                  enumerator<kv::VerdictKind>(5),
                  text(kTextBytesMax),
                  digest(),
                  small(),
                  number(),
                  number(),
                  number(),
                  any<bool>(),
                  any<bool>(),
                  enumerator<Codec>(kCodecCount)};
    case 5: {
      const auto bytes = [] { return any_bytes(kTextBytesMax); };
      return Reject{address(), code(), bytes(), enumerator<TicketFault>(kTicketFaultCount),
                    several(kReasonsMax, [&] { return kv::Reason{bytes(), bytes(), bytes(), bytes()}; })};
    }
    case 6:
      return Promised{address(), number()};
    case 7:
      return Busy{address(), number()};
    case 8:
      return Credit{address(), near<std::uint32_t>(1, 64), small(), channels()};
    case 9:
      return Seal{address(),
                  digest(),
                  range(),
                  digest(),
                  digest(),
                  several(kFirstTokensMax, any<std::int32_t>),
                  enumerator<FinishState>(3),
                  mac()};
    default:
      return frame_of_ends(kind - 10);
  }
}

RC_GTEST_PROP(WireProperty, AFrameThatIsEncodedComesBack, ()) {
  constexpr std::size_t kKinds = std::variant_size_v<Frame>;
  static std::array<std::size_t, kKinds> accepted{}, refused{};
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const Frame sent = frame(kind);
    RC_ASSERT(sent.index() == kind);
    const auto bytes = encode(sent);
    ++(bytes.ok() ? accepted : refused)[kind];
    if (!bytes.ok()) {
      RC_ASSERT(bytes.code() == Code::kInvalidArgument);
      continue;
    }
    const auto back = decode(*bytes);
    if (!back.ok()) RC_FAIL(fmt::format("{}: {}", name(sent), back.error().text()));
    RC_ASSERT(*back == sent);
  }
  // Later runs are the larger ones; by then each kind has been both, those without a bound apart.
  if (accepted[0] + refused[0] < 90) return;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    RC_ASSERT(accepted[kind] > 0u);
    if (kind != 1) RC_ASSERT(refused[kind] > 0u);
  }
}

RC_GTEST_PROP(WireProperty, ADescriptorThatIsEncodedComesBack, ()) {
  const kv::Descriptor sent = descriptor();
  const auto bytes = encode_descriptor(sent);
  if (!bytes.ok()) return;
  const auto back = decode_descriptor(*bytes);
  if (!back.ok()) RC_FAIL(back.error().text());
  RC_ASSERT(*back == sent);
}

RC_GTEST_PROP(WireProperty, ATicketThatIsMintedComesBack, ()) {
  Key key{};
  key.fill(std::byte{3});
  const Ticket sent{any_bytes(255), id(), id(), digest(), range(), any<std::uint64_t>(), id(), any<bool>()};
  const auto minted = mint(sent, key);
  if (!minted.ok()) return;
  const auto back = parse_ticket(*minted);
  if (!back.ok()) RC_FAIL(back.error().text());
  RC_ASSERT(back->ticket == sent);
  RC_ASSERT(verify(*back, key, {sent.producer, sent.incarnation, std::nullopt}) == TicketFault::kNone);
}

RC_GTEST_PROP(WireProperty, AChunkHeaderThatIsEncodedComesBack, ()) {
  const auto number = any<std::uint32_t>;
  ChunkHeader sent;
  sent.address = address();
  sent.plan = digest();
  sent.index = number();
  sent.slot = number();
  sent.group = number();
  sent.box = {near<std::uint32_t>(0, 3), near<std::uint32_t>(4, 9), near<std::uint32_t>(0, 3),
              near<std::uint32_t>(3, 9), range()};
  sent.codec = static_cast<Codec>(near<std::uint32_t>(0, 0));
  sent.raw_bytes = any<std::uint64_t>();
  sent.stored_bytes = sent.raw_bytes + near<std::uint64_t>(0, 0);
  sent.body_checksum = any<std::uint64_t>();
  sent.tiles = several(kChunkTilesMax, digest);
  const auto bytes = encode_chunk_header(sent);
  if (!bytes.ok()) return RC_ASSERT(bytes.code() == Code::kInvalidArgument);
  const auto back = decode_chunk_header(*bytes);
  if (!back.ok()) RC_FAIL(back.error().text());
  RC_ASSERT(*back == sent);
}

// A message of a mebibyte and more, all of whose fields are within their bounds.
TEST(WireProperty, ADescriptorBeyondAMebibyteIsRefusedByItsEncoder) {
  kv::Descriptor large;
  large.groups.resize(64);
  for (kv::LayerGroup& one : large.groups) {
    one.components.assign(8, {"k", 1, 1, true, std::vector<std::string>(8, std::string(255, 't'))});
  }
  EXPECT_EQ(encode_descriptor(large).code(), Code::kInvalidArgument);
  EXPECT_EQ(encode(Hello{"p", {1, 2}, {3, 4}, {large}}).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus::wire
