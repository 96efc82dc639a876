// SPDX-License-Identifier: Apache-2.0
// Ranks to ranks: every byte of every target rank is what a plain loop over the elements makes it.
#include "transform/redistribute.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "kv/choose.h"
#include "transform/ranks.h"
#include "transform/test_allocations.h"
#include "transform/test_ranks.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

struct Setting {
  kv::Descriptor source, target;
  kv::TokenRange tokens;
  std::uint64_t source_first = 0, target_first = 0;  // Where the bindings begin.
  Reading reading = {};
};

// One crossing with all that a test may break before it runs.
struct Crossing {
  explicit Crossing(const Setting& of)
      : setting(of),
        plan(std::make_shared<const Plan>(
            Plan::make(of.source, of.target, test_verdict(of.source, of.target), of.tokens).value())),
        from(of.source, of.source_first, {of.source_first, of.tokens.end}, 1),
        to(of.target, of.target_first, {of.target_first, of.tokens.end}, 2),
        expected(of.target, of.target_first, {of.target_first, of.tokens.end}, 2) {
    write_state(of.source, of.target, plan->product(), {42}, &from, &expected);
  }
  Result<Moved> run(std::uint32_t threads = 1, std::function<void()> done = {}) {
    return redistribute({.plan = plan,
                         .source = setting.source,
                         .target = setting.target,
                         .from = from.memory(),
                         .to = to.memory(),
                         .reading = setting.reading,
                         .done = std::move(done),
                         .threads = threads});
  }
  bool is_right() const { return to.bytes() == expected.bytes(); }

  const Setting& setting;
  std::shared_ptr<const Plan> plan;
  TestRanks from, to, expected;
};

Moved expect_crosses(const Setting& setting) {
  Crossing crossing(setting);
  const Result<Moved> moved = crossing.run();
  EXPECT_TRUE(moved.ok()) << (moved.ok() ? "" : moved.error().text());
  EXPECT_TRUE(crossing.is_right());
  return moved.ok() ? *moved : Moved{};
}

TEST(Redistribute, TensorRanksThatDontDivideEachOther) {
  for (const auto& [from, to] : {std::pair{3u, 2u}, {4u, 8u}, {8u, 3u}, {2u, 3u}, {1u, 8u}, {5u, 7u}}) {
    SCOPED_TRACE(fmt::format("{} -> {}", from, to));
    const TestShape shape{.layers = 3, .heads = 8, .dim = 64};
    const Setting setting{
        describe("vllm:flash_nhd", shape, {from, 1}), describe("flashinfer:hnd", shape, {to, 1}), {0, 100}};
    const Moved moved = expect_crosses(setting);
    EXPECT_EQ(moved.packed, moved.chunks);
    EXPECT_EQ(moved.placed, moved.chunks);
  }
}

TEST(Redistribute, PipelinesAreSplitAnewAlongWithHeads) {
  for (const auto& [from, to] : {std::pair{Degrees{1, 3}, Degrees{1, 2}},
                                 {Degrees{1, 4}, Degrees{1, 8}},
                                 {Degrees{1, 8}, Degrees{1, 3}},
                                 {Degrees{3, 2}, Degrees{2, 5}}}) {
    SCOPED_TRACE(fmt::format("{}x{} -> {}x{}", from.tensor, from.pipeline, to.tensor, to.pipeline));
    const TestShape shape{.layers = 9, .heads = 4, .dim = 64};
    expect_crosses(
        {describe("tensorrt_llm:paged", shape, from), describe("openvino:u8", shape, to), {0, 300}});
  }
}

