// SPDX-License-Identifier: Apache-2.0
// Packing and placing against a brute-force oracle that knows the offset formula alone.
#include "transform/program.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

struct Sent {
  std::vector<std::byte> body;
  std::vector<Digest128> tiles;
  std::vector<Digest128> stored;
};

// Two ends of one rank each, and what crossed between them.
class Crossing {
 public:
  Crossing(const kv::Descriptor& source, const kv::Descriptor& target, kv::TokenRange tokens,
           std::uint64_t first_position = 0)
      : source_memory_(source, 0, first_position, tokens), target_memory_(target, 0, first_position, tokens) {
    auto plan = Plan::make(source, target, test_verdict(source, target), tokens);
    EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().text());
    plan_ = std::make_shared<const Plan>(*std::move(plan));
    packer_ = std::make_unique<Packer>(*Packer::make(plan_, source));
    placer_ = std::make_unique<Placer>(*Placer::make(plan_, target));
    source_memory_.fill(tokens);
  }

  Status pack() {
    sent_.clear();
    for (const Chunk& chunk : plan_->chunks()) {
      Sent& sent = sent_.emplace_back();
      sent.body.assign(chunk.body_bytes, std::byte{0x77});
      sent.tiles.resize(chunk.tile_count());
      sent.stored.resize(placer_->stored_count(chunk));
      ISTHMUS_TRY(packer_->pack(chunk, source_memory_.binding(), sent.body, sent.tiles));
    }
    return ok_status();
  }
  Status place() {
    for (const Chunk& chunk : plan_->chunks()) {
      Sent& sent = sent_[chunk.index];
      ISTHMUS_TRY(placer_->place(chunk, sent.body, sent.tiles, target_memory_.binding(), sent.stored));
    }
    return ok_status();
  }
  Status verify() {
    for (const Chunk& chunk : plan_->chunks()) {
      const Sent& sent = sent_[chunk.index];
      ISTHMUS_TRY(placer_->verify(chunk, target_memory_.binding(), sent.tiles, sent.stored, sent.body));
    }
    return ok_status();
  }
  Status run() {
    ISTHMUS_TRY(pack());
    ISTHMUS_TRY(place());
    return verify();
  }

  const Plan& plan() const { return *plan_; }
  Placer& placer() { return *placer_; }
  Packer& packer() { return *packer_; }
  TestMemory& source() { return source_memory_; }
  TestMemory& target() { return target_memory_; }
  std::vector<Sent>& sent() { return sent_; }

 private:
  TestMemory source_memory_, target_memory_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Packer> packer_;
  std::unique_ptr<Placer> placer_;
  std::vector<Sent> sent_;
};

// What one row must become, computed in the plainest way.
struct ExpectedRow {
  std::vector<std::uint32_t> codes;
  std::uint32_t scale = 0, zero = 0;
};

ExpectedRow expected_u8(const std::vector<float>& row) {
  const float lowest = *std::min_element(row.begin(), row.end());
  const float highest = *std::max_element(row.begin(), row.end());
  float scale = (highest - lowest) / 255.0f;
  if (scale == 0.0f) scale = 1e-4f;
  const float zero = -lowest / scale;
  const float inverse = 1.0f / scale;
  ExpectedRow expected{{}, std::bit_cast<std::uint32_t>(scale), std::bit_cast<std::uint32_t>(zero)};
  for (const float value : row) {
    const float code = std::nearbyint(std::fma(value, inverse, zero));
    expected.codes.push_back(static_cast<std::uint32_t>(std::clamp(code, 0.0f, 255.0f)));
  }
  return expected;
}

// The bits that `element` of the target must have, given the source's form of its component.
std::uint32_t expected_bits(const TestElement& element, kv::Format to, kv::Format from, std::uint32_t dim) {
  if (to == from && element.part.size() == 1) return test_bits(element, to);
  const std::string component = element.part.substr(0, 1);
  const auto source_value = [&](std::uint32_t unit) {
    TestElement at = element;
    at.part = component;
    at.unit = unit;
    return to_float(test_bits(at, from), from);
  };
  const bool is_u8 = to == kv::Format::kU8 || element.part.size() > 1;
  if (!is_u8) {
    const float value = source_value(element.unit);
    if (to == kv::Format::kF32) return std::bit_cast<std::uint32_t>(value);
    return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
  }
  static std::map<std::tuple<std::uint32_t, std::string, std::uint32_t, std::uint64_t, std::uint32_t, int>,
                  ExpectedRow>
      rows;
  const auto key =
      std::tuple{element.layer, component, element.head, element.position, dim, static_cast<int>(from)};
  auto at = rows.find(key);
  if (at == rows.end()) {
    std::vector<float> row;
    for (std::uint32_t unit = 0; unit < dim; ++unit) row.push_back(source_value(unit));
    at = rows.emplace(key, expected_u8(row)).first;
  }
  if (element.part.ends_with(".s")) return at->second.scale;
  if (element.part.ends_with(".z")) return at->second.zero;
  return at->second.codes[element.unit];
}

