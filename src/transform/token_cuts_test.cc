// SPDX-License-Identifier: Apache-2.0
// Positions that context-parallel ranks deal out: numbers, cuts, proof and crossing, against plain counting.
#include "transform/token_cuts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "transform/plan.h"
#include "transform/ranks.h"
#include "transform/redistribute.h"
#include "transform/test_ranks.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

// The rule of spec/kv-state.md §1.4, one position at a time.
bool has_position(const kv::RankBox& box, std::uint64_t position) {
  const std::uint64_t at = box.token_period == 0 ? position : position % box.token_period;
  const bool is_open = box.token_end == 0 && box.token_period == 0;
  return at >= box.token_begin && (is_open || at < box.token_end);
}

kv::RankBox stripe(std::uint64_t begin, std::uint64_t end, std::uint64_t period) {
  return {.token_begin = begin, .token_end = end, .token_period = period};
}

TEST(RankTokens, AreNumberedAsCountingNumbersThem) {
  for (const kv::RankBox& box : {stripe(0, 0, 0), stripe(5, 0, 0), stripe(0, 7, 0), stripe(3, 9, 0),
                                 stripe(0, 4, 12), stripe(4, 8, 12), stripe(8, 12, 12), stripe(2, 3, 3)}) {
    SCOPED_TRACE(box.text());
    std::uint64_t number = 0;
    for (std::uint64_t position = 0; position < 40; ++position) {
      EXPECT_EQ(box.tokens_below(position), number);
      EXPECT_EQ(box.has_token(position), has_position(box, position));
      std::uint64_t bound = position + 1;
      while (bound < 100 && has_position(box, bound) == has_position(box, bound - 1)) ++bound;
      EXPECT_LE(box.token_bound_after(position), bound < 100 ? bound : kv::kPositionMax);
      if (!has_position(box, position)) continue;
      EXPECT_EQ(box.token_at(number), position);
      ++number;
    }
  }
}

TEST(TokenCuts, AreTheTokensThatTheSameRanksHave) {
  TokenCutter cutter({stripe(0, 64, 128), stripe(64, 128, 128), stripe(0, 96, 0), stripe(96, 0, 0)});
  EXPECT_EQ(cutter.cut({0, 256}).value(),
            (TokenPattern{{{{0, 64}}}, {{{64, 96}}}, {{{96, 128}, {192, 256}}}, {{{128, 192}}}}));
  EXPECT_EQ(cutter.cut({256, 300}).value(), (TokenPattern{{{{0, 44}}}}));
  TokenCutter fine({stripe(0, 1, 3), stripe(1, 2, 3), stripe(2, 3, 3)});
  EXPECT_EQ(fine.cut({512, 517}).value(), (TokenPattern{{{{0, 1}, {3, 4}}}, {{{1, 2}, {4, 5}}}, {{{2, 3}}}}));
}

// --- Random ranks: a grid of layers, heads and positions, perhaps with a second copy that is cut otherwise.

void add_copy(std::vector<kv::RankBox>& boxes, std::uint32_t layers, std::uint32_t heads, std::uint32_t copy,
              int kind) {
  const auto layer_cut = *rc::gen::inRange<std::uint32_t>(0, layers);
  const auto head_cut = *rc::gen::inRange<std::uint32_t>(0, heads);
  const auto run = *rc::gen::element<std::uint32_t>(1, 3, 16, 64, 100, 256);
  const auto ranks = kind == 0 ? 1 : *rc::gen::inRange<std::uint32_t>(2, 5);
  for (const auto& [l0, l1] : {std::pair{0U, layer_cut}, std::pair{layer_cut, layers}}) {
    for (const auto& [h0, h1] : {std::pair{0U, head_cut}, std::pair{head_cut, heads}}) {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        if (l0 == l1 || h0 == h1) continue;
        kv::RankBox box{.rank = static_cast<std::uint32_t>(boxes.size()),
                        .layer_begin = l0,
                        .layer_end = l1,
                        .head_begin = h0,
                        .head_end = h1,
                        .gqa_replica = copy};
        if (kind != 0) {
          box.token_begin = std::uint64_t{rank} * run;
          box.token_end = kind == 2 && rank + 1 == ranks ? 0 : box.token_begin + run;
          box.token_period = kind == 1 ? std::uint64_t{ranks} * run : 0;
        }
        boxes.push_back(box);
      }
    }
  }
}

// Kinds: 0 all positions, 1 stripes, 2 runs.
std::vector<kv::RankBox> some_ranks(std::uint32_t layers, std::uint32_t heads, int first_kind) {
  std::vector<kv::RankBox> boxes;
  const auto copies = *rc::gen::inRange<std::uint32_t>(1, 3);
  for (std::uint32_t copy = 0; copy < copies; ++copy)
    add_copy(boxes, layers, heads, copy, *rc::gen::inRange(copy == 0 ? first_kind : 0, 3));
  return boxes;
}

