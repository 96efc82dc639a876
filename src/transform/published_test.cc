// SPDX-License-Identifier: Apache-2.0
// Published pairs are cut into the boxes of the golden vector, and their copies are written where needed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kv/published.h"
#include "transform/plan.h"
#include "transform/redistribute.h"

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
                         chunk.box.head_end <= box.head_end;
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

}  // namespace
}  // namespace isthmus::transform
