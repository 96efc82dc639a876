// SPDX-License-Identifier: Apache-2.0
// Descriptors: each field is in the digest, each contradiction is refused by path.
#include "kv/descriptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kv/sample.h"

namespace isthmus::kv {
namespace {

using ::testing::HasSubstr;

struct Change {
  std::string path;  // Of one line that must differ.
  std::function<void(Descriptor&)> apply;
};

std::vector<Change> identity_changes() {
  return {
      {"schema.major", [](Descriptor& d) { d.schema_major = 2; }},
      {"schema.minor", [](Descriptor& d) { d.schema_minor = 7; }},
      {"identity.architecture", [](Descriptor& d) { d.identity.architecture = "qwen2"; }},
      {"identity.lineage", [](Descriptor& d) { d.identity.lineage += "0"; }},
      {"identity.config_digest", [](Descriptor& d) { d.identity.config_digest = "1"; }},
      {"identity.tokenizer_digest", [](Descriptor& d) { d.identity.tokenizer_digest = "1"; }},
      {"identity.adapters.count", [](Descriptor& d) { d.identity.adapters.push_back({"a", "1"}); }},
      {"identity.position.scheme", [](Descriptor& d) { d.identity.position_scheme = "none"; }},
      {"identity.position.rope_theta", [](Descriptor& d) { d.identity.rope_theta = 100000.00000000001; }},
      {"identity.position.rope_scaling", [](Descriptor& d) { d.identity.rope_scaling = "yarn:1"; }},
      {"identity.position.key_after_rotation", [](Descriptor& d) { d.identity.key_after_rotation = false; }},
      {"identity.position.first_position", [](Descriptor& d) { d.identity.first_position = 1; }},
      {"weights.recipe", [](Descriptor& d) { d.weights_recipe = "bf16"; }},
      {"weights.digest", [](Descriptor& d) { d.weights_digest = "1"; }},
  };
}

std::vector<Change> state_changes() {
  return {
      {"groups.count", [](Descriptor& d) { d.groups.push_back(d.groups[0]); }},
      {"groups.0.geometry.layers", [](Descriptor& d) { d.groups[0].layers.back() = 9; }},
      {"groups.0.geometry.attention",
       [](Descriptor& d) { d.groups[0].attention = AttentionKind::kSlidingWindow; }},
      {"groups.0.geometry.window", [](Descriptor& d) { d.groups[0].window = 512; }},
      {"groups.0.geometry.components", [](Descriptor& d) { d.groups[0].components[0].name = "key"; }},
      {"groups.0.geometry.component.k.heads", [](Descriptor& d) { d.groups[0].components[0].heads = 9; }},
      {"groups.0.geometry.component.v.dim", [](Descriptor& d) { d.groups[0].components[1].dim = 128; }},
      {"groups.0.geometry.component.k.token_axis",
       [](Descriptor& d) { d.groups[0].components[0].has_token_axis = false; }},
      {"groups.0.geometry.component.k.transforms",
       [](Descriptor& d) { d.groups[0].components[0].value_transforms = {}; }},
      {"groups.0.block_tokens", [](Descriptor& d) { d.representation[0].block_tokens = 16; }},
      {"groups.0.form.k", [](Descriptor& d) { d.representation[0].forms[0].codes = Format::kI8; }},
      {"groups.0.form.k",
       [](Descriptor& d) { d.representation[0].forms[0].operation = DecodeOperation::kScaled; }},
      {"groups.0.form.k", [](Descriptor& d) { d.representation[0].forms[0].scale = Format::kF16; }},
      {"groups.0.form.k", [](Descriptor& d) { d.representation[0].forms[0].zero = Format::kF16; }},
      {"groups.0.form.v", [](Descriptor& d) { d.representation[0].forms[1].granule_dim = 32; }},
      {"groups.0.form.v", [](Descriptor& d) { d.representation[0].forms[1].granule_tokens = 2; }},
      {"groups.0.form.v", [](Descriptor& d) { d.representation[0].forms[1].high_nibble_first = true; }},
      {"groups.0.form.v",
       [](Descriptor& d) {
         d.representation[0].forms[1].operation = DecodeOperation::kScaledConstantZero;
         d.representation[0].forms[1].zero_constant = 128;
       }},
      {"groups.0.recipe.v", [](Descriptor& d) { d.representation[0].forms[1].recipe = "other"; }},
      {"groups.0.form.w", [](Descriptor& d) { d.representation[0].forms[1].component = "w"; }},
      {"groups.0.layout.rank.0.k",
       [](Descriptor& d) {
         d.representation[0].layout_text =
             "region K per layer = blk slot head { k.s:f32 ; k.z:f32 ; dim k:u8 }\n"
             "region V per layer = blk head slot { v.s:f32 ; v.z:f32 ; dim v:u8 }";
       }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].layer_end = 3; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].layer_begin = 1; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].head_begin = 1; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].head_end = 2; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].gqa_replica = 1; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].mla_replica = 1; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].data_replica = 1; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].token_begin = 1; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].token_end = 1; }},
      {"partition.group.0.rank.0", [](Descriptor& d) { d.partition[0].token_period = 1; }},
      {"groups.0.static.k", [](Descriptor& d) { d.representation[0].forms[0].static_scales = {1}; }},
      {"groups.0.form.v",
       [](Descriptor& d) {
         d.representation[0].forms[1].operation = DecodeOperation::kStaticScaled;
         d.representation[0].forms[1].static_scales = {1, 2};
       }},
      {"groups.0.form.v",
       [](Descriptor& d) {
         d.representation[0].forms[1].operation = DecodeOperation::kStaticScaled;
         d.representation[0].forms[1].static_scales = {1, 2.0000002F};
       }},
      {"partition.group.0.rank.1", [](Descriptor& d) { d.partition[0].rank = 1; }},
      {"partition.group.1.rank.0", [](Descriptor& d) { d.partition[0].group = 1; }},
      {"partition.count", [](Descriptor& d) { d.partition.push_back(d.partition[0]); }},
  };
}