struct Random {
  std::uint32_t layers, heads;
  kv::TokenRange tokens;
  kv::Descriptor source, target;
};

Random some_ends(std::uint64_t tokens_max, int first_kind = 0) {
  const auto layers = *rc::gen::inRange<std::uint32_t>(1, 4);
  const auto heads = *rc::gen::inRange<std::uint32_t>(1, 4);
  const auto begin = *rc::gen::inRange<std::uint64_t>(0, 300);
  const kv::TokenRange tokens{begin, begin + *rc::gen::inRange<std::uint64_t>(1, tokens_max)};
  const TestGeometry geometry{.layers = layers, .heads = heads, .dim = 8};
  const auto* from = *rc::gen::element("llamacpp:f16", "vllm:flash_nhd");
  const auto* to = *rc::gen::element("openvino:f32", "vllm:flash_hnd", "llamacpp:f32");
  Random made{layers, heads, tokens, test_descriptor(from, geometry), test_descriptor(to, geometry)};
  for (kv::Descriptor* end : {&made.source, &made.target}) {
    end->partition = some_ranks(layers, heads, end == &made.source ? first_kind : 0);
    end->schema_minor = end->minimum_minor();
    const Status valid = end->validate();
    RC_ASSERT(valid.ok());
  }
  return made;
}

// Nothing but counting: each wanted cell once, and no rank with some cells of a piece only.
bool is_right(const Product& product, const Random& ends) {
  const Product::Group& group = product.groups[0];
  for (std::size_t t = 0; t < product.tiles.size(); ++t) {
    const kv::TokenRange tile = product.tiles[t];
    if (group.tile_patterns[t] >= group.patterns.size()) return false;
    std::vector<int> seen(tile.size() + 600, 0);
    for (const TokenCut& cut : group.patterns[group.tile_patterns[t]]) {
      std::vector<std::uint64_t> positions;
      for (std::size_t i = 0; i < cut.runs.size(); ++i) {
        const kv::TokenRange run = cut.runs[i];
        if (run.begin >= run.end || (i > 0 && run.begin <= cut.runs[i - 1].end)) return false;
        for (std::uint64_t p = run.begin; p < run.end; ++p) {
          ++seen.at(p);
          positions.push_back(tile.begin + p);
        }
      }
      if (positions.empty()) return false;
      for (const kv::Descriptor* end : {&ends.source, &ends.target}) {
        for (const kv::RankBox& box : end->partition) {
          const auto held = std::count_if(positions.begin(), positions.end(),
                                          [&](std::uint64_t p) { return has_position(box, p); });
          if (held != 0 && held != static_cast<std::ptrdiff_t>(positions.size())) return false;
        }
      }
    }
    for (std::size_t p = 0; p < seen.size(); ++p) {
      if (seen[p] != (p < tile.size() ? 1 : 0)) return false;
    }
  }
  return true;
}

// Neighbours become one run.
void merge(std::vector<kv::TokenRange>& runs, const std::vector<kv::TokenRange>& more) {
  runs.insert(runs.end(), more.begin(), more.end());
  std::sort(runs.begin(), runs.end());
  std::vector<kv::TokenRange> merged;
  for (const kv::TokenRange& run : runs) {
    if (!merged.empty() && merged.back().end == run.begin) {
      merged.back().end = run.end;
    } else {
      merged.push_back(run);
    }
  }
  runs = std::move(merged);
}

// Sometimes harmless: the oracle says.
void break_somewhere(Product& product) {
  Product::Group& group = product.groups[0];
  TokenPattern& pattern = group.patterns[*rc::gen::inRange<std::size_t>(0, group.patterns.size())];
  if (pattern.empty()) return;
  TokenCut& cut = pattern[*rc::gen::inRange<std::size_t>(0, pattern.size())];
  if (cut.runs.empty()) return;
  kv::TokenRange& run = cut.runs[*rc::gen::inRange<std::size_t>(0, cut.runs.size())];
  switch (*rc::gen::inRange(0, 8)) {
    case 0:
      ++run.begin;
      return;
    case 1:
      ++run.end;
      return;
    case 2:
      cut.runs.pop_back();
      return;
    case 3:
      pattern.pop_back();
      return;
    case 4:
      pattern.push_back(pattern.front());
      return;
    case 5:
      cut.runs.push_back(pattern.front().runs.front());
      return;
    case 6:
      ++group.tile_patterns.front();
      return;
    default:  // Two cuts as one: right only where no rank tells them apart.
      if (pattern.size() < 2) return;
      merge(pattern[0].runs, pattern[1].runs);
      pattern.erase(pattern.begin() + 1);
  }
}

