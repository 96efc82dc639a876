// SPDX-License-Identifier: Apache-2.0
// Cutting, order, proof and digest of plans.
#include "transform/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

Plan make_plan(const kv::Descriptor& source, const kv::Descriptor& target, kv::TokenRange tokens) {
  auto plan = Plan::make(source, target, test_verdict(source, target), tokens);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().text());
  return *std::move(plan);
}

const TestGeometry kSmall{.layers = 6, .heads = 4, .dim = 16};

TEST(Plan, CutsTokensAtAbsoluteTilesAndMergesLayersUpToTheBound) {
  // One layer of a whole tile is 2 * 4 * 256 * 16 * 2 = 64 KiB: four layers fill a chunk.
  const auto source = test_descriptor("llamacpp:f16", kSmall);
  const Plan plan = make_plan(source, test_descriptor("openvino:u8", kSmall), {100, 600});
  std::vector<kv::Box> boxes;
  for (const Chunk& chunk : plan.chunks()) boxes.push_back(chunk.box);
  // [100, 256) is shorter, so that more layers fit.
  const std::vector<kv::Box> expected{
      {0, 6, 0, 4, {100, 256}}, {0, 4, 0, 4, {256, 512}}, {4, 6, 0, 4, {256, 512}}, {0, 6, 0, 4, {512, 600}}};
  EXPECT_EQ(boxes, expected);
  EXPECT_EQ(plan.body_bytes_max(), kChunkBytesMax);
  EXPECT_EQ(plan.total_bytes(), 500u * 6 * 2 * 4 * 16 * 2);
  EXPECT_EQ(plan.chunk(1).tile_count(), 4u * 2 * 4);
}

TEST(Plan, PartsTheHeadsOfALayerThatIsLargerThanTheBound) {
  // One head of one layer of a whole tile is 2 * 256 * 128 * 2 = 128 KiB: two heads fill a chunk.
  const TestGeometry wide{.layers = 2, .heads = 5, .dim = 128};
  const auto source = test_descriptor("llamacpp:f16", wide);
  const Plan plan = make_plan(source, test_descriptor("openvino:f16", wide), {0, 256});
  std::vector<kv::Box> boxes;
  for (const Chunk& chunk : plan.chunks()) boxes.push_back(chunk.box);
  const std::vector<kv::Box> expected{{0, 1, 0, 2, {0, 256}}, {0, 1, 2, 4, {0, 256}}, {0, 1, 4, 5, {0, 256}},
                                      {1, 2, 0, 2, {0, 256}}, {1, 2, 2, 4, {0, 256}}, {1, 2, 4, 5, {0, 256}}};
  EXPECT_EQ(boxes, expected);
  EXPECT_EQ(plan.body_bytes_max(), kChunkBytesMax);
}

TEST(Plan, OneHeadOfOneLayerIsOneChunkHoweverLargeItIs) {
  const TestGeometry huge{.layers = 2, .heads = 2, .dim = 512};
  const auto source = test_descriptor("llamacpp:f16", huge);
  const Plan plan = make_plan(source, source, {0, 256});
  EXPECT_EQ(plan.chunk_count(), 4u);
  EXPECT_EQ(plan.body_bytes_max(), 2 * kChunkBytesMax);
}

TEST(Plan, ChunksBelowAWatermarkAreAPrefix) {
  const auto source = test_descriptor("llamacpp:f16", kSmall);
  const Plan plan = make_plan(source, source, {100, 600});
  EXPECT_EQ(plan.chunks_below(0), 0u);
  EXPECT_EQ(plan.chunks_below(255), 0u);
  EXPECT_EQ(plan.chunks_below(256), 1u);
  EXPECT_EQ(plan.chunks_below(599), 3u);
  EXPECT_EQ(plan.chunks_below(600), 4u);
}

TEST(Plan, HeadsAndLayersAreCutAtTheRanksOfBothEnds) {
  TestGeometry p{.layers = 4, .heads = 6, .dim = 64, .head_ranks = 3};
  TestGeometry d = p;
  d.head_ranks = 2;
  d.layer_ranks = 2;
  const Plan plan =
      make_plan(test_descriptor("llamacpp:f16", p), test_descriptor("openvino:f32", d), {0, 10});
  std::vector<std::pair<std::uint32_t, std::uint32_t>> heads;
  for (const Chunk& chunk : plan.chunks()) {
    if (chunk.box.layer_begin == 0) heads.emplace_back(chunk.box.head_begin, chunk.box.head_end);
    EXPECT_TRUE(chunk.box.layer_end <= 2 || chunk.box.layer_begin >= 2);
  }
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> expected{{0, 2}, {2, 3}, {3, 4}, {4, 6}};
  EXPECT_EQ(heads, expected);
  EXPECT_EQ(plan.chunk_count(), 8u);
}