TEST(Descriptor, EveryFieldIsInTheDigestAndInTheDiff) {
  std::vector<Change> changes = identity_changes();
  for (Change& change : state_changes()) changes.push_back(std::move(change));
  const Descriptor honest = sample::descriptor("openvino:u8");
  std::set<std::string> digests{honest.digest().hex()};
  for (const Change& change : changes) {
    Descriptor changed = honest;
    change.apply(changed);
    EXPECT_TRUE(digests.insert(changed.digest().hex()).second) << change.path;
    const std::vector<Difference> differences = diff(honest, changed);
    const bool is_named = std::any_of(differences.begin(), differences.end(),
                                      [&](const Difference& line) { return line.path == change.path; });
    EXPECT_TRUE(is_named) << change.path;
    for (const Difference& line : differences) EXPECT_NE(line.a, line.b) << line.path;
  }
}

TEST(Descriptor, AdapterOrderAndBothFieldsAreInTheDigest) {
  Descriptor a = sample::descriptor("llamacpp:f16");
  a.identity.adapters = {{"x", "1"}, {"y", "2"}};
  Descriptor b = a;
  std::swap(b.identity.adapters[0], b.identity.adapters[1]);
  EXPECT_NE(a.digest(), b.digest());
  EXPECT_EQ(diff(a, b).size(), 4U);
}

TEST(Descriptor, DigestDependsOnTheLayoutNotOnItsWording) {
  const Descriptor a = sample::descriptor("llamacpp:f16");
  Descriptor b = a;
  b.representation[0].layout_text =
      "region V per layer = tok hd v:f16\nregion K per layer = tok head@128 dim@2 k:f16";
  EXPECT_EQ(a.canonical_text(), b.canonical_text());
  EXPECT_EQ(a.digest(), b.digest());
  EXPECT_TRUE(diff(a, b).empty());
}