TEST(Redistribute, CopiesOfHeadsAreReadInTurnAndEachWrittenOnce) {
  const TestShape shape{.layers = 4, .heads = 2, .dim = 64};
  const Setting setting{
      describe("vllm:flash_nhd", shape, {8, 1}), describe("vllm:flash_hnd", shape, {4, 1}), {0, 600}};
  Crossing crossing(setting);
  std::map<std::uint32_t, int> reads;
  for (const Chunk& chunk : crossing.plan->chunks()) {
    const std::vector<Route> routes = routes_of(chunk, setting.source, setting.target).value();
    ASSERT_EQ(routes.size(), 2u);  // Each head is on two of the target's ranks.
    std::set<std::uint32_t> written;
    for (const Route& route : routes) {
      ++reads[route.source_rank];
      EXPECT_TRUE(written.insert(route.target_rank).second);
    }
  }
  ASSERT_EQ(reads.size(), 8u);
  const auto [least, most] = std::minmax_element(
      reads.begin(), reads.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  EXPECT_LE(most->second - least->second, 2);
  const Result<Moved> moved = crossing.run();
  ASSERT_TRUE(moved.ok()) << moved.error().text();
  EXPECT_TRUE(crossing.is_right());
  EXPECT_EQ(moved->placed, 2 * moved->chunks);
}

TEST(Redistribute, AStatedCopyIsTheOnlyOneRead) {
  const TestShape shape{.layers = 2, .heads = 2, .dim = 64};
  Setting setting{
      describe("vllm:flash_nhd", shape, {8, 1}), describe("vllm:flash_hnd", shape, {2, 1}), {0, 40}};
  setting.reading.copy = 2;
  Crossing crossing(setting);
  // Whoever else is read would be seen.
  for (RankMemory& rank : crossing.from.memory()) {
    if (rank.rank % 4 != 2) rank.groups[0].blocks.assign(rank.groups[0].blocks.size(), 0);
  }
  EXPECT_TRUE(crossing.run().ok());
  EXPECT_TRUE(crossing.is_right());
  setting.reading.copy = 4;
  EXPECT_THAT(Crossing(setting).run().error().detail,
              HasSubstr("copy 4 of chunk 0 is to be read, and there are 4"));
}

TEST(Redistribute, OfALatentStateOneNamedCopyIsRead) {
  TestShape shape{.layers = 2, .heads = 1};
  shape.attention = kv::AttentionKind::kMla;
  const Setting setting{
      describe("vllm:mla_bf16", shape, {4, 1}), describe("ascend:mla_nz", shape, {2, 1}), {0, 300}};
  Crossing crossing(setting);
  for (const Chunk& chunk : crossing.plan->chunks()) {
    EXPECT_EQ(routes_of(chunk, setting.source, setting.target).value(), (std::vector<Route>{{0, 0}, {0, 1}}));
  }
  const Result<Moved> moved = crossing.run();
  ASSERT_TRUE(moved.ok()) << moved.error().text();
  EXPECT_TRUE(crossing.is_right());
  EXPECT_EQ(moved->packed, moved->chunks);
  EXPECT_EQ(moved->placed, 2 * moved->chunks);
}

TEST(Redistribute, BlocksOfAnySizeBothWaysAndPartialOnes) {
  const TestShape shape{.layers = 2, .heads = 2, .dim = 64};
  for (const std::uint32_t from : {1u, 16u, 32u, 64u, 128u}) {
    for (const std::uint32_t to : {1u, 16u, 32u, 64u, 128u}) {
      for (const std::uint64_t tokens : {1u, 15u, 16u, 17u, 130u, 257u}) {
        SCOPED_TRACE(fmt::format("{} -> {}, {} tokens", from, to, tokens));
        expect_crosses({describe("vllm:flash_nhd", shape, {1, 1}, from),
                        describe("vllm:flash_hnd", shape, {2, 1}, to),
                        {0, tokens}});
      }
    }
  }
}

TEST(Redistribute, APrefixThatEitherEndHasAlready) {
  const TestShape shape{.layers = 2, .heads = 3, .dim = 64};
  const kv::Descriptor nhd = describe("vllm:flash_nhd", shape, {3, 1}),
                       rows = describe("llamacpp:bf16", shape, {2, 1});
  for (const std::uint64_t begin : {1u, 15u, 16u, 255u, 256u, 300u}) {
    SCOPED_TRACE(begin);
    // The target's blocks of the prefix are bound too, and keep what they hold.
    expect_crosses({nhd, rows, {begin, 400}});
    expect_crosses({rows, nhd, {begin, 400}});
    expect_crosses({nhd, nhd, {begin, 400}, begin / 16 * 16, 0});
    expect_crosses({rows, nhd, {begin, begin + 1}, begin, begin});
  }
}

// Full attention on every third layer, windows of 100 tokens on the others; each end splits them its own way.
kv::Descriptor mixed(const char* full, const char* windowed, Degrees degrees) {
  kv::Descriptor made = test_identity();
  EXPECT_TRUE(add_group(made, **kv::find_storage(full), {.layers = 3, .heads = 2}, 0).ok());
  EXPECT_TRUE(
      add_group(made, **kv::find_storage(windowed),
                {.layers = 6, .heads = 4, .attention = kv::AttentionKind::kSlidingWindow, .window = 100}, 0)
          .ok());
  EXPECT_TRUE(split_ranks(made, degrees).ok());
  EXPECT_TRUE(made.validate().ok());
  return made;
}

TEST(Redistribute, SeveralLayerGroupsAndOfAWindowItsTokensAlone) {
  for (const kv::TokenRange tokens : {kv::TokenRange{0, 90}, {0, 300}, {64, 700}, {640, 700}}) {
    SCOPED_TRACE(tokens.end);
    const Setting setting{mixed("vllm:flash_nhd", "sglang:page", {2, 3}),
                          mixed("flashinfer:nhd", "vllm:flash_hnd", {4, 2}), tokens};
    Crossing crossing(setting);
    // A ring keeps the window alone: its table holds nothing before.
    const std::uint64_t begin = crossing.plan->product().groups[1].token_begin;
    EXPECT_EQ(begin, tokens.end > 100 ? std::max(tokens.begin, tokens.end - 100) : tokens.begin);
    for (RankMemory& rank : crossing.from.memory()) rank.groups[1].valid.begin = begin;
    const Result<Moved> moved = crossing.run();
    ASSERT_TRUE(moved.ok()) << moved.error().text();
    EXPECT_TRUE(crossing.is_right());
  }
}

TEST(Redistribute, ARankNeedntHoldSomethingOfEachGroup) {
  kv::Descriptor apart = mixed("vllm:flash_nhd", "sglang:page", {1, 1});
  apart.partition[1].rank = 5;
  ASSERT_TRUE(apart.validate().ok());
  expect_crosses({apart, mixed("flashinfer:nhd", "vllm:flash_hnd", {1, 2}), {0, 300}});
  expect_crosses({mixed("flashinfer:nhd", "vllm:flash_hnd", {1, 2}), apart, {0, 300}});
}

TEST(Redistribute, TheRootDoesntDependOnEitherEndsRanks) {
  const TestShape shape{.layers = 4, .heads = 4, .dim = 64};
  const auto root = [&](Degrees from, Degrees to, std::uint32_t block) {
    return expect_crosses({describe("vllm:flash_nhd", shape, from, block),
                           describe("openvino:f32", shape, to),
                           {10, 300}})
        .root;
  };
  const Digest128 alone = root({1, 1}, {1, 1}, 16);
  EXPECT_EQ(root({3, 2}, {4, 4}, 128), alone);
  EXPECT_EQ(root({8, 1}, {2, 3}, 1), alone);
}

// The source's numbers, the target's or an exact superset of the source's may cross (kv::choose): what
// arrives is the same.
TEST(Redistribute, WhicheverNumbersCrossTheSameArrives) {
  const TestShape shape{.layers = 2, .heads = 2, .dim = 64};
  for (const auto& [from, to] : {std::pair{"llamacpp:f16", "openvino:u8"},
                                 {"llamacpp:f16", "openvino:u8_channel"},
                                 {"llamacpp:q8_0", "openvino:f32"},
                                 {"llamacpp:f16", "llamacpp:bf16"}}) {
    SCOPED_TRACE(fmt::format("{} > {}", from, to));
    const Setting setting{describe(from, shape, {2, 1}), describe(to, shape, {1, 2}), {0, 300}};
    const kv::Verdict verdict = test_verdict(setting.source, setting.target);
    std::set<std::string> ways;
    for (const auto& [link, producer, consumer] :
         {std::tuple{1U, 0U, 0U}, {100'000U, 900U, 0U}, {100'000U, 0U, 900U}}) {
      for (const bool through : {false, true}) {
        kv::Prices prices = kv::Prices::reference(300);
        prices.link = link;
        prices.producer.busy = producer;
        prices.consumer.busy = consumer;
        if (through) {  // Neither end converts directly.
          const auto numbers = [](const kv::DecodeForm& form) { return form.text().substr(2); };
          for (std::size_t c = 0; c < 2; ++c) {
            const kv::DecodeForm &a = setting.source.representation[0].forms[c],
                                 &b = setting.target.representation[0].forms[c];
            for (kv::PlaceRates* place : {&prices.producer, &prices.consumer})
              place->conversions.push_back({numbers(a), numbers(b), 0});
          }
        }
        const Result<kv::Choice> choice = kv::choose(setting.source, setting.target, verdict, prices);
        if (!choice.ok()) continue;  // The superset is the target's own form.
        for (const kv::ComponentChoice& one : choice->components) ways.insert(one.way);
        kv::Verdict chosen = verdict;
        chosen.wire = choice->wire;
        Crossing crossing(setting);
        crossing.plan = std::make_shared<const Plan>(
            Plan::make(setting.source, setting.target, chosen, setting.tokens).value());
        const Result<Moved> moved = crossing.run();
        ASSERT_TRUE(moved.ok()) << moved.error().text();
        EXPECT_TRUE(crossing.is_right()) << choice->wire.text();
      }
    }
    EXPECT_GE(ways.size(), 2U);
  }
}

class Refusals : public testing::Test {
 protected:
  const TestShape shape_{.layers = 2, .heads = 2, .dim = 64};
  const Setting setting_{
      describe("vllm:flash_nhd", shape_, {4, 1}), describe("vllm:flash_hnd", shape_, {2, 1}), {0, 40}};
  Crossing crossing_{setting_};
  void expect_refused(Code code, std::string_view text) {
    const Result<Moved> moved = crossing_.run();
    ASSERT_EQ(moved.code(), code);
    EXPECT_THAT(moved.error().detail, HasSubstr(std::string(text)));
  }
};

TEST_F(Refusals, AMissingRank) {
  crossing_.to.memory().pop_back();
  expect_refused(Code::kInvalidArgument, "the memory of rank 1 is missing");
}
TEST_F(Refusals, ARankTwice) {
  crossing_.to.memory().push_back(crossing_.to.memory().front());
  expect_refused(Code::kInvalidArgument, "rank 0 is there twice");
}
TEST_F(Refusals, ABlockOfATargetTwiceBeforeAByteMoves) {
  const auto before = crossing_.to.bytes();
  std::vector<std::uint32_t>& blocks = crossing_.to.memory()[1].groups[0].blocks;
  blocks[2] = blocks[0];
  expect_refused(Code::kInvalidArgument, "rank 1, group 0: the block table names block");
  EXPECT_EQ(crossing_.to.bytes(), before);
}
TEST_F(Refusals, ATableThatIsTooShort) {
  crossing_.from.memory()[3].groups[0].blocks.pop_back();
  expect_refused(Code::kInvalidArgument, "rank 3, group 0: position 32 needs block table entry 2");
}
TEST_F(Refusals, CopiesThatDiffer) {
  const TestCodes other = test_codes(setting_.source.representation[0].forms[0], 64, 9, {20, 21});
  crossing_.from.write({1, 0, 0, 1, 0}, {20, 21}, other);  // Head 0 is on ranks 0 and 1.
  const Setting twice{setting_.source, setting_.source, setting_.tokens};
  TestRanks to(setting_.source, 0, setting_.tokens, 5);
  const auto plan = std::make_shared<const Plan>(
      Plan::make(twice.source, twice.target, test_verdict(twice.source, twice.target), twice.tokens).value());
  const Result<Moved> moved = redistribute({.plan = plan,
                                            .source = twice.source,
                                            .target = twice.target,
                                            .from = crossing_.from.memory(),
                                            .to = to.memory()});
  ASSERT_EQ(moved.code(), Code::kCorrupt);
  EXPECT_THAT(moved.error().detail,
              HasSubstr("differs from the one read first: group 0, layer 1, part k, head 0"));
}

RC_GTEST_PROP(RedistributeOnThreads, GivesTheSameBytesAndRootForAnyNumber, ()) {
  const auto storage = [] { return (*rc::gen::elementOf(kv::catalogue())).name; };
  const auto degrees = [] { return Degrees{*rc::gen::inRange(1u, 4u), *rc::gen::inRange(1u, 3u)}; };
  const TestShape shape{.layers = 4, .heads = 4, .dim = 64};
  const kv::Storage &from = **kv::find_storage(storage()), &to = **kv::find_storage(storage());
  RC_PRE(from.forms[0].component == "k" && to.forms[0].component == "k");
  const Setting setting{describe(from.name.c_str(), shape, degrees()),
                        describe(to.name.c_str(), shape, degrees()),
                        {0, *rc::gen::inRange<std::uint64_t>(1, 900)}};
  Crossing alone(setting);
  const Moved moved = alone.run().value();
  for (const std::uint32_t threads : {2u, 3u, 8u}) {
    Crossing crossing(setting);
    std::uint64_t done = 0;
    const Moved together = crossing.run(threads, [&] { ++done; }).value();
    RC_ASSERT(crossing.is_right());
    RC_ASSERT(together.root == moved.root);
    RC_ASSERT(together.chunks == moved.chunks && together.placed == moved.placed && done == moved.chunks);
    RC_ASSERT(together.conversions == moved.conversions);
  }
}

TEST(RedistributeOnThreads, NamesTheFirstChunkThatFails) {
  const TestShape shape{.layers = 6, .heads = 4, .dim = 64};
  const Setting setting{
      describe("llamacpp:f16", shape, {1, 1}), describe("openvino:u8", shape, {1, 1}), {0, 700}};
  std::string alone;
  for (const std::uint32_t threads : {1u, 2u, 4u, 4u, 4u, 4u}) {
    Crossing crossing(setting);
    // NaNs in every fourth row: in chunks of all tiles and layers.
    for (std::vector<std::byte>& memory : crossing.from.bytes()) {
      for (std::size_t at = memory.size() / 2; at + 1 < memory.size(); at += 4 * 4 * 64 * 2)
        memory[at] = memory[at + 1] = std::byte{0x7f};
    }
    const Result<Moved> moved = crossing.run(threads);
    ASSERT_EQ(moved.code(), Code::kCorrupt);
    if (alone.empty()) alone = moved.error().text();
    EXPECT_EQ(moved.error().text(), alone) << threads;
  }
}

TEST(Redistribute, AllocatesNothingFromTheFirstChunkOn) {
  if (!are_allocations_counted())
    GTEST_SKIP() << "a sanitizer's operator new stands before the one that counts";
  const TestShape shape{.layers = 4, .heads = 6, .dim = 64};
  for (const auto& [from, to] : {std::pair{"llamacpp:q8_0", "openvino:u8"},
                                 {"vllm:flash_nhd", "openvino:f32"},
                                 {"openvino:u8_channel", "vllm:cpu_amx_fp8"},
                                 {"llamacpp:f16", "llamacpp:f16"}}) {
    const Setting setting{describe(from, shape, {3, 2}), describe(to, shape, {2, 1}), {0, 1200}};
    Crossing crossing(setting);
    std::uint64_t first = 0, last = 0, chunks = 0;
    const auto moved = crossing.run(1, [&] {
      last = allocations();
      if (chunks++ == 0) first = last;
    });
    ASSERT_TRUE(moved.ok());
    ASSERT_GT(chunks, 20u);
    EXPECT_GT(first, 0u);
    EXPECT_EQ(last, first) << from << " > " << to;
  }
}

}  // namespace
}  // namespace isthmus::transform