TEST(Plan, TileKeysNameGlobalLayersAndHeads) {
  const auto source = test_descriptor("openvino:u8", kSmall);
  const Plan plan = make_plan(source, source, {0, 300});
  const Chunk chunk = plan.chunk(plan.chunk_count() - 1);
  const TileKey key = plan.tile_key(chunk, chunk.tile_count() - 1);
  EXPECT_EQ(key, (TileKey{0, 15, "v.z", 3, {256, 300}}));
  EXPECT_EQ(plan.tile_text(chunk, chunk.tile_count() - 1),
            "group 0, layer 15, part v.z, head 3, tokens [256, 300)");
}

TEST(Plan, RefusesWhatItCannotCut) {
  const auto source = test_descriptor("llamacpp:f16", kSmall);
  const auto verdict = test_verdict(source, source);
  EXPECT_EQ(Plan::make(source, source, verdict, {5, 5}).code(), Code::kInvalidArgument);
  EXPECT_EQ(Plan::make(source, source, verdict, {0, ~std::uint64_t{0}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(Plan::make(source, source, verdict, {0, kPositionMax}).code(), Code::kExhausted);
  auto other = source;
  other.identity.lineage = "11";
  EXPECT_EQ(Plan::make(source, other, test_verdict(source, other), {0, 5}).code(), Code::kIncompatible);
  auto recurrent = source;
  recurrent.groups[0].attention = kv::AttentionKind::kRecurrent;
  EXPECT_EQ(Plan::make(recurrent, recurrent, verdict, {0, 5}).code(), Code::kUnsupported);
}

// What begins inside the tokens of a scale is refused with what to ask, and what is asked then is planned.
TEST(Plan, RefusesWhatBeginsInsideATokenGroupAndSaysWhatToAsk) {
  const TestGeometry geometry{.layers = 2, .heads = 2, .dim = 64};
  const auto channel = test_descriptor("openvino:u8_channel", geometry),
             rows = test_descriptor("llamacpp:f16", geometry);
  for (const auto& [source, target] : {std::pair{channel, rows}, {rows, channel}, {channel, channel}}) {
    const kv::Verdict verdict = test_verdict(source, target);
    for (std::uint64_t begin = 0; begin < 300; ++begin) {
      const auto plan = Plan::make(source, target, verdict, {begin, 700});
      const std::uint64_t whole = whole_groups_from(source, target, begin);
      EXPECT_EQ(whole, begin / 32 * 32);
      ASSERT_EQ(plan.ok(), whole == begin) << begin;
      if (plan.ok()) continue;
      EXPECT_EQ(plan.code(), Code::kInvalidArgument);
      EXPECT_THAT(plan.error().detail,
                  HasSubstr("shares a scale among 32 tokens, which it is of; ask for those from " +
                            std::to_string(whole) + " on, which writes that group anew, or from " +
                            std::to_string(whole + 32) + " on"));
      EXPECT_TRUE(Plan::make(source, target, verdict, {whole, 700}).ok());
    }
  }
  EXPECT_EQ(whole_groups_from(rows, rows, 37), 37U);
  EXPECT_TRUE(Plan::make(rows, rows, test_verdict(rows, rows), {37, 38}).ok());
}

TEST(Plan, DigestChangesWithEachInput) {
  const auto source = test_descriptor("llamacpp:f16", kSmall);
  const auto f32 = test_descriptor("openvino:f32", kSmall), u8 = test_descriptor("openvino:u8", kSmall);
  const Digest128 digest = make_plan(source, f32, {0, 300}).digest();
  EXPECT_EQ(make_plan(source, f32, {0, 300}).digest(), digest);
  EXPECT_NE(make_plan(source, u8, {0, 300}).digest(), digest);
  EXPECT_NE(make_plan(source, f32, {0, 301}).digest(), digest);
  EXPECT_NE(make_plan(test_descriptor("llamacpp:f16_v_transposed", kSmall), f32, {0, 300}).digest(), digest);
}

TEST(Plan, OfALongPromptHasFewSectionsAndPieces) {
  const TestGeometry deep{.layers = 128, .heads = 8, .dim = 128};
  const auto source = test_descriptor("llamacpp:f16", deep);
  const Plan plan = make_plan(source, test_descriptor("openvino:f16", deep), {0, 131'072});
  EXPECT_EQ(plan.chunk_count(), 128u * 4 * 512);
  const Chunk last = plan.chunk(plan.chunk_count() - 1);
  EXPECT_EQ(last.box, (kv::Box{127, 128, 6, 8, {131'072 - 256, 131'072}}));
  EXPECT_EQ(last.sections.data(), plan.chunk(0).sections.data());
}

TEST(Plan, MovesOfAWindowWhatTheNextStepReads) {
  auto source = test_descriptor("llamacpp:f16", kSmall);
  source.groups.push_back(source.groups[0]);
  source.groups[1].layers = {20, 21};
  source.groups[1].attention = kv::AttentionKind::kSlidingWindow;
  source.groups[1].window = 200;
  source.representation.push_back(source.representation[0]);
  source.partition.push_back({.rank = 0, .group = 1, .layer_end = 2, .head_end = 4});
  auto verdict = test_verdict(source, source);
  const Plan plan = Plan::make(source, source, verdict, {100, 600}).value();
  std::vector<std::pair<std::uint32_t, kv::Box>> boxes;
  for (const Chunk& chunk : plan.chunks()) boxes.emplace_back(chunk.group, chunk.box);
  const std::vector<std::pair<std::uint32_t, kv::Box>> expected{
      {0, {0, 6, 0, 4, {100, 256}}}, {0, {0, 4, 0, 4, {256, 512}}}, {0, {4, 6, 0, 4, {256, 512}}},
      {1, {0, 2, 0, 4, {400, 512}}}, {0, {0, 6, 0, 4, {512, 600}}}, {1, {0, 2, 0, 4, {512, 600}}}};
  EXPECT_EQ(boxes, expected);
  EXPECT_EQ(plan.chunks_below(512), 4u);
  EXPECT_EQ(Plan::make(source, source, verdict, {0, 150})->product().groups[1].token_begin, 0u);
}

TEST(Plan, DigestFollowsTheByteRecipeOfTheSpec) {
  const TestGeometry geometry{.layers = 1, .heads = 1, .dim = 64};
  const auto source = test_descriptor("llamacpp:f16", geometry),
             target = test_descriptor("openvino:f32", geometry);
  const Plan plan = make_plan(source, target, {5, 8});
  EXPECT_EQ(plan.digest(),
            digest128("isthmus-plan 2\nwire\n0 k codes=f16 op=q\n0 v codes=f16 op=q\ntokens 5 8\nsource " +
                      source.digest().hex() + "\ntarget " + target.digest().hex() +
                      "\ngroup 0 from 5 layers 0 1 heads 0 1\ntile 5 8 0\npiece 3 0 0 1 0 1 1 1 768\n"));
}

TEST(TileRoot, IsTheDigestOfTheSortedListInBytes) {
  const TileKey low{0, 3, "k", 1, {0, 256}}, high{0, 3, "v.s", 0, {0, 256}};
  TileRoot root, reversed;
  root.add(low, {1, 2});
  root.add(high, {3, 4});
  reversed.add(high, {3, 4});
  reversed.add(low, {1, 2});
  EXPECT_EQ(root.root(), reversed.root());
  std::vector<std::byte> bytes;
  const auto add = [&bytes](std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
      bytes.push_back(std::byte{static_cast<unsigned char>(value >> (8 * i))});
  };
  for (const auto& [key, digest] : {std::pair{low, Digest128{1, 2}}, std::pair{high, Digest128{3, 4}}}) {
    add(key.group, 4);
    add(key.layer, 4);
    add(key.part.size(), 4);
    for (const char c : key.part) add(static_cast<unsigned char>(c), 1);
    add(key.head, 4);
    add(key.tokens.begin, 8);
    add(key.tokens.end, 8);
    add(digest.high, 8);
    add(digest.low, 8);
  }
  EXPECT_EQ(root.root(), digest128(std::span<const std::byte>(bytes)));
  root.add({0, 4, "k", 1, {0, 256}}, {5, 6});
  EXPECT_NE(root.root(), reversed.root());
}

}  // namespace
}  // namespace isthmus::transform