TEST(Descriptor, DigestDoesNotDependOnTheOrderOfThePartition) {
  Descriptor a = sample::descriptor("llamacpp:f16");
  a.partition = {{0, 0, 0, 2, 0, 3, 0}, {1, 0, 2, 4, 0, 3, 0}};
  Descriptor b = a;
  std::swap(b.partition[0], b.partition[1]);
  EXPECT_EQ(a.digest(), b.digest());
  EXPECT_NE(a.digest(), sample::descriptor("llamacpp:f16").digest());
}

TEST(Descriptor, NoValueCanForgeALine) {
  Descriptor a = sample::descriptor("llamacpp:f16");
  a.identity.architecture = "x\nidentity.lineage = forged\\";
  EXPECT_THAT(a.canonical_text(), HasSubstr("identity.architecture = x\\x0aidentity.lineage = forged\\\\\n"));
  EXPECT_THAT(a.validate().error().detail, HasSubstr("identity.architecture: holds a character"));
}

TEST(Descriptor, LayoutIsThatOfTheRanksOwnHeadsAndLayers) {
  Descriptor a = sample::descriptor("llamacpp:f16");
  a.partition = {{.rank = 4, .group = 0, .layer_begin = 0, .layer_end = 4, .head_begin = 0, .head_end = 1},
                 {.rank = 7, .group = 0, .layer_begin = 0, .layer_end = 4, .head_begin = 1, .head_end = 3}};
  ASSERT_TRUE(a.validate().ok()) << a.validate().error().text();
  EXPECT_EQ(a.layout(0, 4)->extents().components.at("k").heads, 1U);
  EXPECT_EQ(a.layout(0, 7)->region_bytes("K", 10), 10U * 2 * 64 * 2);
  EXPECT_EQ(a.layout(0, 5).code(), Code::kNotFound);
  EXPECT_EQ(a.layout(1, 4).code(), Code::kNotFound);
}

TEST(Descriptor, ParametersOfTheNotationAreDAndB) {
  Descriptor a = sample::descriptor("openvino:f32");
  a.representation[0].layout_text =
      "region K per layer = blk head slot/B slot%B dim%D k:f32\n"
      "region V per layer = blk head slot dim v:f32";
  EXPECT_EQ(a.digest(), sample::descriptor("openvino:f32").digest());
}

TEST(Descriptor, BytesPerTokenCountsCodesAndScales) {
  const auto bytes = [](const char* name) {
    const Descriptor d = sample::descriptor(name);
    return bytes_per_token(d.groups, {d.representation[0].forms});
  };
  EXPECT_EQ(bytes("llamacpp:f16"), 4 * 3 * 2 * 64 * 2);
  EXPECT_EQ(bytes("openvino:u8"), 4 * 3 * 2 * 72);
  EXPECT_EQ(bytes("llamacpp:q8_0"), 4 * 3 * 2 * 68);
  EXPECT_EQ(bytes("openvino:u8_channel"), 4 * 3 * (64 + 2 * 64 * 4 / 32 + 72));
}

struct Refusal {
  std::string wanted;
  std::function<void(Descriptor&)> apply;
  Code code = Code::kInvalidArgument;
};

void expect_refusals(const Descriptor& honest, const std::vector<Refusal>& refusals) {
  ASSERT_TRUE(honest.validate().ok()) << honest.validate().error().text();
  for (const Refusal& refusal : refusals) {
    Descriptor changed = honest;
    refusal.apply(changed);
    const Status status = changed.validate();
    ASSERT_FALSE(status.ok()) << refusal.wanted;
    EXPECT_THAT(status.error().detail, HasSubstr(refusal.wanted));
    EXPECT_EQ(status.code(), refusal.code) << refusal.wanted;
    EXPECT_FALSE(changed.canonical_text().empty()) << "an invalid descriptor can be shown";
  }
}