RC_GTEST_PROP(StripedProof, SaysWhatCountingSays, ()) {
  const Random ends = some_ends(600, 1);
  const kv::Verdict verdict = test_verdict(ends.source, ends.target);
  Product product =
      Plan::make(ends.source, ends.target, verdict, ends.tokens, EndDigests{}).value().product();
  RC_ASSERT(is_right(product, ends));
  for (int breaks = *rc::gen::inRange(0, 3); breaks > 0; --breaks) break_somewhere(product);
  const bool right = is_right(product, ends);
  RC_CLASSIFY(right);
  RC_ASSERT(prove(product, ends.source, ends.target, ends.tokens).ok() == right);
}

// Each rank of either end has both positions, or neither.
bool are_held_alike(const Random& ends, std::uint64_t a, std::uint64_t b) {
  for (const kv::Descriptor* end : {&ends.source, &ends.target}) {
    for (const kv::RankBox& box : end->partition) {
      if (has_position(box, a) != has_position(box, b)) return false;
    }
  }
  return true;
}

void count_cells(const Random& ends, const kv::Box& box, std::uint64_t position, std::vector<int>& seen) {
  for (std::uint32_t layer = box.layer_begin; layer < box.layer_end; ++layer) {
    for (std::uint32_t head = box.head_begin; head < box.head_end; ++head)
      ++seen.at((std::size_t{layer} * ends.heads + head) * ends.tokens.end + position);
  }
}

RC_GTEST_PROP(StripedPlans, CoverEachCellOnceAndLeaveNoRankHalf, ()) {
  const Random ends = some_ends(600);
  const Plan plan =
      Plan::make(ends.source, ends.target, test_verdict(ends.source, ends.target), ends.tokens, EndDigests{})
          .value();
  std::vector<int> seen(std::size_t{ends.layers} * ends.heads * ends.tokens.end, 0);
  for (const Chunk& chunk : plan.chunks()) {
    RC_ASSERT(plan.check_chunk(chunk).ok());
    std::uint64_t count = 0;
    for (const kv::TokenRange& run : chunk.runs) {
      count += run.size();
      for (std::uint64_t at = run.begin; at < run.end; ++at) {
        const std::uint64_t position = chunk.box.tokens.begin + at;
        RC_ASSERT(position < chunk.box.tokens.end);
        RC_ASSERT(are_held_alike(ends, position, chunk.box.tokens.begin));
        count_cells(ends, chunk.box, position, seen);
      }
    }
    RC_ASSERT(count == chunk.token_count);
    RC_ASSERT(chunk.runs.back().end == chunk.box.tokens.size());
  }
  for (std::size_t cell = 0; cell < seen.size(); ++cell)
    RC_ASSERT(seen[cell] == (cell % ends.tokens.end >= ends.tokens.begin ? 1 : 0));
}

// Every byte of every target rank is what a plain loop over positions makes it.
RC_GTEST_PROP(StripedRedistribution, WritesWhatAPlainLoopWrites, ()) {
  const Random ends = some_ends(400);
  const auto plan = std::make_shared<const Plan>(
      Plan::make(ends.source, ends.target, test_verdict(ends.source, ends.target), ends.tokens).value());
  const std::uint64_t first = *rc::gen::inRange<std::uint64_t>(0, ends.tokens.begin + 1);
  const kv::TokenRange valid{first, ends.tokens.end};
  TestRanks from(ends.source, first, valid, 1), to(ends.target, first, valid, 2),
      expected(ends.target, first, valid, 2);
  write_state(ends.source, ends.target, plan->product(), {42}, &from, &expected);
  const Result<Moved> moved = redistribute(
      {.plan = plan, .source = ends.source, .target = ends.target, .from = from.memory(), .to = to.memory()});
  if (!moved.ok()) RC_FAIL(moved.error().text());
  RC_ASSERT(to.bytes() == expected.bytes());
}

// --- Named cases.

Moved expect_crosses(const kv::Descriptor& source, const kv::Descriptor& target, kv::TokenRange tokens) {
  const auto plan =
      std::make_shared<const Plan>(Plan::make(source, target, test_verdict(source, target), tokens).value());
  TestRanks from(source, 0, tokens, 1), to(target, 0, tokens, 2), expected(target, 0, tokens, 2);
  write_state(source, target, plan->product(), {7}, &from, &expected);
  const Result<Moved> moved = redistribute(
      {.plan = plan, .source = source, .target = target, .from = from.memory(), .to = to.memory()});
  EXPECT_TRUE(moved.ok()) << (moved.ok() ? "" : moved.error().text());
  EXPECT_TRUE(to.bytes() == expected.bytes());
  return moved.ok() ? *moved : Moved{};
}

