// SPDX-License-Identifier: Apache-2.0
// Published pairs are cut into the boxes of the golden vector, and their copies are written where needed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "kv/published.h"
#include "transform/plan.h"
#include "transform/redistribute.h"
#include "transform/test_ranks.h"

namespace isthmus::transform {
namespace {

// What crosses of the first and the last tile, as ranges; with both ends' ranks that hold them.
constexpr std::uint64_t kTokens = 1500;  // More than a window.

std::string boxes_text(const kv::published::Pair& pair) {
  const kv::Verdict verdict = kv::negotiate(pair.prefill, pair.decode,
                                            {.exactness = kv::Exactness::kUnqualified, .qualifications = {}});
  if (verdict.kind == kv::VerdictKind::kReject) return fmt::format("{} reject\n", pair.name);
  const Plan plan = Plan::make(pair.prefill, pair.decode, verdict, {0, kTokens}).value();
  const auto ranks = [](const kv::Descriptor& end, const Chunk& chunk) {
    std::string out;
    for (const kv::RankBox& box : end.partition) {
      const bool holds = box.group == chunk.group && box.layer_begin <= chunk.box.layer_begin &&
                         chunk.box.layer_end <= box.layer_end && box.head_begin <= chunk.box.head_begin &&
                         chunk.box.head_end <= box.head_end && box.has_token(chunk.box.tokens.begin);
      if (holds) out += fmt::format("{}{}", out.empty() ? "" : ",", box.rank);
    }
    return out;
  };
  std::string out = fmt::format("{} {} chunks\n", pair.name, plan.chunk_count());
  for (const Chunk& chunk : plan.chunks()) {
    const kv::Box& box = chunk.box;
    if (box.tokens.begin != 0 && box.tokens.end != kTokens) continue;
    out +=
        fmt::format("group={} layers={}..{} heads={}..{} tokens={}..{} bytes={} from={} to={}\n", chunk.group,
                    box.layer_begin, box.layer_end, box.head_begin, box.head_end, box.tokens.begin,
                    box.tokens.end, chunk.body_bytes, ranks(pair.prefill, chunk), ranks(pair.decode, chunk));
  }
  return out;
}

// ISTHMUS_UPDATE_VECTORS=1 writes the file instead, after a deliberate change.
TEST(PublishedPairs, AreCutIntoTheVectorsBoxes) {
  std::string text;
  for (const kv::published::Pair& pair : kv::published::pairs()) text += boxes_text(pair);
  const std::string path = std::string(ISTHMUS_SPEC_DIR) + "/vectors/kv/published/boxes.txt";
  if (std::getenv("ISTHMUS_UPDATE_VECTORS") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  EXPECT_EQ(content.str(), text) << path;
}

// A state goes to the data-parallel rank that has the sequence; copies of other kinds are all written.
TEST(PublishedPairs, OnlyTheRankOfTheSequenceIsWritten) {
  const auto plan_of = [](const kv::Descriptor& source, const kv::Descriptor& target) {
    const kv::Policy policy{.exactness = kv::Exactness::kUnqualified, .qualifications = {}};
    return Plan::make(source, target, kv::negotiate(source, target, policy), {0, 1}).value();
  };
  const kv::Descriptor stages = kv::published::latent_prefill(4, 1, 4);
  const kv::Descriptor sixteen = kv::published::latent_decode(16, false);
  const Plan there = plan_of(stages, sixteen), back = plan_of(sixteen, stages);
  using Routes = std::vector<Route>;
  const Chunk first = there.chunk(0), last = there.chunk(there.chunk_count() - 1);
  EXPECT_EQ(routes_of(first, stages, sixteen).value(), (Routes{{0, 0}}));
  EXPECT_EQ(routes_of(last, stages, sixteen, {.target_data = 11}).value(), (Routes{{12, 11}}));
  EXPECT_EQ(routes_of(first, stages, sixteen, {.target_data = 16}).code(), Code::kInvalidArgument);
  EXPECT_EQ(routes_of(back.chunk(0), sixteen, stages, {.source_data = 5}).value(),
            (Routes{{5, 0}, {5, 1}, {5, 2}, {5, 3}}));
}

// Moves a state of `tokens` from some ranks to others; `data` is the decode rank that has the sequence.
void expect_moved(const kv::Descriptor& source, const kv::Descriptor& target, kv::TokenRange tokens,
                  std::uint32_t data) {
  const kv::Policy policy{.exactness = kv::Exactness::kUnqualified, .qualifications = {}};
  const kv::Verdict verdict = kv::negotiate(source, target, policy);
  const auto plan = std::make_shared<const Plan>(Plan::make(source, target, verdict, tokens).value());
  TestRanks from(source, 0, tokens, 1), to(target, 0, tokens, 2), expected(target, 0, tokens, 2);
  const TestRanks untouched(target, 0, tokens, 2);
  write_state(source, target, plan->product(), {3}, &from, &expected);
  const Result<Moved> moved = redistribute({.plan = plan,
                                            .source = source,
                                            .target = target,
                                            .from = from.memory(),
                                            .to = to.memory(),
                                            .reading = {.target_data = data}});
  ASSERT_TRUE(moved.ok()) << moved.error().text();
  std::size_t at = 0, written = 0;
  for (std::size_t rank = 0; rank < to.memory().size(); ++rank) {
    for (const kv::Binding& binding : to.memory()[rank].groups) {
      for (std::size_t m = 0; m < binding.memory.size(); ++m, ++at) {
        const auto box = std::ranges::find(target.partition, to.memory()[rank].rank, &kv::RankBox::rank);
        const bool is_reached = box->data_replica == data;
        const auto& wanted = is_reached ? expected.bytes()[at] : untouched.bytes()[at];
        ASSERT_TRUE(to.bytes()[at] == wanted) << "rank " << to.memory()[rank].rank << ", memory " << at;
        written += is_reached ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(at, to.bytes().size());
  EXPECT_GT(written, 0U);
}

// The classes of the published models with fewer layers: all ranks, formats and kinds of state are as
// published.
TEST(PublishedPairs, PrefillOfTp4Cp4Pp4IsDecodedOnOneOfSixteen) {
  const kv::Descriptor prefill = kv::published::latent_prefill(4, 4, 4, 4);
  expect_moved(prefill, kv::published::latent_decode(16, false, 4), {0, 300}, 5);
  expect_moved(prefill, kv::published::latent_decode(16, true, 4), {0, 300}, 15);
}

// A state without a token axis is that of one position: none of another serves.
TEST(PublishedPairs, ARecurrentStateOfAnotherPositionIsRefused) {
  const kv::Descriptor end = kv::published::hybrid(kv::Format::kF32, 2);
  const kv::TokenRange tokens{0, 20};
  const auto plan =
      std::make_shared<const Plan>(Plan::make(end, end, kv::negotiate(end, end, {}), tokens).value());
  const Chunk last = plan->chunk(plan->chunk_count() - 1);
  EXPECT_EQ(last.box.tokens, (kv::TokenRange{19, 20}));
  EXPECT_EQ(plan->chunks_below(19), 0U);
  TestRanks from(end, 0, tokens, 1), to(end, 0, tokens, 2);
  for (const kv::TokenRange valid : {kv::TokenRange{0, 20}, {20, 21}, {19, 21}}) {
    for (RankMemory& rank : from.memory()) {
      rank.groups[1].valid = valid;
      rank.groups[1].first_position = valid.begin;
    }
    EXPECT_EQ(
        redistribute({.plan = plan, .source = end, .target = end, .from = from.memory(), .to = to.memory()})
            .code(),
        Code::kInvalidArgument)
        << valid.begin;
  }
}

TEST(PublishedPairs, AHybridsRecurrentStateCrossesAsItIs) {
  expect_moved(kv::published::hybrid(kv::Format::kF32, 4), kv::published::hybrid(kv::Format::kF32, 2),
               {0, 20}, 0);
}

}  // namespace
}  // namespace isthmus::transform