TEST(Descriptor, AWrongIdentityIsRefusedByPath) {
  expect_refusals(
      sample::descriptor("openvino:u8"),
      {
          {"schema.major: 2 isn't known", [](Descriptor& d) { d.schema_major = 2; }, Code::kIncompatible},
          {"identity.architecture: empty", [](Descriptor& d) { d.identity.architecture = ""; }},
          {"identity.lineage: empty", [](Descriptor& d) { d.identity.lineage = ""; }},
          {"identity.config_digest: empty", [](Descriptor& d) { d.identity.config_digest = ""; }},
          {"identity.tokenizer_digest: 300 bytes",
           [](Descriptor& d) { d.identity.tokenizer_digest.assign(300, 'a'); }},
          {"identity.adapters: 65 entries", [](Descriptor& d) { d.identity.adapters.resize(65); }},
          {"identity.adapters.0.digest: empty", [](Descriptor& d) { d.identity.adapters = {{"a", ""}}; }},
          {"identity.position.scheme: \"alibi\" isn't known",
           [](Descriptor& d) { d.identity.position_scheme = "alibi"; }, Code::kUnsupported},
          {"rope_theta: 0 isn't", [](Descriptor& d) { d.identity.rope_theta = 0; }},
          {"rope_theta: nan isn't", [](Descriptor& d) { d.identity.rope_theta = std::nan(""); }},
          {"rope_scaling: empty", [](Descriptor& d) { d.identity.rope_scaling = ""; }},
          {"weights.recipe: empty", [](Descriptor& d) { d.weights_recipe = ""; }},
      });
}

TEST(Descriptor, WrongGeometryIsRefusedByPath) {
  const auto k = [](Descriptor& d) -> Component& { return d.groups[0].components[0]; };
  expect_refusals(
      sample::descriptor("openvino:u8"),
      {
          {"groups: empty", [](Descriptor& d) { d.groups.clear(); }},
          {"groups: 1 representations for 2 groups",
           [](Descriptor& d) {
             d.groups.push_back(d.groups[0]);
             d.groups[1].layers = {8};
           }},
          {"component k of layer 0 is in an earlier group too",
           [](Descriptor& d) { d.groups.push_back(d.groups[0]); }},
          {"groups.0.geometry.layers: empty", [](Descriptor& d) { d.groups[0].layers.clear(); }},
          {"layers: entry 1 is 0: not ascending", [](Descriptor& d) { d.groups[0].layers = {0, 0}; }},
          {"layers: entry 0 is 5000", [](Descriptor& d) { d.groups[0].layers = {5000}; }},
          {"window: 512 tokens with full attention", [](Descriptor& d) { d.groups[0].window = 512; }},
          {"window: 0 tokens with sliding attention",
           [](Descriptor& d) { d.groups[0].attention = AttentionKind::kSlidingWindow; }},
          {"attention: kind 200 isn't known",
           [](Descriptor& d) { d.groups[0].attention = static_cast<AttentionKind>(200); },
           Code::kUnsupported},
          {"components: empty", [](Descriptor& d) { d.groups[0].components.clear(); }},
          {"components: k is there twice", [](Descriptor& d) { d.groups[0].components[1].name = "k"; }},
          {"\"dim\" isn't an identifier", [=](Descriptor& d) { k(d).name = "dim"; }},
          {"\"k.s\" isn't an identifier", [=](Descriptor& d) { k(d).name = "k.s"; }},
          {"component.k.heads: 0", [=](Descriptor& d) { k(d).heads = 0; }},
          {"component.v.heads: 3 differs from k's 6", [=](Descriptor& d) { k(d).heads = 6; }},
          {"component.k.dim: 70000", [=](Descriptor& d) { k(d).dim = 70000; }},
          {"component.k.token_axis: false in a full group",
           [=](Descriptor& d) { k(d).has_token_axis = false; }},
          {"component.k.token_axis: true in a recurrent group",
           [=](Descriptor& d) { d.groups[0].attention = AttentionKind::kRecurrent; }},
          {"component.k.heads: 3 in an mla group",
           [=](Descriptor& d) { d.groups[0].attention = AttentionKind::kMla; }},
          {"\"rope:spiral\" isn't known", [=](Descriptor& d) { k(d).value_transforms = {"rope:spiral"}; },
           Code::kUnsupported},
          {"hadamard:48 isn't a power of two",
           [=](Descriptor& d) { k(d).value_transforms = {"hadamard:48"}; }},
          {"hadamard:128 isn't a power of two",
           [=](Descriptor& d) { k(d).value_transforms = {"hadamard:128"}; }},
          {"component.k.transforms: rope is there twice",
           [=](Descriptor& d) { k(d).value_transforms = {"rope:halves", "rope:halves"}; }},
          {"transforms: 9 entries", [=](Descriptor& d) { k(d).value_transforms.resize(9); }},
      });
}