TEST(ContextRanks, OnEitherEndInStripesAndRunsWithTensorAndPipelineRanks) {
  const TestShape shape{.layers = 4, .heads = 4, .dim = 64};
  const std::vector<Degrees> all{
      {},
      {.context = 2, .run = 1},
      {.tensor = 2, .pipeline = 2, .context = 4, .run = 16},
      {.pipeline = 3, .context = 3, .run = 100, .is_striped = false},
      {.tensor = 8, .context = 2, .run = 64},
  };
  for (const Degrees& from : all) {
    for (const Degrees& to : all) {
      SCOPED_TRACE(fmt::format("{}x{}x{}/{} > {}x{}x{}/{}", from.tensor, from.pipeline, from.context,
                               from.run, to.tensor, to.pipeline, to.context, to.run));
      expect_crosses(describe("vllm:flash_nhd", shape, from), describe("openvino:f32", shape, to), {0, 530});
      expect_crosses(describe("llamacpp:f16", shape, from), describe("vllm:flash_hnd", shape, to, 64),
                     {0, 130});
    }
  }
}

TEST(ContextRanks, ScalesThatSpanTokensStayWhole) {
  const TestShape shape{.layers = 2, .heads = 2, .dim = 64};
  const kv::Descriptor fine = describe("vllm:flash_nhd", shape, {.context = 2, .run = 16});
  const kv::Descriptor coarse = describe("vllm:flash_nhd", shape, {.context = 2, .run = 64});
  const kv::Descriptor scaled = describe("openvino:u8_channel", shape, {.context = 3, .run = 96});
  expect_crosses(coarse, scaled, {0, 500});
  expect_crosses(scaled, scaled, {0, 500});
  const kv::Verdict verdict = test_verdict(fine, scaled);
  ASSERT_EQ(verdict.kind, kv::VerdictKind::kReject);
  EXPECT_THAT(verdict.rejects.front().text, HasSubstr("cut scales that 32 tokens share"));
}

TEST(ContextRanks, AProofRefusesACutThatSpansRanksATokenTwiceAndOneForgotten) {
  const kv::Descriptor from = describe("vllm:flash_nhd", {}, {.context = 2, .run = 64});
  const kv::Descriptor to = describe("vllm:flash_hnd", {}, {});
  const kv::TokenRange tokens{0, 300};
  const Product good = Plan::make(from, to, test_verdict(from, to), tokens)->product();
  ASSERT_TRUE(prove(good, from, to, tokens).ok());
  const auto expect_refused = [&](const TokenPattern& first, const char* text) {
    Product bad = good;
    bad.groups[0].patterns[0] = first;
    const Status proof = prove(bad, from, to, tokens);
    ASSERT_EQ(proof.code(), Code::kInvalidArgument);
    EXPECT_THAT(proof.error().detail, HasSubstr(text));
  };
  expect_refused({{{{0, 256}}}}, "tokens [0, 256): aren't inside one rank of the source");
  expect_refused({{{{0, 64}, {128, 192}}}, {{{64, 128}, {191, 256}}}}, "two cuts have tokens [191, 192)");
  expect_refused({{{{0, 64}, {128, 192}}}, {{{64, 128}}}}, "the cuts of tokens [0, 256) end at 192");
  expect_refused({{{{128, 192}}}, {{{64, 128}, {192, 256}}}}, "no cut has tokens [0, 64)");
  Product whole = good;
  whole.groups[0].patterns.clear();
  whole.groups[0].tile_patterns.clear();
  EXPECT_FALSE(prove(whole, from, to, tokens).ok());
}

TEST(ContextRanks, AWindowAndAnInterleaveOfOneToken) {
  TestShape shape{.layers = 3, .heads = 2, .dim = 64};
  shape.attention = kv::AttentionKind::kSlidingWindow;
  shape.window = 100;
  const kv::Descriptor four = describe("vllm:flash_nhd", shape, {.context = 4, .run = 1});
  const kv::Descriptor one = describe("vllm:flash_hnd", shape, {});
  expect_crosses(four, one, {0, 700});
  const Moved moved = expect_crosses(one, four, {0, 700});
  EXPECT_EQ(moved.chunks, 4U);  // The window's tile of four ranks: a rank's tokens cross together.
}

TEST(ContextRanks, ALongPromptHasFewPatterns) {
  const TestShape shape{.layers = 4, .heads = 2, .dim = 64};
  const kv::Descriptor from = describe("vllm:flash_nhd", shape, {.context = 4, .run = 1});
  const kv::Descriptor to = describe("vllm:flash_hnd", shape, {.context = 3, .run = 64});
  const Plan plan = Plan::make(from, to, test_verdict(from, to), {0, 131'072}).value();
  EXPECT_LE(plan.product().groups[0].patterns.size(), 6U);
  EXPECT_LE(plan.chunk_count(), 512U * 12);
}

}  // namespace
}  // namespace isthmus::transform