// Whole target memory: what was to be written is right and nothing else changed.
TestMemory expected_memory(Crossing& crossing, const TestMemory& untouched, kv::Format from,
                           kv::TokenRange tokens) {
  TestMemory expected = untouched;
  const std::uint32_t dim = expected.layout().extents().components.at("k").dim;
  expected.for_each(tokens, [&](const TestElement& element, kv::Format to) {
    const auto stored = crossing.source().layout().part(element.part);
    const bool same = stored.ok() && (*stored)->format == to;
    expected.write(element, same ? test_bits(element, to) : expected_bits(element, to, from, dim));
  });
  return expected;
}

struct Pair {
  const char* source;
  const char* target;
  kv::Format from;
  bool exact;
};

constexpr Pair kPairs[] = {
    {"llamacpp:f16", "openvino:f16", kv::Format::kF16, true},
    {"llamacpp:f16", "openvino:f32", kv::Format::kF16, true},
    {"llamacpp:f16", "openvino:u8", kv::Format::kF16, false},
    {"llamacpp:f16_v_transposed", "openvino:f32", kv::Format::kF16, true},
    {"llamacpp:f16_v_transposed", "openvino:u8", kv::Format::kF16, false},
    {"llamacpp:f32", "openvino:u8", kv::Format::kF32, false},
    {"llamacpp:f32", "openvino:f16", kv::Format::kF32, false},
    {"llamacpp:bf16", "openvino:f32", kv::Format::kBf16, true},
    {"llamacpp:f16", "vllm:paged_x", kv::Format::kF16, true},
    {"vllm:paged_x", "llamacpp:f16_v_transposed", kv::Format::kF16, true},
    {"llamacpp:bf16", "vllm:flash_nhd", kv::Format::kBf16, true},
    {"vllm:flash_nhd", "vllm:flash_hnd", kv::Format::kBf16, true},
    {"vllm:flash_hnd", "vllm:packed_k_then_v", kv::Format::kBf16, true},
    {"vllm:packed_per_token", "tensorrt_llm:paged", kv::Format::kBf16, true},
    {"tensorrt_llm:paged", "vllm:cpu_amx", kv::Format::kBf16, true},
    {"vllm:cpu_amx", "vllm:cpu_vec", kv::Format::kBf16, true},
    {"vllm:cpu_vec", "flashinfer:nhd", kv::Format::kBf16, true},
    {"flashinfer:hnd", "ascend:nz", kv::Format::kBf16, true},
    {"ascend:nz", "sglang:page", kv::Format::kBf16, true},
    {"openvino:f32", "openvino:stateful_f32", kv::Format::kF32, true},
    {"openvino:stateful_f32", "llamacpp:f32", kv::Format::kF32, true},
    {"openvino:u8", "openvino:u8", kv::Format::kU8, true},
    {"openvino:u4", "openvino:u4", kv::Format::kU4, true},
    {"llamacpp:q8_0", "llamacpp:q8_0", kv::Format::kI8, true},
    {"vllm:i8_scales_apart", "vllm:i8_scales_apart", kv::Format::kI8, true},
};

class Pairs : public testing::TestWithParam<Pair> {};

// Ranges that start and end inside, at and beside blocks of 16 and 32 and tiles of 256.
constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 10> kRanges{
    {{0, 1}, {0, 15}, {0, 16}, {5, 22}, {0, 255}, {0, 256}, {0, 257}, {250, 300}, {511, 513}, {37, 637}}};