TEST(Descriptor, AContradictionBetweenLayoutAndFormIsRefused) {
  const auto k = [](Descriptor& d) -> DecodeForm& { return d.representation[0].forms[0]; };
  expect_refusals(
      sample::descriptor("openvino:u8"),
      {
          {"group 0 rank 0: layout: part k is missing",
           [](Descriptor& d) {
             d.representation[0].layout_text = "region V per layer = blk head slot { v.s:f32 ; dim v:u8 }";
           }},
          {"groups.0: part k is u8 in the layout and i8 in the decode form",
           [=](Descriptor& d) { k(d).codes = Format::kI8; }},
          {"part k.s is f32 in the layout and f16", [=](Descriptor& d) { k(d).scale = Format::kF16; }},
          {"part k.z is f32 in the layout and f16", [=](Descriptor& d) { k(d).zero = Format::kF16; }},
          {"part k.z is in the layout, and the decode form is \"k codes=u8 op=q*s",
           [=](Descriptor& d) { k(d).operation = DecodeOperation::kScaled; }},
          {"\"k codes=u8 op=q\" with a granule of 64",
           [=](Descriptor& d) { k(d).operation = DecodeOperation::kPlain; }},
          {"part k.s, axis dim: one serves 64 in the layout and 32 in the decode form",
           [=](Descriptor& d) { k(d).granule_dim = 32; }},
          {"part k.s, axis slot: one serves 1 in the layout and 8 in the decode form",
           [=](Descriptor& d) { k(d).granule_tokens = 8; }},
          {"granule of 65 elements in rows of 64", [=](Descriptor& d) { k(d).granule_dim = 65; }},
          {"nibble order with u8 codes", [=](Descriptor& d) { k(d).high_nibble_first = true; }},
          {"form of \"v\" where k is expected", [=](Descriptor& d) { k(d).component = "v"; }},
          {"1 forms for 2 components", [](Descriptor& d) { d.representation[0].forms.pop_back(); }},
          {"part k.s, axis head: one serves 3 heads",
           [](Descriptor& d) {
             d.representation[0].layout_text =
                 "region K per layer = blk slot { k.s:f32 ; k.z:f32 ; head dim k:u8 }\n"
                 "region V per layer = blk head slot { v.s:f32 ; v.z:f32 ; dim v:u8 }";
           },
           Code::kUnsupported},
          {"block_tokens: 70000", [](Descriptor& d) { d.representation[0].block_tokens = 70000; }},
          {"number format or operation isn't known",
           [=](Descriptor& d) { k(d).zero = static_cast<Format>(99); }, Code::kUnsupported},
      });
  Descriptor nibbles = sample::descriptor("openvino:u4");
  nibbles.representation[0].forms[0].high_nibble_first = false;
  EXPECT_THAT(nibbles.validate().error().detail, HasSubstr("disagree about the nibble order"));
  const auto v = [](Descriptor& d) -> DecodeForm& { return d.representation[0].forms[1]; };
  expect_refusals(
      sample::descriptor("llamacpp:q8_0_v_q4_0"),
      {
          {"constant zero point 0 in \"v codes=u4 op=(q-0)*s",
           [=](Descriptor& d) { v(d).zero_constant = 0; }},
          {"constant zero point 16 in", [=](Descriptor& d) { v(d).zero_constant = 16; }},
          {"constant zero point 8 in \"k codes=i8 op=q*s", [=](Descriptor& d) { k(d).zero_constant = 8; }},
      });
}

