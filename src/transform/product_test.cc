// SPDX-License-Identifier: Apache-2.0
// The proof against an oracle that counts every (layer, head, token) by itself; and each way to break it.
#include "transform/product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "transform/plan.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

const TestGeometry kSmall{.layers = 6, .heads = 4, .dim = 16};

class Proof : public testing::Test {
 protected:
  Status prove() const { return transform::prove(product_, source_, target_, tokens_); }
  void expect_refused(std::string_view text) const {
    const Status status = prove();
    ASSERT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.error().detail, HasSubstr(std::string(text)));
  }

  const TestGeometry geometry_{.layers = 6, .heads = 4, .dim = 16, .head_ranks = 2};
  const kv::Descriptor source_ = test_descriptor("llamacpp:f16", geometry_);
  kv::Descriptor target_ = test_descriptor("openvino:f32", kSmall);
  const kv::TokenRange tokens_{100, 600};
  Product product_ = Plan::make(source_, target_, test_verdict(source_, target_), tokens_)->product();
};

TEST_F(Proof, HoldsForWhatThePlanMade) {
  EXPECT_TRUE(prove().ok());
  EXPECT_EQ(product_.groups, (std::vector<Product::Group>{{{0, 6}, {0, 2, 4}, 100}}));
  EXPECT_EQ(product_.tiles, (std::vector<kv::TokenRange>{{100, 256}, {256, 512}, {512, 600}}));
}
TEST_F(Proof, FailsForLayersTwice) {
  product_.groups[0].layers = {0, 4, 3, 6};
  expect_refused("group 0, layers [4, 3) is covered twice");
}
TEST_F(Proof, FailsForAMissingLayer) {
  product_.groups[0].layers = {0, 5};
  expect_refused("no piece covers group 0, layers [5, 6)");
}
TEST_F(Proof, FailsForAMissingFirstHead) {
  product_.groups[0].heads = {1, 2, 4};
  expect_refused("no piece covers group 0, heads [0, 1)");
}
TEST_F(Proof, FailsForAHeadThatIsntThere) {
  product_.groups[0].heads = {0, 2, 5};
  expect_refused("group 0, heads [2, 5) leaves the wanted 4");
}
TEST_F(Proof, FailsForAnEmptyPiece) {
  product_.groups[0].heads = {0, 2, 2, 4};
  expect_refused("group 0, heads [2, 2) is empty");
}
TEST_F(Proof, FailsForAPieceThatSpansRanks) {
  product_.groups[0].heads = {0, 3, 4};
  expect_refused("group 0, heads [0, 3): isn't inside one rank of the source; rank 0 is cut at 2");
}
TEST_F(Proof, FailsForAPieceThatSpansTheTargetsRanks) {
  const Status status =
      transform::prove({{{{0, 6}, {0, 4}, 100}}, product_.tiles}, target_, source_, tokens_);
  EXPECT_THAT(status.error().detail, HasSubstr("isn't inside one rank of the target; rank 0 is cut at 2"));
}
TEST_F(Proof, FailsForACopyThatWouldGetHalfAPiece) {
  // One copy of the target is whole, the other cut between heads 0 and 1: ranks would be written in part.
  target_.partition.push_back({.rank = 1, .layer_end = 6, .head_end = 1});
  target_.partition.push_back({.rank = 2, .layer_end = 6, .head_begin = 1, .head_end = 4});
  expect_refused("group 0, heads [0, 2): isn't inside one rank of the target; rank 1 is cut at 1");
}
TEST_F(Proof, FailsForAPieceThatNoRankHolds) {
  target_.partition[0].layer_end = 5;
  product_.groups[0].layers = {0, 5, 6};
  expect_refused("group 0, layers [5, 6), heads [0, 2): no rank of the target holds them");
}
TEST_F(Proof, FailsForAMissingTile) {
  product_.tiles.erase(product_.tiles.begin() + 1);
  expect_refused("no tile covers tokens [256, 512)");
}
TEST_F(Proof, FailsForAMissingLastTile) {
  product_.tiles.pop_back();
  expect_refused("no tile covers tokens [512, 600)");
}
TEST_F(Proof, FailsForATileTwice) {
  product_.tiles.insert(product_.tiles.begin(), product_.tiles.front());
  expect_refused("tile [100, 256) covers tokens from 100 a second time");
}
TEST_F(Proof, FailsForTokensThatNobodyWants) {
  product_.tiles.front().begin = 0;
  expect_refused("tile [0, 256) leaves the wanted tokens [100, 600)");
  product_.tiles = {{100, 256}, {256, 512}, {512, 601}};
  expect_refused("tile [512, 601) leaves the wanted tokens [100, 600)");
}
TEST_F(Proof, FailsForATileCutElsewhere) {
  product_.tiles = {{100, 200}, {200, 256}, {256, 512}, {512, 600}};
  expect_refused("tile [100, 200) isn't cut at 256");
}
TEST_F(Proof, FailsForAnEmptyTile) {
  product_.tiles.front().end = 100;
  expect_refused("tile [100, 100) is empty");
}
TEST_F(Proof, FailsForAnUnknownGroup) {
  product_.groups.push_back(product_.groups[0]);
  expect_refused("2 groups are cut, 1 are wanted");
}
TEST_F(Proof, FailsForAWindowThatBeginsElsewhere) {
  product_.groups[0].token_begin = 101;
  expect_refused("group 0 is cut from token 101, wanted is [100, 600)");
}