TEST_P(Pairs, EveryElementArrivesAndNothingElseIsTouched) {
  const Pair& pair = GetParam();
  std::uint32_t variant = 0;
  for (const auto& [begin, end] : kRanges) {
    const TestGeometry geometry{
        .layers = 1 + variant % 3, .heads = 1 + variant % 4, .dim = variant % 3 == 1 ? 96u : 64u};
    const kv::TokenRange tokens{begin, end};
    // Sometimes the memory starts before the range, sometimes with it.
    const std::uint64_t first_position = variant % 2 == 0 ? 0 : begin;
    SCOPED_TRACE(fmt::format("tokens [{}, {}) layers {} heads {} dim {}", begin, end, geometry.layers,
                             geometry.heads, geometry.dim));
    Crossing crossing(test_descriptor(pair.source, geometry), test_descriptor(pair.target, geometry), tokens,
                      first_position);
    const TestMemory untouched = crossing.target();
    const Status done = crossing.run();
    ASSERT_TRUE(done.ok()) << done.error().text();
    EXPECT_EQ(crossing.placer().exact(), pair.exact);
    ASSERT_EQ(crossing.target().bytes(), expected_memory(crossing, untouched, pair.from, tokens).bytes());
    ++variant;
  }
}

INSTANTIATE_TEST_SUITE_P(Catalogue, Pairs, testing::ValuesIn(kPairs),
                         [](const testing::TestParamInfo<Pair>& each) {
                           std::string name = fmt::format("{}_to_{}", each.param.source, each.param.target);
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

RC_GTEST_PROP(RandomCrossing, ArrivesAndTouchesNothingElse, ()) {
  const Pair& pair = kPairs[*rc::gen::inRange<std::size_t>(0, std::size(kPairs))];
  const TestGeometry geometry{.layers = *rc::gen::inRange(1u, 5u),
                              .heads = *rc::gen::inRange(1u, 6u),
                              .dim = 32 * *rc::gen::inRange(1u, 5u)};
  const std::uint64_t first_position = *rc::gen::inRange(0u, 300u);
  const std::uint64_t begin = first_position + *rc::gen::inRange(0u, 300u);
  const kv::TokenRange tokens{begin, begin + *rc::gen::inRange(1u, 300u)};
  Crossing crossing(test_descriptor(pair.source, geometry), test_descriptor(pair.target, geometry), tokens,
                    first_position);
  const TestMemory untouched = crossing.target();
  RC_ASSERT(crossing.run().ok());
  RC_ASSERT(crossing.target().bytes() == expected_memory(crossing, untouched, pair.from, tokens).bytes());
}

Crossing small(std::string_view target, kv::TokenRange tokens = {0, 300}) {
  const TestGeometry geometry{.layers = 2, .heads = 3, .dim = 64};
  return Crossing(test_descriptor("llamacpp:f16", geometry), test_descriptor(target, geometry), tokens);
}

// One head's tile as the spec has it.
std::vector<std::byte> expected_tile(const Section& section, std::uint32_t head, kv::TokenRange tokens) {
  std::vector<std::byte> bytes;
  for (std::uint64_t position = tokens.begin; position < tokens.end; ++position) {
    for (std::uint32_t unit = 0; unit < section.units; ++unit) {
      const std::uint32_t bits =
          test_bits({section.layer, section.part, head, unit, position}, section.format);
      for (std::uint32_t shift = 0; shift < kv::bits(section.format); shift += 8) {
        bytes.push_back(std::byte{static_cast<unsigned char>(bits >> shift)});
      }
    }
  }
  return bytes;
}

TEST(Packer, BodyIsHeadTokenUnitAndPadsAreZero) {
  const kv::Descriptor descriptor = test_descriptor("openvino:u8", {.layers = 2, .heads = 3, .dim = 64});
  Crossing crossing(descriptor, descriptor, {0, 3});
  ASSERT_TRUE(crossing.pack().ok());
  const Chunk chunk = crossing.plan().chunk(0);
  const Sent& sent = crossing.sent().front();
  std::vector<std::byte> expected_body(chunk.body_bytes, std::byte{0});
  std::uint64_t tile = 0;
  for (const Section& section : chunk.sections) {
    EXPECT_EQ(section.offset % kSectionAlign, 0u);
    for (std::uint32_t head = 0; head < 3; ++head, ++tile) {
      const std::vector<std::byte> expected = expected_tile(section, head, {0, 3});
      EXPECT_EQ(sent.tiles[tile], digest128(std::span<const std::byte>(expected)));
      const std::uint64_t at = section.offset + head * section.head_bytes;
      std::copy(expected.begin(), expected.end(), expected_body.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  // Scales are 3 heads * 3 tokens * 4 bytes: there is something to pad.
  EXPECT_GT(chunk.sections[2].offset, chunk.sections[1].offset + chunk.sections[1].bytes);
  EXPECT_EQ(sent.body, expected_body);
}

TEST(Packer, SourceThatIsConvertedForTheWireGivesTheTargetsNumbers) {
  // A wire form that differs from the source's: the producer converts, the consumer only redistributes.
  const TestGeometry geometry{.layers = 2, .heads = 2, .dim = 64};
  const kv::Descriptor source = test_descriptor("llamacpp:f16", geometry);
  const kv::Descriptor target = test_descriptor("openvino:u8", geometry);
  const kv::TokenRange tokens{7, 290};
  kv::Verdict verdict = test_verdict(source, target);
  for (std::size_t c = 0; c < 2; ++c) verdict.wire.groups[0][c].form = target.representation[0].forms[c];
  const auto plan = std::make_shared<const Plan>(*Plan::make(source, target, verdict, tokens));
  Packer packer = *Packer::make(plan, source);
  Placer placer = *Placer::make(plan, target);
  EXPECT_TRUE(placer.exact());
  TestMemory from(source, 0, 0, tokens), to(target, 0, 0, tokens);
  from.fill(tokens);
  for (const Chunk& chunk : plan->chunks()) {
    std::vector<std::byte> body(chunk.body_bytes);
    std::vector<Digest128> tiles(chunk.tile_count()), stored(placer.stored_count(chunk));
    ASSERT_TRUE(packer.pack(chunk, from.binding(), body, tiles).ok());
    ASSERT_TRUE(placer.place(chunk, body, tiles, to.binding(), stored).ok());
    EXPECT_TRUE(placer.verify(chunk, to.binding(), tiles, stored).ok());
  }
  to.for_each(tokens, [&](const TestElement& element, kv::Format format) {
    ASSERT_EQ(to.read(element), expected_bits(element, format, kv::Format::kF16, 64)) << element.part;
  });
}

TEST(Packer, ChunksOfSplitRanksArriveOnTheirRanks) {
  const TestGeometry one{.layers = 5, .heads = 6, .dim = 64, .head_ranks = 2, .layer_ranks = 2};
  TestGeometry other = one;
  other.head_ranks = 3;
  other.layer_ranks = 1;
  const kv::Descriptor source = test_descriptor("llamacpp:f16", one);
  const kv::Descriptor target = test_descriptor("openvino:f32", other);
  const kv::TokenRange tokens{0, 270};
  const auto plan =
      std::make_shared<const Plan>(*Plan::make(source, target, test_verdict(source, target), tokens));
  std::map<std::uint32_t, TestMemory> from, to;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    from.try_emplace(rank, source, rank, 0, tokens).first->second.fill(tokens);
  for (std::uint32_t rank = 0; rank < 3; ++rank) to.try_emplace(rank, target, rank, 0, tokens);
  const auto rank_of = [](const kv::Descriptor& descriptor, const kv::Box& box) {
    for (const kv::RankBox& rank : descriptor.partition) {
      if (rank.head_begin <= box.head_begin && box.head_begin < rank.head_end &&
          rank.layer_begin <= box.layer_begin && box.layer_begin < rank.layer_end) {
        return rank.rank;
      }
    }
    return ~0u;
  };
  for (const Chunk& chunk : plan->chunks()) {
    const std::uint32_t p = rank_of(source, chunk.box), d = rank_of(target, chunk.box);
    Packer packer = *Packer::make(plan, source, p);
    Placer placer = *Placer::make(plan, target, d);
    std::vector<std::byte> body(chunk.body_bytes);
    std::vector<Digest128> tiles(chunk.tile_count()), stored(placer.stored_count(chunk));
    const Status packed = packer.pack(chunk, from.at(p).binding(), body, tiles);
    ASSERT_TRUE(packed.ok()) << packed.error().text();
    ASSERT_TRUE(placer.place(chunk, body, tiles, to.at(d).binding(), stored).ok());
    Packer elsewhere = *Packer::make(plan, source, (p + 1) % 4);
    EXPECT_EQ(elsewhere.pack(chunk, from.at((p + 1) % 4).binding(), body, tiles).code(),
              Code::kInvalidArgument);
  }
  for (auto& [rank, memory] : to) {
    memory.for_each(tokens, [&](const TestElement& element, kv::Format format) {
      ASSERT_EQ(memory.read(element), expected_bits(element, format, kv::Format::kF16, 64));
    });
  }
}

TEST(Packer, NonFiniteValueIsCorruptOnlyWhereItIsConverted) {
  Crossing direct = small("openvino:f16");
  direct.source().write({1, "k", 2, 5, 260}, 0x7c01);  // A NaN.
  ASSERT_TRUE(direct.run().ok());
  EXPECT_EQ(direct.target().read({1, "k", 2, 5, 260}), 0x7c01u);

  Crossing widened = small("openvino:f32");
  widened.source().write({1, "k", 2, 5, 260}, 0x7c00);  // Infinity.
  ASSERT_TRUE(widened.pack().ok());
  const Status placed = widened.place();
  ASSERT_EQ(placed.code(), Code::kCorrupt);
  EXPECT_THAT(placed.error().detail, HasSubstr("layer 11, part k, head 2, tokens [256, 300)"));
  EXPECT_THAT(placed.error().detail, HasSubstr("row 4, element 5"));
}

TEST(Placer, FlippedBitInTheBodyIsCorruptBeforeOrWhenItIsReadBack) {
  for (const char* storage : {"openvino:f32", "openvino:u8", "openvino:f16"}) {
    Crossing crossing = small(storage);
    const auto untouched = crossing.target().bytes();
    ASSERT_TRUE(crossing.pack().ok());
    Sent& sent = crossing.sent().front();
    const Section& last = crossing.plan().chunk(0).sections.back();
    sent.body[last.offset + last.bytes - 1] ^= std::byte{0x10};
    const bool exact = crossing.placer().exact();
    const Status placed = crossing.place();
    EXPECT_EQ(placed.ok(), exact);
    if (!exact) EXPECT_EQ(crossing.target().bytes(), untouched);
    const Status found = exact ? crossing.verify() : placed;
    ASSERT_EQ(found.code(), Code::kCorrupt);
    EXPECT_THAT(found.error().detail,
                HasSubstr("layer 10, part v, head 2, tokens [0, 256): the body has digest"));
  }
}

TEST(Placer, AnyFlippedBitInTargetMemoryIsCorrupt) {
  for (const char* storage : {"openvino:f32", "openvino:u8", "openvino:f16"}) {
    Crossing crossing = small(storage);
    ASSERT_TRUE(crossing.run().ok());
    for (const kv::PartLayout& part : crossing.target().layout().parts()) {
      for (std::uint32_t bit = 0; bit < kv::bits(part.format); ++bit) {
        const std::uint32_t unit = crossing.target().units(part) - 1;
        const TestElement element{1, part.part, 1, unit, 299 - bit};
        const std::uint32_t before = crossing.target().read(element);
        crossing.target().write(element, before ^ (1u << bit));
        EXPECT_EQ(crossing.verify().code(), Code::kCorrupt) << storage << " " << part.part << " bit " << bit;
        crossing.target().write(element, before);
      }
    }
    EXPECT_TRUE(crossing.verify().ok());
  }
}

TEST(Placer, SwappedBlocksAreCorrupt) {
  for (const char* storage : {"openvino:f32", "openvino:u8"}) {
    Crossing crossing = small(storage);
    ASSERT_TRUE(crossing.run().ok());
    std::swap(crossing.target().binding().blocks[1], crossing.target().binding().blocks[2]);
    EXPECT_EQ(crossing.verify().code(), Code::kCorrupt);
  }
}

TEST(Placer, ExchangedTilesAreCorrupt) {
  Crossing crossing = small("openvino:u8", {0, 256});
  ASSERT_TRUE(crossing.pack().ok());
  Sent& sent = crossing.sent().front();
  const Section& section = crossing.plan().chunk(0).sections.front();
  std::swap_ranges(sent.body.begin(), sent.body.begin() + static_cast<std::ptrdiff_t>(section.head_bytes),
                   sent.body.begin() + static_cast<std::ptrdiff_t>(section.head_bytes));
  EXPECT_EQ(crossing.place().code(), Code::kCorrupt);
}

class WrongBinding : public testing::Test {
 protected:
  void expect_refused(std::string_view text) {
    const auto before = crossing_.target().bytes();
    const Status placed = crossing_.place();
    ASSERT_EQ(placed.code(), Code::kInvalidArgument) << placed.error().text();
    EXPECT_THAT(placed.error().detail, HasSubstr(std::string(text)));
    EXPECT_EQ(crossing_.target().bytes(), before);
  }
  void SetUp() override { ASSERT_TRUE(crossing_.pack().ok()); }

  Crossing crossing_ = small("openvino:u8", {0, 256});
  kv::Binding& binding_ = crossing_.target().binding();
};

TEST_F(WrongBinding, BlockBeyondThePool) {
  binding_.blocks[7] = 17;
  expect_refused("block 17 isn't among the 17 blocks of region K");
}
TEST_F(WrongBinding, BlockNamedTwice) {
  binding_.blocks[7] = binding_.blocks[1];
  expect_refused("twice");
}
TEST_F(WrongBinding, ShortBlockTable) {
  binding_.blocks.pop_back();
  expect_refused("position 224 needs block table entry 7, the table has 7");
}
TEST_F(WrongBinding, PositionsNotValid) {
  binding_.valid.end = 255;
  expect_refused("needs tokens [0, 256)");
}
TEST_F(WrongBinding, MemoryTooSmall) {
  binding_.memory.at(2).bytes = 14 * 3 * 32 * 72;
  expect_refused("region V, layer 0");
}
TEST_F(WrongBinding, RegionNotBound) {
  binding_.memory.at(2).region = "W";
  expect_refused("no memory is bound for region V, layer 0");
}
TEST_F(WrongBinding, NullMemory) {
  binding_.memory.front().base = nullptr;
  expect_refused("no memory is bound for region K, layer 0");
}
TEST_F(WrongBinding, ExtentWhoseOffsetsWouldOverflow) {
  binding_.memory.front().open_extent = ~std::uint64_t{0};
  expect_refused("blocks or rows; at most");
}
TEST_F(WrongBinding, MoreBlocksClaimedThanTheMemoryHolds) {
  binding_.memory.front().open_extent = 1000;
  binding_.blocks[0] = 999;
  expect_refused("of a memory of");
}

TEST(Packer, RowsBeyondTheMemoryAreRefused) {
  Crossing crossing = small("openvino:f32");
  crossing.source().binding().first_row = 6;
  EXPECT_THAT(crossing.pack().error().detail, HasSubstr("row 305 isn't among the 305 rows"));
  crossing.source().binding().first_row = ~std::uint64_t{0} - 10;
  EXPECT_EQ(crossing.pack().code(), Code::kInvalidArgument);
}

TEST(Packer, WrongSpansAndForeignChunksAreRefused) {
  Crossing crossing = small("openvino:f32");
  ASSERT_TRUE(crossing.pack().ok());
  Sent& sent = crossing.sent().front();
  const Chunk chunk = crossing.plan().chunk(0);
  kv::Binding& binding = crossing.source().binding();
  EXPECT_EQ(crossing.packer().pack(chunk, binding, std::span(sent.body).first(64), sent.tiles).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(crossing.packer().pack(chunk, binding, sent.body, std::span(sent.tiles).first(1)).code(),
            Code::kInvalidArgument);
  Chunk foreign = chunk;
  foreign.box.head_begin = 1;
  EXPECT_EQ(crossing.packer().pack(foreign, binding, sent.body, sent.tiles).code(), Code::kInvalidArgument);
  foreign = chunk;
  foreign.index = 99;
  EXPECT_EQ(crossing.packer().pack(foreign, binding, sent.body, sent.tiles).code(), Code::kInvalidArgument);
}

TEST(TileRoot, DoesNotDependOnLayoutBlockSizeOrChunking) {
  const TestGeometry whole{.layers = 4, .heads = 4, .dim = 64};
  TestGeometry split = whole;
  split.head_ranks = 2;
  const kv::TokenRange tokens{3, 400};
  std::vector<Digest128> roots;
  for (const auto& [storage, geometry] : {std::pair{"llamacpp:f16", whole}, std::pair{"openvino:f16", whole},
                                          std::pair{"llamacpp:f16_v_transposed", split}}) {
    const kv::Descriptor source = test_descriptor(storage, geometry);
    const auto plan =
        std::make_shared<const Plan>(*Plan::make(source, source, test_verdict(source, source), tokens));
    TileRoot root;
    for (std::uint32_t rank = 0; rank < geometry.head_ranks; ++rank) {
      TestMemory memory(source, rank, 0, tokens);
      memory.fill(tokens);
      Packer packer = *Packer::make(plan, source, rank);
      for (const Chunk& chunk : plan->chunks()) {
        std::vector<std::byte> body(chunk.body_bytes);
        std::vector<Digest128> tiles(chunk.tile_count());
        if (!packer.pack(chunk, memory.binding(), body, tiles).ok()) continue;
        for (std::uint64_t i = 0; i < tiles.size(); ++i) root.add(plan->tile_key(chunk, i), tiles[i]);
      }
    }
    roots.push_back(root.root());
  }
  EXPECT_EQ(roots[0], roots[1]);
  EXPECT_EQ(roots[0], roots[2]);
}

}  // namespace
}  // namespace isthmus::transform