TEST(Descriptor, APartitionMustCoverEachGroupOnceAReplica) {
  Descriptor four = sample::descriptor("openvino:u8");
  four.partition = {
      {0, 0, 0, 2, 0, 3, 0}, {1, 0, 2, 4, 0, 1, 0}, {2, 0, 2, 4, 1, 3, 0}, {3, 0, 0, 4, 0, 3, 1}};
  four.schema_minor = 1;
  expect_refusals(
      four,
      {
          {"partition: empty", [](Descriptor& d) { d.partition.clear(); }},
          {"partition: 1025 entries", [](Descriptor& d) { d.partition.resize(1025); }},
          {"replica gqa:0,mla:0,data:0: boxes cover 8 of 12",
           [](Descriptor& d) { d.partition.erase(d.partition.begin() + 2); }},
          {"mla:0,data:0: ranks 1 and 2 overlap", [](Descriptor& d) { d.partition[2].head_begin = 0; }},
          {"mla:0,data:0: ranks 0 and 3 overlap", [](Descriptor& d) { d.partition[3].gqa_replica = 0; }},
          {"2 replicas where the numbers up to gqa:2,mla:0,data:0 make 3",
           [](Descriptor& d) { d.partition[3].gqa_replica = 2; }},
          {"2 replicas where the numbers up to gqa:1,mla:0,data:1 make 4",
           [](Descriptor& d) { d.partition[3].data_replica = 1; }},
          {"\"layers=0..4 heads=0..3 replica=mla:1\" in a full group",
           [](Descriptor& d) {
             d.partition[3].gqa_replica = 0;
             d.partition[3].mla_replica = 1;
           }},
          {"replica numbers are below 1024", [](Descriptor& d) { d.partition[3].gqa_replica = 1024; }},
          {"schema.minor: 0, and fields of minor 1", [](Descriptor& d) { d.schema_minor = 0; }},
          {"rank.0: the rank has two boxes", [](Descriptor& d) { d.partition[1].rank = 0; }},
          {"group.9.rank.0: there is no such group", [](Descriptor& d) { d.partition[0].group = 9; }},
          {"heads 1..4 isn't a box within 4 layers, 3 heads",
           [](Descriptor& d) { d.partition[2].head_end = 4; }},
          {"layers 2..2", [](Descriptor& d) { d.partition[0].layer_begin = 2; }},
      });
}

// Context-parallel ranks of a storage: `bounds` is a list of token ranges, each on a rank of its own.
Descriptor with_tokens(const std::vector<TokenRange>& bounds, std::uint64_t period) {
  Descriptor d = sample::descriptor("vllm:flash_nhd");
  d.schema_minor = 1;
  d.partition.clear();
  for (const TokenRange& tokens : bounds) {
    d.partition.push_back({.rank = static_cast<std::uint32_t>(d.partition.size()),
                           .layer_end = 4,
                           .head_end = 3,
                           .token_begin = tokens.begin,
                           .token_end = tokens.end,
                           .token_period = period});
  }
  return d;
}