// --- The oracle: nothing but counting.

// Ranks of one end over `layers` x `heads`: a grid of random cuts, and perhaps a second copy cut otherwise.
std::vector<kv::RankBox> some_ranks(std::uint32_t layers, std::uint32_t heads) {
  std::vector<kv::RankBox> boxes;
  const auto copies = *rc::gen::inRange(1, 3);
  for (int copy = 0; copy < copies; ++copy) {
    const auto layer_cut = *rc::gen::inRange<std::uint32_t>(0, layers);
    const auto head_cut = *rc::gen::inRange<std::uint32_t>(0, heads);
    for (const auto& [l0, l1] : {std::pair{0u, layer_cut}, std::pair{layer_cut, layers}}) {
      for (const auto& [h0, h1] : {std::pair{0u, head_cut}, std::pair{head_cut, heads}}) {
        if (l0 == l1 || h0 == h1) continue;
        boxes.push_back({.rank = static_cast<std::uint32_t>(boxes.size()),
                         .layer_begin = l0,
                         .layer_end = l1,
                         .head_begin = h0,
                         .head_end = h1});
      }
    }
  }
  return boxes;
}

struct Piece {
  std::uint32_t l0, l1, h0, h1;
};

std::vector<Piece> pieces_of(const Product::Group& group) {
  std::vector<Piece> pieces;
  for (std::size_t l = 0; l + 1 < group.layers.size(); ++l) {
    for (std::size_t h = 0; h + 1 < group.heads.size(); ++h)
      pieces.push_back({group.layers[l], group.layers[l + 1], group.heads[h], group.heads[h + 1]});
  }
  return pieces;
}

// Each cell of one end's ranks: whole pieces, and at least one rank for each piece.
bool fits_ranks(const std::vector<Piece>& pieces, const std::vector<kv::RankBox>& ranks) {
  for (const Piece& piece : pieces) {
    bool is_held = false;
    for (const kv::RankBox& rank : ranks) {
      std::uint32_t inside = 0, all = 0;
      for (std::uint32_t l = piece.l0; l < piece.l1; ++l) {
        for (std::uint32_t h = piece.h0; h < piece.h1; ++h, ++all) {
          inside += l >= rank.layer_begin && l < rank.layer_end && h >= rank.head_begin && h < rank.head_end;
        }
      }
      if (inside != 0 && inside != all) return false;
      is_held |= inside != 0;
    }
    if (!is_held) return false;
  }
  return true;
}

bool covers_once(const Product& product, std::uint32_t layers, std::uint32_t heads, kv::TokenRange tokens) {
  const std::uint64_t room = tokens.end + 300;
  std::vector<std::uint32_t> seen(std::size_t{layers + 3} * (heads + 3) * room, 0);
  const auto cell = [&](std::uint64_t layer, std::uint64_t head, std::uint64_t token) -> std::uint32_t& {
    return seen.at((layer * (heads + 3) + head) * room + token);
  };
  const std::vector<Piece> pieces = pieces_of(product.groups.at(0));
  if (pieces.empty()) return false;
  for (const kv::TokenRange& tile : product.tiles) {
    if (tile.begin >= tile.end || (tile.begin % kTileTokens != 0 && tile.begin != tokens.begin) ||
        (tile.end % kTileTokens != 0 && tile.end != tokens.end) ||
        tile.begin / kTileTokens != (tile.end - 1) / kTileTokens) {
      return false;
    }
    for (const Piece& piece : pieces) {
      if (piece.l0 >= piece.l1 || piece.h0 >= piece.h1) return false;
      for (std::uint32_t l = piece.l0; l < piece.l1; ++l) {
        for (std::uint32_t h = piece.h0; h < piece.h1; ++h) {
          for (std::uint64_t t = std::max(tile.begin, product.groups[0].token_begin); t < tile.end; ++t)
            ++cell(l, h, t);
        }
      }
    }
  }
  for (std::uint32_t l = 0; l < layers + 3; ++l) {
    for (std::uint32_t h = 0; h < heads + 3; ++h) {
      for (std::uint64_t t = 0; t < room; ++t) {
        const bool is_wanted = l < layers && h < heads && t >= tokens.begin && t < tokens.end;
        if (cell(l, h, t) != (is_wanted ? 1u : 0u)) return false;
      }
    }
  }
  return true;
}

void break_list(std::vector<std::uint32_t>& cuts) {
  const auto at = *rc::gen::inRange<std::size_t>(0, cuts.size());
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      cuts.erase(cuts.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      cuts.insert(cuts.begin() + static_cast<std::ptrdiff_t>(at), cuts[at]);
      break;
    case 2:
      cuts[at] = *rc::gen::inRange<std::uint32_t>(0, cuts.back() + 2);
      break;
    default:
      ++cuts[at];
  }
}