TEST(Descriptor, PositionsOfContextParallelRanksMustCoverOnce) {
  const std::uint64_t last = kPositionMax - 1;
  for (const Descriptor& good :
       {with_tokens({{0, 16}, {16, 32}, {32, 64}}, 64), with_tokens({{0, 4096}, {4096, 0}}, 0),
        with_tokens({{last, 0}, {0, last}}, 0), with_tokens({{0, 64}}, 64)}) {
    EXPECT_TRUE(good.validate().ok()) << good.validate().error().text();
  }
  const std::vector<std::pair<Descriptor, std::string>> bad{
      {with_tokens({{0, 16}, {16, 32}}, 64),
       "boxes cover 24 of 36 (layer, head, piece of positions) triples"},
      {with_tokens({{0, 4096}, {4096, 8192}}, 0), "boxes cover 24 of 36"},
      {with_tokens({{0, 16}, {32, 64}}, 64), "boxes cover 24 of 36"},
      {with_tokens({{0, 33}, {32, 64}}, 64), "ranks 0 and 1 overlap"},
      {with_tokens({{0, 32}, {32, 65}}, 64), "\"layers=0..4 heads=0..3 replica=0 tokens=32..65%64\" isn't"},
      {with_tokens({{0, 0}, {0, 64}}, 64), "tokens=0..0%64\" isn't a range of positions"},
      {with_tokens({{0, 32}, {32, kPositionMax + 1}}, 0), "isn't a range of positions"},
      {with_tokens({{0, 1}}, kPositionMax + 1), "isn't a range of positions"},
  };
  for (const auto& [descriptor, wanted] : bad)
    EXPECT_THAT(descriptor.validate().error().detail, HasSubstr(wanted));
  Descriptor mixed = with_tokens({{0, 32}, {32, 64}}, 64);
  mixed.partition[1].token_period = 128;
  EXPECT_THAT(mixed.validate().error().detail, HasSubstr("repeat every 64 tokens on rank 0 and every 128"));
  Descriptor shared = sample::descriptor("openvino:u8_channel");
  shared.schema_minor = 1;
  shared.partition = {
      {.layer_end = 4, .head_end = 3, .token_end = 48, .token_period = 96},
      {.rank = 1, .layer_end = 4, .head_end = 3, .token_begin = 48, .token_end = 96, .token_period = 96}};
  EXPECT_THAT(shared.validate().error().detail, HasSubstr("cuts scales that 32 tokens share"));
  for (RankBox& box : shared.partition) box.token_period = 128;
  shared.partition[0].token_end = shared.partition[1].token_begin = 64;
  shared.partition[1].token_end = 128;
  EXPECT_TRUE(shared.validate().ok()) << shared.validate().error().text();
}

TEST(Descriptor, ReplicasOfAllKindsMakeAProduct) {
  Descriptor d = sample::descriptor("vllm:mla_bf16");
  d.groups[0].attention = AttentionKind::kMla;
  d.schema_minor = 1;
  d.partition.clear();
  for (std::uint32_t data = 0; data < 2; ++data) {
    for (std::uint32_t copy = 0; copy < 3; ++copy) {
      d.partition.push_back({.rank = data * 3 + copy,
                             .layer_end = 4,
                             .head_end = 1,
                             .mla_replica = copy,
                             .data_replica = data});
    }
  }
  ASSERT_TRUE(d.validate().ok()) << d.validate().error().text();
  EXPECT_EQ(d.partition[5].text(), "layers=0..4 heads=0..1 replica=mla:2,data:1");
  d.partition.pop_back();
  EXPECT_THAT(d.validate().error().detail, HasSubstr("5 replicas where the numbers up to"));
}

// A state of fixed size for each sequence, in rows of a pool.
Descriptor recurrent() {
  Descriptor d = sample::descriptor("llamacpp:f32");
  d.schema_minor = 1;
  d.groups[0].attention = AttentionKind::kRecurrent;
  for (Component& component : d.groups[0].components) {
    component.has_token_axis = false;
    component.value_transforms = {};
  }
  return d;
}

TEST(Descriptor, AStateWithoutATokenAxisHasRowsThatAreStates) {
  const Descriptor d = recurrent();
  ASSERT_TRUE(d.validate().ok()) << d.validate().error().text();
  EXPECT_EQ(d.layout(0, 0)->region_bytes("K", 5), 5U * 3 * 64 * 4);
  EXPECT_EQ(bytes_per_token(d.groups, {d.representation[0].forms}), 0);
  expect_refusals(
      d, {
             {"block_tokens: 16 in a group without a token axis",
              [](Descriptor& x) { x.representation[0].block_tokens = 16; }},
             {"a range of positions in a group without a token axis",
              [](Descriptor& x) { x.partition[0].token_period = x.partition[0].token_end = 64; }},
             {"replica=mla:1\" in a recurrent group", [](Descriptor& x) { x.partition[0].mla_replica = 1; }},
             {"schema.minor: 0", [](Descriptor& x) { x.schema_minor = 0; }},
         });
}

TEST(Descriptor, StaticScalesAreExactAndShort) {
  const Descriptor fp8 = sample::descriptor("vllm:flash_nhd_fp8");
  const auto with = [&](std::vector<float> scales) {
    Descriptor d = fp8;
    d.representation[0].forms[0].static_scales = std::move(scales);
    return d;
  };
  const Descriptor layers = with({1, 1, 0.5F, 2});
  std::vector<float> heads(12, 1);
  heads[7] = 3;
  for (const Descriptor& good : {fp8, layers, with(heads)})
    EXPECT_TRUE(good.validate().ok()) << good.validate().error().text();
  EXPECT_THAT(layers.canonical_text(), HasSubstr("groups.0.static.k = 0x3f800000*2,0x3f000000,0x40000000\n"));
  EXPECT_THAT(fp8.representation[0].forms[0].text(), HasSubstr("k codes=e4m3fn op=q*c static=4:"));
  const std::vector<std::pair<std::vector<float>, std::string>> bad{
      {{}, "groups.0.form.k.static: 0 scales for 4 layers of 3 heads"},
      {{1, 2}, "2 scales for 4 layers"},
      {{1, 1, 1, 1}, "4 scales where fewer say the same"},
      {{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}, "12 scales where fewer"},
      {{0}, "0 isn't a positive number"},
      {{-1}, "-1 isn't a positive number"},
      {{std::numeric_limits<float>::infinity()}, "inf isn't"},
      {{std::numeric_limits<float>::quiet_NaN()}, "nan isn't"},
      {std::vector<float>(9000, 1), "static: 9000 entries, more than 8192"},
  };
  for (const auto& [scales, wanted] : bad)
    EXPECT_THAT(with(scales).validate().error().detail, HasSubstr(wanted));
  Descriptor plain = sample::descriptor("vllm:flash_nhd");
  plain.representation[0].forms[1].static_scales = {1};
  EXPECT_THAT(plain.validate().error().detail, HasSubstr("1 static scales with \"v codes=bf16 op=q\""));
}

TEST(DecodeForm, TextSaysWhatACodeMeans) {
  const auto form = [](const char* name, std::size_t i) {
    return sample::descriptor(name).representation[0].forms[i];
  };
  EXPECT_EQ(form("llamacpp:f16", 0).text(), "k codes=f16 op=q");
  EXPECT_EQ(form("llamacpp:q8_0", 1).text(), "v codes=i8 op=q*s scale=f16 granule=dim:32,tok:1");
  EXPECT_EQ(form("llamacpp:q8_0_v_q4_0", 1).text(), "v codes=u4 op=(q-8)*s scale=f16 granule=dim:32,tok:1");
  EXPECT_EQ(form("openvino:u8", 0).text(), "k codes=u8 op=(q-z)*s scale=f32 zero=f32 granule=dim:64,tok:1");
  EXPECT_EQ(form("openvino:u8_channel", 0).text(),
            "k codes=u8 op=(q-z)*s scale=f32 zero=f32 granule=dim:1,tok:32");
  EXPECT_EQ(form("openvino:u4", 0).text(),
            "k codes=u4 nibble=high op=(q-z)*s scale=f32 zero=f32 granule=dim:64,tok:1");
}

TEST(DecodeForm, RecipesAndFieldsWithoutMeaningAreNotCompared) {
  DecodeForm a = sample::descriptor("llamacpp:f16").representation[0].forms[0];
  DecodeForm b = a;
  b.recipe = "truncate";
  b.scale = Format::kF16;
  EXPECT_TRUE(a.same_form(b));
  b.codes = Format::kBf16;
  EXPECT_FALSE(a.same_form(b));
}

TEST(TokenChain, EqualPrefixesHaveEqualDigestsAndEachTokenCounts) {
  TokenChain a, b;
  EXPECT_EQ(a.digest(), Digest128{});
  std::set<std::string> seen{a.digest().hex()};
  for (const int token : {5, 5, 0, -1, 49151}) {
    a.append(token);
    b.append(token);
    EXPECT_EQ(a.digest(), b.digest());
    EXPECT_TRUE(seen.insert(a.digest().hex()).second);
  }
  EXPECT_EQ(a.size(), 5U);
  TokenChain swapped;
  for (const int token : {5, 0, 5, -1, 49151}) swapped.append(token);
  EXPECT_NE(swapped.digest(), a.digest());
}

}  // namespace
}  // namespace isthmus::kv