// Sometimes harmless: the oracle says.
void break_somewhere(Product& product) {
  const auto at = *rc::gen::inRange<std::size_t>(0, product.tiles.size());
  const auto tile = product.tiles.begin() + static_cast<std::ptrdiff_t>(at);
  switch (*rc::gen::inRange(0, 8)) {
    case 0:
      return break_list(product.groups[0].layers);
    case 1:
      return break_list(product.groups[0].heads);
    case 2:
      product.tiles.erase(tile);
      return;
    case 3:
      product.tiles.insert(tile, *tile);
      return;
    case 4:
      tile->begin += *rc::gen::inRange<std::uint64_t>(0, 2);
      return;
    case 5:
      tile->end += *rc::gen::inRange<std::uint64_t>(0, 2);
      return;
    case 6:
      product.groups[0].token_begin += *rc::gen::inRange<std::uint64_t>(0, 2);
      return;
    default:
      return;
  }
}

RC_GTEST_PROP(ProofProperty, SaysWhatCountingEveryCellSays, ()) {
  const auto layers = *rc::gen::inRange<std::uint32_t>(1, 5);
  const auto heads = *rc::gen::inRange<std::uint32_t>(1, 6);
  const auto begin = *rc::gen::inRange<std::uint64_t>(0, 300);
  const kv::TokenRange tokens{begin, begin + *rc::gen::inRange<std::uint64_t>(1, 520)};
  const TestGeometry geometry{.layers = layers, .heads = heads, .dim = 8};
  kv::Descriptor source = test_descriptor("llamacpp:f16", geometry);
  kv::Descriptor target = test_descriptor("openvino:f32", geometry);
  const kv::Verdict verdict = test_verdict(source, target);
  source.partition = some_ranks(layers, heads);
  target.partition = some_ranks(layers, heads);
  const Plan plan = Plan::make(source, target, verdict, tokens, EndDigests{}).value();
  Product product = plan.product();
  for (int breaks = *rc::gen::inRange(0, 3); breaks > 0; --breaks) {
    if (!product.tiles.empty() && product.groups[0].layers.size() > 0 && product.groups[0].heads.size() > 0)
      break_somewhere(product);
  }
  const std::vector<Piece> pieces = pieces_of(product.groups[0]);
  const bool is_right = covers_once(product, layers, heads, tokens) && fits_ranks(pieces, source.partition) &&
                        fits_ranks(pieces, target.partition);
  const Status proof = prove(product, source, target, tokens);
  RC_CLASSIFY(is_right);
  RC_ASSERT(proof.ok() == is_right);
}

RC_GTEST_PROP(ProofProperty, ChunksCoverEachCellOnceInOrder, ()) {
  const auto layers = *rc::gen::inRange<std::uint32_t>(1, 8);
  const auto heads = *rc::gen::inRange<std::uint32_t>(1, 10);
  const auto begin = *rc::gen::inRange<std::uint64_t>(0, 300);
  const kv::TokenRange tokens{begin, begin + *rc::gen::inRange<std::uint64_t>(1, 520)};
  const TestGeometry geometry{.layers = layers, .heads = heads, .dim = *rc::gen::element(16u, 128u, 512u)};
  kv::Descriptor source = test_descriptor("llamacpp:f16", geometry);
  kv::Descriptor target = test_descriptor("openvino:u8", geometry);
  const kv::Verdict verdict = test_verdict(source, target);
  source.partition = some_ranks(layers, heads);
  target.partition = some_ranks(layers, heads);
  const Plan plan = Plan::make(source, target, verdict, tokens, EndDigests{}).value();
  std::vector<std::uint32_t> seen(std::size_t{layers} * heads * tokens.end, 0);
  std::uint64_t bytes = 0, last_end = 0;
  for (std::uint32_t i = 0; i < plan.chunk_count(); ++i) {
    const Chunk chunk = plan.chunk(i);
    RC_ASSERT(chunk.index == i && plan.check_chunk(chunk).ok());
    RC_ASSERT(chunk.body_bytes <= plan.body_bytes_max() && chunk.box.tokens.end >= last_end);
    RC_ASSERT(chunk.sections.back().offset + chunk.sections.back().bytes <= chunk.body_bytes);
    last_end = chunk.box.tokens.end;
    bytes += chunk.body_bytes;
    for (std::uint32_t l = chunk.box.layer_begin; l < chunk.box.layer_end; ++l) {
      for (std::uint32_t h = chunk.box.head_begin; h < chunk.box.head_end; ++h) {
        for (std::uint64_t t = chunk.box.tokens.begin; t < chunk.box.tokens.end; ++t)
          ++seen.at((std::size_t{l} * heads + h) * tokens.end + t);
      }
    }
  }
  RC_ASSERT(bytes == plan.total_bytes());
  for (std::size_t cell = 0; cell < seen.size(); ++cell)
    RC_ASSERT(seen[cell] == (cell % tokens.end >= tokens.begin ? 1u : 0u));
}

}  // namespace
}  // namespace isthmus::transform
