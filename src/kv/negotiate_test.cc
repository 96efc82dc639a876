// SPDX-License-Identifier: Apache-2.0
// Verdicts: five classes, every forbidding difference with both values, one rounding at most.
#include "kv/negotiate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kv/sample.h"

namespace isthmus::kv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Policy kBounded{.exactness = Exactness::kBounded, .qualifications = {}};
const Policy kLossless{.qualifications = {}};

// The paths of `reasons`, joined.
std::string paths(const std::vector<Reason>& reasons) {
  std::string out;
  for (const Reason& reason : reasons) out += (out.empty() ? "" : " ") + reason.path;
  return out;
}

const Reason* find(const std::vector<Reason>& reasons, const std::string& path) {
  const auto found =
      std::find_if(reasons.begin(), reasons.end(), [&](const Reason& one) { return one.path == path; });
  return found == reasons.end() ? nullptr : &*found;
}

void expect_equal(const Verdict& a, const Verdict& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(paths(a.rejects), paths(b.rejects));
  EXPECT_EQ(paths(a.redistributions), paths(b.redistributions));
  EXPECT_EQ(paths(a.conversions), paths(b.conversions));
  EXPECT_EQ(a.warnings, b.warnings);
  EXPECT_EQ(a.roundings, b.roundings);
  EXPECT_EQ(a.exact, b.exact);
  EXPECT_EQ(a.wire.text(), b.wire.text());
}

TEST(Negotiate, GivesAllFiveVerdicts) {
  struct Case {
    std::string source, target;
    Policy policy;
    VerdictKind kind;
    bool exact;
    std::uint32_t roundings;
  };
  const std::vector<Case> cases{
      {"llamacpp:f16", "llamacpp:f16", kLossless, VerdictKind::kDirect, true, 0},
      {"openvino:u8", "openvino:u8", kLossless, VerdictKind::kDirect, true, 0},
      {"vllm:flash_nhd", "vllm:flash_hnd", kLossless, VerdictKind::kRedistribute, true, 0},
      {"llamacpp:f16", "llamacpp:f16_v_transposed", kLossless, VerdictKind::kRedistribute, true, 0},
      {"llamacpp:f16", "llamacpp:f32", kLossless, VerdictKind::kConvert, true, 0},
      {"llamacpp:f32", "llamacpp:bf16", kBounded, VerdictKind::kConvert, false, 1},
      {"llamacpp:f16", "openvino:f32", kLossless, VerdictKind::kRedistributeConvert, true, 0},
      {"llamacpp:f16", "openvino:u8", kBounded, VerdictKind::kRedistributeConvert, false, 1},
      {"openvino:f32", "openvino:u8", kBounded, VerdictKind::kRedistributeConvert, false, 1},
      {"llamacpp:f16", "openvino:u8", kLossless, VerdictKind::kReject, false, 0},
      {"llamacpp:bf16", "openvino:f16", kLossless, VerdictKind::kReject, false, 0},
  };
  for (const Case& one : cases) {
    const Verdict verdict =
        negotiate(sample::descriptor(one.source), sample::descriptor(one.target), one.policy);
    EXPECT_EQ(verdict.kind, one.kind) << one.source << " -> " << one.target << ": " << paths(verdict.rejects);
    EXPECT_EQ(verdict.exact, one.exact) << one.source << " -> " << one.target;
    EXPECT_EQ(verdict.roundings, one.roundings) << one.source << " -> " << one.target;
    EXPECT_EQ(verdict.rejects.empty(), one.kind != VerdictKind::kReject);
    EXPECT_EQ(verdict.wire.groups.empty(), one.kind == VerdictKind::kReject);
    EXPECT_TRUE(verdict.warnings.empty());
  }
}

TEST(Negotiate, TheWireFormIsTheSources) {
  const Verdict verdict =
      negotiate(sample::descriptor("llamacpp:f16"), sample::descriptor("openvino:u8"), kBounded);
  EXPECT_EQ(verdict.wire.text(), "0 k codes=f16 op=q after rope:interleaved\n0 v codes=f16 op=q\n");
}

TEST(Negotiate, ValueTransformsThatDifferAreConverted) {
  const Descriptor plain = sample::descriptor("llamacpp:f16");
  Descriptor halves = plain, unrotated = plain, rotated = plain;
  halves.groups[0].components[0].value_transforms = {"rope:halves"};
  unrotated.groups[0].components[0].value_transforms = {};
  rotated.groups[0].components[1].value_transforms = {"hadamard:64"};
  const Verdict moved = negotiate(halves, plain, kLossless);
  EXPECT_EQ(moved.kind, VerdictKind::kConvert);
  EXPECT_TRUE(moved.exact);
  EXPECT_EQ(paths(moved.conversions), "groups.0.geometry.component.k.transforms");
  EXPECT_EQ(moved.conversions[0].source, "rope:halves");
  EXPECT_EQ(moved.wire.text(), "0 k codes=f16 op=q after rope:halves\n0 v codes=f16 op=q\n");
  const Verdict lossy = negotiate(rotated, plain, kBounded);
  EXPECT_EQ(lossy.kind, VerdictKind::kConvert);
  EXPECT_FALSE(lossy.exact);
  EXPECT_EQ(lossy.roundings, 1U);
  const Verdict lossless = negotiate(rotated, plain, kLossless);
  EXPECT_EQ(paths(lossless.rejects), "policy.exactness");
  EXPECT_EQ(lossless.rejects[0].source, "v codes=f16 op=q after hadamard:64");
  EXPECT_EQ(lossless.rejects[0].target, "v codes=f16 op=q");
  const Verdict rejected = negotiate(unrotated, plain, kBounded);
  EXPECT_EQ(paths(rejected.rejects), "groups.0.geometry.component.k.transforms");
  EXPECT_THAT(rejected.rejects[0].text, HasSubstr("\"rope:interleaved\" rotates values"));
}

TEST(Negotiate, RotatedQuantisedCachesCrossWithOneRounding) {
  const auto pair = [](const char* from, const char* to, const Policy& policy) {
    return negotiate(sample::descriptor(from), sample::descriptor(to), policy);
  };
  const Verdict verdict = pair("llamacpp:q8_0", "openvino:u8_channel", kBounded);
  EXPECT_EQ(verdict.kind, VerdictKind::kRedistributeConvert);
  EXPECT_FALSE(verdict.exact);
  EXPECT_EQ(verdict.roundings, 1U);
  EXPECT_EQ(verdict.wire.text(),
            "0 k codes=i8 op=q*s scale=f16 granule=dim:32,tok:1 after rope:interleaved,hadamard:64\n"
            "0 v codes=i8 op=q*s scale=f16 granule=dim:32,tok:1 after hadamard:64\n");
  EXPECT_TRUE(pair("llamacpp:q8_0_unrotated", "openvino:f32", kLossless).exact);
  EXPECT_FALSE(pair("llamacpp:q8_0", "openvino:f32", kBounded).exact);
  EXPECT_EQ(pair("llamacpp:q8_0", "openvino:f32", kLossless).kind, VerdictKind::kReject);
  EXPECT_EQ(pair("llamacpp:q8_0", "llamacpp:q8_0_unrotated", kBounded).kind, VerdictKind::kConvert);
}

TEST(Negotiate, DifferencesOfAVerdictNameBothValues) {
  const Verdict verdict =
      negotiate(sample::descriptor("llamacpp:f16"), sample::descriptor("openvino:u8"), kBounded);
  EXPECT_EQ(paths(verdict.redistributions), "groups.0.block_tokens groups.0.layout.k groups.0.layout.v");
  EXPECT_EQ(paths(verdict.conversions), "groups.0.form.k groups.0.form.v");
  EXPECT_EQ(verdict.redistributions[0].source, "0");
  EXPECT_EQ(verdict.redistributions[0].target, "32");
  EXPECT_EQ(verdict.conversions[0].source, "k codes=f16 op=q");
  EXPECT_EQ(verdict.conversions[0].target, "k codes=u8 op=(q-z)*s scale=f32 zero=f32 granule=dim:64,tok:1");
}

struct Forbidden {
  std::string path, source, target;
  std::function<void(Descriptor&)> apply;
};

std::vector<Forbidden> forbidden() {
  const std::string lineage = sample::descriptor("llamacpp:f16").identity.lineage;
  const auto k = [](Descriptor& d) -> Component& { return d.groups[0].components[0]; };
  return {
      {"schema.major", "1", "2", [](Descriptor& d) { d.schema_major = 2; }},
      {"identity.architecture", "llama", "qwen2", [](Descriptor& d) { d.identity.architecture = "qwen2"; }},
      {"identity.lineage", lineage, "ab", [](Descriptor& d) { d.identity.lineage = "ab"; }},
      {"identity.config_digest", "00112233445566778899aabbccddeeff", "ab",
       [](Descriptor& d) { d.identity.config_digest = "ab"; }},
      {"identity.tokenizer_digest", "ffeeddccbbaa99887766554433221100", "ab",
       [](Descriptor& d) { d.identity.tokenizer_digest = "ab"; }},
      {"identity.adapters.0.name", "", "style",
       [](Descriptor& d) { d.identity.adapters = {{"style", "1"}}; }},
      {"identity.position.scheme", "rope", "none",
       [](Descriptor& d) { d.identity.position_scheme = "none"; }},
      {"identity.position.rope_theta", "0x40f86a0000000000 (100000)", "0x40c3880000000000 (10000)",
       [](Descriptor& d) { d.identity.rope_theta = 10000; }},
      {"identity.position.rope_scaling", "none", "yarn:1",
       [](Descriptor& d) { d.identity.rope_scaling = "yarn:1"; }},
      {"identity.position.key_after_rotation", "true", "false",
       [](Descriptor& d) { d.identity.key_after_rotation = false; }},
      {"identity.position.first_position", "0", "1", [](Descriptor& d) { d.identity.first_position = 1; }},
      {"groups.0.geometry.layers", "0-3", "1-4", [](Descriptor& d) { d.groups[0].layers = {1, 2, 3, 4}; }},
      {"groups.0.geometry.attention", "full", "sliding",
       [](Descriptor& d) {
         d.groups[0].attention = AttentionKind::kSlidingWindow;
         d.groups[0].window = 512;
       }},
      {"groups.0.geometry.window", "0", "512",
       [](Descriptor& d) {
         d.groups[0].attention = AttentionKind::kSlidingWindow;
         d.groups[0].window = 512;
       }},
      {"groups.0.geometry.component.k.heads", "3", "6",
       [](Descriptor& d) {
         d.groups[0].components[0].heads = d.groups[0].components[1].heads = 6;
         d.partition[0].head_end = 6;
       }},
      {"groups.0.geometry.component.k.dim", "64", "128", [=](Descriptor& d) { k(d).dim = 128; }},
      {"groups.0.geometry.components", "k,v", "v,k",
       [](Descriptor& d) {
         std::swap(d.groups[0].components[0], d.groups[0].components[1]);
         std::swap(d.representation[0].forms[0], d.representation[0].forms[1]);
       }},
      {"groups.count", "1", "2",
       [](Descriptor& d) {
         d.groups.push_back(d.groups[0]);
         d.groups[1].layers = {7, 8, 9, 10};
         d.representation.push_back(d.representation[0]);
         d.partition.push_back(d.partition[0]);
         d.partition[1].group = 1;
       }},
      {"groups.0.geometry.component.k.transforms", "rope:interleaved", "",
       [=](Descriptor& d) { k(d).value_transforms = {}; }},
      {"groups.0.geometry.component.k.transforms", "rope:interleaved", "hadamard:64,rope:interleaved",
       [=](Descriptor& d) { k(d).value_transforms = {"hadamard:64", "rope:interleaved"}; }},
  };
}

TEST(Negotiate, EachForbiddingDifferenceIsNamedWithBothValuesInBothDirections) {
  for (const Forbidden& one : forbidden()) {
    const Descriptor honest = sample::descriptor("llamacpp:f16");
    Descriptor other = honest;
    one.apply(other);
    for (const bool is_swapped : {false, true}) {
      const Verdict verdict =
          is_swapped ? negotiate(other, honest, kBounded) : negotiate(honest, other, kBounded);
      EXPECT_EQ(verdict.kind, VerdictKind::kReject) << one.path;
      const Reason* reason = find(verdict.rejects, one.path);
      ASSERT_NE(reason, nullptr) << one.path << " not in " << paths(verdict.rejects);
      EXPECT_EQ(is_swapped ? reason->target : reason->source, one.source) << one.path;
      EXPECT_EQ(is_swapped ? reason->source : reason->target, one.target) << one.path;
      EXPECT_FALSE(reason->text.empty());
    }
  }
}

TEST(Negotiate, ARejectListsEveryDifferenceAtOnce) {
  const Descriptor source = sample::descriptor("llamacpp:f16");
  Descriptor target = sample::descriptor("openvino:u8_channel");
  target.identity.lineage = "ab";
  target.identity.rope_theta = 10000;
  target.groups[0].components[0].value_transforms = {};
  target.representation[0].forms[0].recipe = "ours";
  target.weights_recipe = "bf16";
  const Verdict verdict = negotiate(source, target, kBounded);
  EXPECT_EQ(paths(verdict.rejects),
            "identity.lineage identity.position.rope_theta policy.qualification "
            "groups.0.geometry.component.k.transforms groups.0.form.k");
}

TEST(Negotiate, AnInvalidDescriptorIsARejectThatSaysWhy) {
  const Descriptor honest = sample::descriptor("llamacpp:f16");
  Descriptor lying = honest;
  lying.representation[0].forms[0].codes = Format::kBf16;
  const Verdict as_source = negotiate(lying, honest, kBounded);
  ASSERT_EQ(paths(as_source.rejects), "source");
  EXPECT_THAT(as_source.rejects[0].source,
              HasSubstr("part k is f16 in the layout and bf16 in the decode form"));
  EXPECT_EQ(paths(negotiate(honest, lying, kBounded).rejects), "target");
  EXPECT_EQ(paths(negotiate(lying, lying, kBounded).rejects), "source target");
}

TEST(Negotiate, AnUnknownSchemaMajorIsRejectedEvenIfBothEndsHaveIt) {
  Descriptor next = sample::descriptor("llamacpp:f16");
  next.schema_major = 2;
  EXPECT_EQ(paths(negotiate(next, next, kBounded).rejects), "schema.major");
}

TEST(Negotiate, AnotherSchemaMinorOnlyWarns) {
  const Descriptor a = sample::descriptor("llamacpp:f16");
  Descriptor b = a;
  b.schema_minor = 3;
  const Verdict verdict = negotiate(a, b, kLossless);
  EXPECT_EQ(verdict.kind, VerdictKind::kDirect);
  ASSERT_EQ(verdict.warnings.size(), 1U);
  EXPECT_THAT(verdict.warnings[0], AllOf(HasSubstr("0 and 3"), HasSubstr("schema.minor")));
}

TEST(Negotiate, RecipesOfCodesAreRecordedNotCompared) {
  const Descriptor a = sample::descriptor("openvino:u8");
  Descriptor b = a;
  b.representation[0].forms[0].recipe = "other";
  EXPECT_EQ(negotiate(a, b, kLossless).kind, VerdictKind::kDirect);
}

TEST(Negotiate, PartitionsAndBlockSizesRedistribute) {
  const Descriptor one = sample::descriptor("vllm:flash_nhd");
  Descriptor two = one;
  two.partition = {{0, 0, 0, 4, 0, 1, 0}, {1, 0, 0, 4, 1, 3, 0}};
  const Verdict verdict = negotiate(one, two, kLossless);
  EXPECT_EQ(verdict.kind, VerdictKind::kRedistribute);
  const Reason* reason = find(verdict.redistributions, "partition.group.0");
  ASSERT_NE(reason, nullptr);
  EXPECT_EQ(reason->source, "rank 0 layers=0..4 heads=0..3 replica=0");
  EXPECT_EQ(reason->target,
            "rank 0 layers=0..4 heads=0..1 replica=0; rank 1 layers=0..4 heads=1..3 replica=0");
  Descriptor blocks = one;
  blocks.representation[0].block_tokens = 128;
  EXPECT_NE(find(negotiate(one, blocks, kLossless).redistributions, "groups.0.block_tokens"), nullptr);
}

TEST(Negotiate, RanksWithSomePositionsAreRedistributedUnlessTheyCutASharedScale) {
  const auto striped = [](const char* storage, std::uint64_t run) {
    Descriptor made = sample::descriptor(storage);
    made.schema_minor = 1;
    made.partition = {{.layer_end = 4, .head_end = 3, .token_end = run, .token_period = 2 * run},
                      {.rank = 1,
                       .layer_end = 4,
                       .head_end = 3,
                       .token_begin = run,
                       .token_end = 2 * run,
                       .token_period = 2 * run}};
    return made;
  };
  const Descriptor whole = sample::descriptor("vllm:flash_nhd"), stripes = striped("vllm:flash_nhd", 16);
  EXPECT_EQ(paths(negotiate(stripes, whole, kLossless).redistributions), "partition.group.0");
  EXPECT_EQ(negotiate(whole, stripes, kLossless).kind, VerdictKind::kRedistribute);
  EXPECT_EQ(negotiate(stripes, stripes, kLossless).kind, VerdictKind::kDirect);
  const Policy once{.exactness = Exactness::kUnqualified, .qualifications = {}};
  const Descriptor scaled = sample::descriptor("openvino:u8_channel");
  EXPECT_NE(negotiate(striped("vllm:flash_nhd", 32), scaled, once).kind, VerdictKind::kReject);
  const Verdict verdict = negotiate(stripes, scaled, once);
  ASSERT_EQ(paths(verdict.rejects), "partition.group.0");
  EXPECT_EQ(verdict.rejects[0].source,
            "rank 0 layers=0..4 heads=0..3 replica=0 tokens=0..16%32; "
            "rank 1 layers=0..4 heads=0..3 replica=0 tokens=16..32%32");
  EXPECT_EQ(verdict.rejects[0].target, "rank 0 layers=0..4 heads=0..3 replica=0");
  EXPECT_EQ(paths(negotiate(scaled, stripes, once).rejects), "partition.group.0");
}

TEST(Negotiate, OneFormatInAnotherOrderOfAxesIsNotOnlyAConversion) {
  // Same element order in f16 and f32 differs in bits only; a transposed V lies elsewhere.
  const Verdict verdict = negotiate(sample::descriptor("llamacpp:f16_v_transposed"),
                                    sample::descriptor("llamacpp:f32"), kLossless);
  EXPECT_EQ(verdict.kind, VerdictKind::kRedistributeConvert);
  EXPECT_EQ(paths(verdict.redistributions), "groups.0.layout.v");
}

TEST(Negotiate, BothEndsComeToTheSameVerdictFromTheirOwnCopies) {
  for (const Storage& from : catalogue()) {
    for (const Storage& to : catalogue()) {
      const Descriptor source = sample::descriptor(from.name);
      Descriptor target = sample::descriptor(to.name);
      if (target.groups[0].components[0].heads != 3) continue;
      target.partition = {{0, 0, 0, 2, 0, 3, 0}, {1, 0, 2, 4, 0, 3, 0}};
      Descriptor copy = target;
      std::swap(copy.partition[0], copy.partition[1]);
      expect_equal(negotiate(source, target, kBounded), negotiate(source, copy, kBounded));
    }
  }
}

TEST(Negotiate, RoundingsBeyondThePolicyAreRejected) {
  Policy none = kBounded;
  none.roundings_max = 0;
  const Verdict verdict =
      negotiate(sample::descriptor("llamacpp:f32"), sample::descriptor("llamacpp:f16"), none);
  ASSERT_EQ(paths(verdict.rejects), "policy.roundings_max");
  EXPECT_EQ(verdict.rejects[0].source, "1");
  EXPECT_EQ(verdict.rejects[0].target, "0");
  EXPECT_EQ(negotiate(sample::descriptor("llamacpp:f16"), sample::descriptor("llamacpp:f32"), none).kind,
            VerdictKind::kConvert);
}

TEST(Negotiate, ALosslessPolicyRejectsEachRoundingComponent) {
  const Verdict verdict =
      negotiate(sample::descriptor("llamacpp:f32"), sample::descriptor("llamacpp:f16"), kLossless);
  EXPECT_EQ(paths(verdict.rejects), "policy.exactness policy.exactness");
  EXPECT_EQ(verdict.rejects[1].source, "v codes=f32 op=q");
  EXPECT_EQ(verdict.rejects[1].target, "v codes=f16 op=q");
}

struct Pair {
  Descriptor source = sample::descriptor("llamacpp:f16");
  Descriptor target = sample::descriptor("openvino:u8");
  Qualification record;

  Pair() {
    source.weights_recipe = "llamacpp/gguf-q4_1";
    target.weights_recipe = "openvino/gguf-q4_1";
    record = {.prefill_recipe = "llamacpp/gguf-q4_1",
              .decode_recipe = "openvino/gguf-q4_1",
              .lineage = source.identity.lineage,
              .wire_form = "k codes=f16 op=q",
              .decode_form = "k codes=u8 op=(q-z)*s scale=f32 zero=f32 granule=dim:64,tok:1",
              .kl_pair = 0.003,
              .kl_engines = 0.0025,
              .prompts = 20};
  }
  Verdict verdict(Exactness exactness, std::vector<Qualification> records) const {
    return negotiate(source, target, {.exactness = exactness, .qualifications = std::move(records)});
  }
};

TEST(Qualification, UnlikeWeightsNeedARecordUnderBounded) {
  const Pair pair;
  const Verdict without = pair.verdict(Exactness::kBounded, {});
  ASSERT_EQ(paths(without.rejects), "policy.qualification");
  EXPECT_EQ(without.rejects[0].source, "llamacpp/gguf-q4_1");
  EXPECT_EQ(without.rejects[0].target, "openvino/gguf-q4_1");
  EXPECT_THAT(without.rejects[0].text, AllOf(HasSubstr(pair.record.decode_form), HasSubstr("0 records")));
  EXPECT_EQ(pair.verdict(Exactness::kBounded, {pair.record}).kind, VerdictKind::kRedistributeConvert);
}

TEST(Qualification, UnqualifiedWarnsAndLosslessRefuses) {
  const Pair pair;
  const Verdict warned = pair.verdict(Exactness::kUnqualified, {});
  EXPECT_EQ(warned.kind, VerdictKind::kRedistributeConvert);
  ASSERT_EQ(warned.warnings.size(), 1U);
  EXPECT_THAT(warned.warnings[0], AllOf(HasSubstr("llamacpp/gguf-q4_1"), HasSubstr("openvino/gguf-q4_1")));
  EXPECT_NE(find(pair.verdict(Exactness::kLossless, {pair.record}).rejects, "weights.recipe"), nullptr);
}

TEST(Qualification, AnotherFileOfTheSameRecipeIsUnlikeToo) {
  Pair pair;
  pair.target.weights_recipe = pair.source.weights_recipe;
  EXPECT_EQ(pair.verdict(Exactness::kBounded, {}).kind, VerdictKind::kRedistributeConvert);
  pair.target.weights_digest = "another";
  EXPECT_EQ(paths(pair.verdict(Exactness::kBounded, {}).rejects), "policy.qualification");
  EXPECT_NE(find(pair.verdict(Exactness::kLossless, {}).rejects, "weights.digest"), nullptr);
}

TEST(Qualification, ARecordWithoutAnInstructionSetCoversEachAndOneWithItThatOneAlone) {
  Pair pair;
  pair.source.weights_recipe = "llamacpp.avx512/gguf-q4_1";
  EXPECT_TRUE(pair.verdict(Exactness::kBounded, {pair.record}).rejects.empty());
  pair.record.prefill_recipe = "llamacpp.avx512/gguf-q4_1";
  EXPECT_TRUE(pair.verdict(Exactness::kBounded, {pair.record}).rejects.empty());
  pair.source.weights_recipe = "llamacpp.amx/gguf-q4_1";
  EXPECT_EQ(paths(pair.verdict(Exactness::kBounded, {pair.record}).rejects), "policy.qualification");
  pair.source.weights_recipe = "llamacpp/gguf-q4_1";
  EXPECT_EQ(paths(pair.verdict(Exactness::kBounded, {pair.record}).rejects), "policy.qualification");
}

TEST(Qualification, ARecordOfAnotherPairOrABadMeasurementCoversNothing) {
  const Pair pair;
  const std::vector<std::pair<std::string, std::function<void(Qualification&)>>> changes{
      {"prefill_recipe", [](Qualification& r) { r.prefill_recipe = "vllm/bf16"; }},
      {"decode_recipe", [](Qualification& r) { r.decode_recipe = "vllm/bf16"; }},
      {"lineage", [](Qualification& r) { r.lineage = "ab"; }},
      {"wire_form", [](Qualification& r) { r.wire_form = "k codes=bf16 op=q"; }},
      {"decode_form", [](Qualification& r) { r.decode_form = "k codes=f32 op=q"; }},
      {"prompts", [](Qualification& r) { r.prompts = 0; }},
      {"kl_pair nan", [](Qualification& r) { r.kl_pair = std::numeric_limits<double>::quiet_NaN(); }},
      {"kl_pair negative", [](Qualification& r) { r.kl_pair = -1; }},
      {"kl_engines infinite",
       [](Qualification& r) { r.kl_engines = std::numeric_limits<double>::infinity(); }},
      {"kl_pair too large", [](Qualification& r) { r.kl_pair = 0.0025 * 1.5001; }},
  };
  for (const auto& [what, change] : changes) {
    Qualification record = pair.record;
    change(record);
    EXPECT_EQ(paths(pair.verdict(Exactness::kBounded, {record}).rejects), "policy.qualification") << what;
  }
}

TEST(Qualification, FormsOfUnlikeComponentsAreJoined) {
  EXPECT_EQ(qualification_form(sample::descriptor("vllm:mla_fp8_656")),
            "latent codes=e4m3fn op=q*s scale=f32 granule=dim:128,tok:1;rope codes=bf16 op=q");
  EXPECT_EQ(qualification_form(sample::descriptor("llamacpp:bf16")), "k codes=bf16 op=q");
  EXPECT_EQ(qualification_form(sample::descriptor("llamacpp:q8_0")),
            "k codes=i8 op=q*s scale=f16 granule=dim:32,tok:1 after hadamard:64");
  EXPECT_EQ(qualification_form(sample::descriptor("llamacpp:q8_0_unrotated")),
            "k codes=i8 op=q*s scale=f16 granule=dim:32,tok:1");
}

TEST(Implemented, AllFormsOfTheEmbeddedEnginesCrossInEveryDirection) {
  const auto forms = [](const std::string& name) { return sample::descriptor(name).representation[0].forms; };
  std::uint32_t pairs = 0;
  for (const Storage& from : catalogue()) {
    for (const Storage& to : catalogue()) {
      if (from.engine != "llamacpp" && from.engine != "openvino") continue;
      if (to.engine != "llamacpp" && to.engine != "openvino") continue;
      for (const std::size_t component : {0U, 1U}) {
        const Status can = implemented(forms(from.name)[component], forms(to.name)[component], {}, 64);
        EXPECT_TRUE(can.ok()) << from.name << " -> " << to.name << ": " << can.error().text();
      }
      ++pairs;
    }
  }
  EXPECT_GE(pairs, 16U * 16U);
}

TEST(Implemented, OtherFormsAreRefusedByTextAndRecipe) {
  const auto form = [](const char* name, std::size_t i = 0) {
    return sample::descriptor(name).representation[0].forms[i];
  };
  const DecodeForm f16 = form("llamacpp:f16"), u8 = form("openvino:u8"),
                   channel = form("openvino:u8_channel");
  const auto refusal = [](const DecodeForm& from, const DecodeForm& to, std::uint32_t dim = 64) {
    const Status can = implemented(from, to, {}, dim);
    EXPECT_EQ(can.code(), Code::kUnsupported);
    return can.ok() ? "" : can.error().detail;
  };
  EXPECT_THAT(refusal(form("openvino:u4"), form("openvino:u4"), 63), HasSubstr("whole bytes"));
  DecodeForm otherwise = u8;
  otherwise.recipe = "ours";
  EXPECT_THAT(refusal(f16, otherwise), HasSubstr("by recipe \"ours\"; only plain f32, f16, bf16"));
  EXPECT_TRUE(implemented(otherwise, f16, {}, 64).ok()) << "any recipe is read";
  otherwise = u8;
  otherwise.granule_dim = 32;
  EXPECT_THAT(refusal(f16, otherwise), HasSubstr("granule=dim:32"));
  EXPECT_TRUE(implemented(otherwise, f16, {}, 64).ok());
  otherwise.granule_dim = 48;
  EXPECT_THAT(refusal(otherwise, otherwise), HasSubstr("a scale of 48 elements in rows of 64"));
  otherwise = channel;
  otherwise.granule_tokens = 48;
  EXPECT_THAT(refusal(otherwise, otherwise), HasSubstr("a scale that spans 48 tokens"));
  otherwise = form("llamacpp:q8_0_v_q4_0", 1);
  otherwise.zero_constant = 7;
  EXPECT_THAT(refusal(f16, otherwise), HasSubstr("op=(q-7)*s"));
  EXPECT_TRUE(implemented(otherwise, f16, {}, 64).ok());
  DecodeForm fp8{.component = "k", .codes = Format::kE4m3fn, .recipe = "nearest_even"};
  EXPECT_TRUE(implemented(f16, fp8, {}, 64).ok());
  EXPECT_TRUE(implemented(fp8, f16, {}, 64).ok());
  fp8.recipe = "other";
  EXPECT_THAT(refusal(f16, fp8), HasSubstr("to \"k codes=e4m3fn op=q\" by recipe \"other\""));
  EXPECT_TRUE(implemented(fp8, f16, {}, 64).ok()) << "any recipe is read";
  EXPECT_TRUE(implemented(fp8, fp8, {}, 64).ok());
  EXPECT_FALSE(implemented(fp8, fp8, {{ValueStepKind::kHadamard, 64}}, 64).ok()) << "must be encoded";
  fp8.recipe = "amax";
  EXPECT_THAT(refusal(f16, fp8), HasSubstr("by recipe \"amax\"")) << "without a scale";
  fp8.operation = DecodeOperation::kScaled;
  fp8.granule_dim = 16;
  EXPECT_TRUE(implemented(f16, fp8, {}, 64).ok());
  for (const Format scale : {Format::kF32, Format::kF16, Format::kBf16, Format::kE8m0}) {
    for (const std::uint32_t granule : {1U, 16U}) {
      fp8.scale = scale;
      fp8.granule_dim = granule;
      fp8.granule_tokens = 32;
      EXPECT_TRUE(implemented(f16, fp8, {}, 64).ok());
      EXPECT_TRUE(implemented(fp8, f16, {}, 64).ok());
    }
  }
  fp8.scale = Format::kE4m3fn;
  EXPECT_THAT(refusal(fp8, f16), HasSubstr("scale=e4m3fn"));
  EXPECT_THAT(refusal(f16, fp8), HasSubstr("scale=e4m3fn"));
  fp8.scale = Format::kF32;
  fp8.codes = Format::kU8;
  EXPECT_THAT(refusal(f16, fp8), HasSubstr("codes=u8 op=q*s")) << "without a zero point";
  fp8.codes = Format::kE8m0;
  EXPECT_THAT(refusal(fp8, f16), HasSubstr("from \"k codes=e8m0 op=q*s"));
}

TEST(Implemented, StaticScalesAreReadAndMade) {
  const DecodeForm f16 = sample::descriptor("llamacpp:f16").representation[0].forms[0];
  DecodeForm form{.component = "k",
                  .codes = Format::kE5m2,
                  .operation = DecodeOperation::kStaticScaled,
                  .recipe = "vllm.cpu.fp8",
                  .static_scales = {0.5F}};
  EXPECT_TRUE(implemented(f16, form, {}, 64).ok());
  EXPECT_TRUE(implemented(form, f16, {}, 64).ok());
  form.codes = Format::kE5m2fnuz;
  EXPECT_EQ(implemented(f16, form, {}, 64).code(), Code::kUnsupported) << "that backend doesn't store it";
  form.recipe = "nearest_even";
  EXPECT_TRUE(implemented(f16, form, {}, 64).ok());
  form.codes = Format::kBf16;
  EXPECT_EQ(implemented(f16, form, {}, 64).code(), Code::kUnsupported);
  EXPECT_EQ(implemented(form, f16, {}, 64).code(), Code::kUnsupported);
  // Kept codes need no recipe.
  form.codes = Format::kE4m3fn;
  DecodeForm doubled = form;
  doubled.codes = Format::kE4m3fnuz;
  doubled.static_scales = {1.0F};
  doubled.recipe = "other";
  EXPECT_TRUE(implemented(form, doubled, {}, 64).ok());
  EXPECT_EQ(implemented(form, doubled, {{ValueStepKind::kHadamard, 64}}, 64).code(), Code::kUnsupported);
}

TEST(Implemented, APolicyOnWhatIsNotFiniteIsPartOfTheWireForm) {
  const Descriptor a = sample::descriptor("llamacpp:f16"), b = sample::descriptor("openvino:f32");
  Policy policy;
  const std::string refusing = negotiate(a, b, policy).wire.text();
  policy.non_finite = NonFinite::kReplace;
  const Verdict verdict = negotiate(a, b, policy);
  EXPECT_EQ(verdict.wire.groups[0][0].non_finite, NonFinite::kReplace);
  EXPECT_NE(verdict.wire.text(), refusing);
  EXPECT_THAT(verdict.wire.text(), HasSubstr("op=q after rope:interleaved non-finite=replace\n"));
}

TEST(Implemented, WindowsAndLatentStateMove) {
  Descriptor a = sample::descriptor("llamacpp:f16");
  a.groups[0].attention = AttentionKind::kSlidingWindow;
  a.groups[0].window = 512;
  EXPECT_EQ(negotiate(a, a, kLossless).kind, VerdictKind::kDirect);
  Descriptor latent = sample::descriptor("vllm:mla_bf16");
  latent.groups[0].attention = AttentionKind::kMla;
  EXPECT_EQ(negotiate(latent, latent, kLossless).kind, VerdictKind::kDirect);
}

// What no policy allows: a rounded state would be in every later token.
TEST(Implemented, AStateWithoutATokenAxisIsExactOrRefused) {
  const auto state = [](Format codes) {
    Descriptor d = sample::descriptor(codes == Format::kF32 ? "llamacpp:f32" : "llamacpp:bf16");
    d.groups[0].attention = AttentionKind::kRecurrent;
    for (Component& component : d.groups[0].components) {
      component.has_token_axis = false;
      component.value_transforms = {};
    }
    d.schema_minor = 1;
    return d;
  };
  const Descriptor wide = state(Format::kF32), narrow = state(Format::kBf16);
  for (const Exactness exactness : {Exactness::kLossless, Exactness::kBounded, Exactness::kUnqualified}) {
    const Policy policy{.exactness = exactness, .roundings_max = 9, .qualifications = {}};
    const Verdict rounded = negotiate(wide, narrow, policy);
    EXPECT_EQ(paths(rounded.rejects), "groups.0.form.k groups.0.form.v");
    EXPECT_THAT(rounded.rejects[0].text, HasSubstr("crosses exactly or not at all"));
    const Verdict widened = negotiate(narrow, wide, policy);
    EXPECT_EQ(widened.kind, VerdictKind::kConvert);
    EXPECT_TRUE(widened.exact);
  }
  Descriptor mixed = wide;
  mixed.groups[0].components[1].value_transforms = {"hadamard:64"};
  EXPECT_EQ(paths(negotiate(wide, mixed, kBounded).rejects), "groups.0.form.v");
}

TEST(Restores, IsTheTableOfExactEmbeddings) {
  const auto plain = [](Format codes) { return DecodeForm{.component = "k", .codes = codes, .recipe = ""}; };
  const auto scaled = [](Format codes, Format scale) {
    return DecodeForm{.component = "k",
                      .codes = codes,
                      .operation = DecodeOperation::kScaled,
                      .scale = scale,
                      .granule_dim = 32,
                      .recipe = ""};
  };
  for (const Format wide : {Format::kF16, Format::kBf16, Format::kE4m3fn, Format::kE5m2}) {
    EXPECT_TRUE(restores(plain(wide), plain(Format::kF32), {}));
    EXPECT_FALSE(restores(plain(Format::kF32), plain(wide), {}));
  }
  EXPECT_FALSE(restores(plain(Format::kF16), plain(Format::kBf16), {}));
  EXPECT_FALSE(restores(plain(Format::kBf16), plain(Format::kF16), {}));
  EXPECT_TRUE(restores(plain(Format::kE4m3fn), plain(Format::kF16), {}));
  EXPECT_TRUE(restores(scaled(Format::kI8, Format::kF16), plain(Format::kF32), {})) << "q8_0";
  EXPECT_FALSE(restores(scaled(Format::kI8, Format::kF16), plain(Format::kBf16), {}));
  EXPECT_FALSE(restores(scaled(Format::kI8, Format::kF32), plain(Format::kF32), {}));
  EXPECT_FALSE(restores(scaled(Format::kE4m3fn, Format::kF32), plain(Format::kF32), {}));
  const DecodeForm u8 = sample::descriptor("openvino:u8").representation[0].forms[0];
  EXPECT_FALSE(restores(u8, plain(Format::kF32), {}));
  EXPECT_FALSE(restores(plain(Format::kF16), u8, {}));
  EXPECT_TRUE(restores(u8, u8, {}));
  const DecodeForm q4 = sample::descriptor("llamacpp:q8_0_v_q4_0").representation[0].forms[1];
  EXPECT_TRUE(restores(q4, plain(Format::kF32), {}));
  EXPECT_FALSE(restores(q4, plain(Format::kBf16), {}));
  const std::vector<ValueStep> moved{{ValueStepKind::kHalvesToInterleaved, 0}};
  const std::vector<ValueStep> mixed{{ValueStepKind::kHadamard, 64}};
  EXPECT_TRUE(restores(plain(Format::kF16), plain(Format::kF16), moved));
  EXPECT_TRUE(restores(q4, plain(Format::kF32), moved));
  EXPECT_FALSE(restores(u8, u8, moved)) << "codes are made anew";
  EXPECT_FALSE(restores(plain(Format::kF32), plain(Format::kF32), mixed));
}

TEST(Restores, StaticScalesKeepTheirCodesOrAreDoubledForFnuz) {
  const auto fixed = [](Format codes, std::vector<float> scales) {
    return DecodeForm{.component = "k",
                      .codes = codes,
                      .operation = DecodeOperation::kStaticScaled,
                      .recipe = "",
                      .static_scales = std::move(scales)};
  };
  const DecodeForm fn = fixed(Format::kE4m3fn, {0.1F, 3});
  EXPECT_TRUE(restores(fn, fixed(Format::kE4m3fnuz, {0.2F, 6}), {}));
  EXPECT_FALSE(restores(fn, fixed(Format::kE4m3fnuz, {0.2F, 3}), {}));
  EXPECT_FALSE(restores(fn, fixed(Format::kE4m3fnuz, {0.2F}), {}));
  EXPECT_FALSE(restores(fn, fixed(Format::kE5m2, {0.1F, 3}), {}));
  EXPECT_FALSE(restores(fixed(Format::kE4m3fnuz, {0.2F, 6}), fn, {})) << "240 has no code at half the scale";
  EXPECT_FALSE(restores(fn, fixed(Format::kE4m3fn, {0.1F, 4}), {}));
  EXPECT_TRUE(restores(fn, fn, {{ValueStepKind::kHalvesToInterleaved, 0}}));
  const DecodeForm f32{.component = "k", .codes = Format::kF32, .recipe = ""};
  EXPECT_FALSE(restores(fn, f32, {}));
  EXPECT_FALSE(restores(f32, fn, {}));
  const float huge = std::numeric_limits<float>::max();
  EXPECT_FALSE(restores(fixed(Format::kE4m3fn, {huge}), fixed(Format::kE4m3fnuz, {huge}), {}));
}

// Any storage, with some of its facts changed.
Descriptor changed_descriptor() {
  Descriptor d = sample::descriptor((*rc::gen::elementOf(catalogue())).name);
  const std::vector<std::function<void(Descriptor&)>> changes{
      [](Descriptor& x) { x.identity.lineage = "other"; },
      [](Descriptor& x) { x.identity.rope_theta = 7; },
      [](Descriptor& x) { x.identity.adapters = {{"a", "b"}}; },
      [](Descriptor& x) { x.weights_recipe = "other"; },
      [](Descriptor& x) { x.groups[0].components[0].value_transforms = {"rope:halves"}; },
      [](Descriptor& x) { x.groups[0].components[0].value_transforms.emplace_back("hadamard:2"); },
      [](Descriptor& x) { x.representation[0].block_tokens *= 2; },
      [](Descriptor& x) { x.schema_minor = 5; },
      [](Descriptor& x) {
        x.partition[0].layer_end = 1;
        RankBox rest = x.partition[0];
        rest.rank = 1;
        rest.layer_begin = 1;
        rest.layer_end = 4;
        x.partition.push_back(rest);
      },
      [](Descriptor& x) { x.groups[0].layers = {1, 2, 3, 5}; },
      [](Descriptor& x) { x.representation[0].forms[0].recipe = "other"; },
  };
  for (const auto& change : changes) {
    if (*rc::gen::inRange(0, 3) == 0) change(d);
  }
  return d;
}

using Swapped = std::vector<std::array<std::string, 3>>;

Swapped sorted(const std::vector<Reason>& reasons, bool is_swapped) {
  Swapped out;
  for (const Reason& reason : reasons) {
    // Only what one end's descriptor says; what an end can do differs with the direction.
    if (reason.path.starts_with("policy.") || reason.text.find("not implemented") != std::string::npos)
      continue;
    out.push_back({reason.path, is_swapped ? reason.target : reason.source,
                   is_swapped ? reason.source : reason.target});
  }
  std::sort(out.begin(), out.end());
  return out;
}

RC_GTEST_PROP(Negotiate, DifferencesAreTheSameFromEitherEndWithTheirValuesSwapped, ()) {
  const Descriptor a = changed_descriptor(), b = changed_descriptor();
  RC_PRE(a.validate().ok() && b.validate().ok());
  const Policy policy{
      .exactness = *rc::gen::element(Exactness::kLossless, Exactness::kBounded, Exactness::kUnqualified),
      .qualifications = {}};
  const Verdict there = negotiate(a, b, policy), back = negotiate(b, a, policy);
  RC_ASSERT(sorted(there.rejects, false) == sorted(back.rejects, true));
  RC_ASSERT(sorted(there.redistributions, false) == sorted(back.redistributions, true));
  RC_ASSERT(sorted(there.conversions, false) == sorted(back.conversions, true));
  RC_ASSERT((there.kind == VerdictKind::kReject) == !there.rejects.empty());
  RC_ASSERT(negotiate(a, a, policy).redistributions.empty() && negotiate(a, a, policy).conversions.empty());
}

TEST(Explain, ShowsClassDifferencesWireStepsAndPrice) {
  const Pair pair;
  const std::string text =
      explain(pair.source, pair.target, {.exactness = Exactness::kBounded, .qualifications = {pair.record}});
  EXPECT_EQ(text, R"(verdict       redistribute+convert
exact         no, roundings: 1
policy        bounded, roundings at most 1
model         llama b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
weights       llamacpp/gguf-q4_1 -> openvino/gguf-q4_1
qualified     KL 0.003 to the decoder alone, 0.0025 between the engines, 20 prompts

redistribute
  groups.0.block_tokens  source  0
                         target  32
  groups.0.layout.k      source  k elements region=K start=0 tok/1:192 head/1%3:64 dim/1%64:1
                         target  k elements region=K start=8 blk/1:6912 slot/1%32:72 head/1%3:2304 dim/1%64:1
  groups.0.layout.v      source  v elements region=V start=0 tok/1:192 head/1%3:64 dim/1%64:1
                         target  v elements region=V start=8 blk/1:6912 slot/1%32:72 head/1%3:2304 dim/1%64:1

convert
  groups.0.form.k  source  k codes=f16 op=q
                   target  k codes=u8 op=(q-z)*s scale=f32 zero=f32 granule=dim:64,tok:1
  groups.0.form.v  source  v codes=f16 op=q
                   target  v codes=u8 op=(q-z)*s scale=f32 zero=f32 granule=dim:64,tok:1

wire form (rows in head, token, element order; the source's numbers)
  group 0     k codes=f16 op=q after rope:interleaved
  group 0     v codes=f16 op=q

steps
  pack        producer    source layout to wire rows, digesting each tile
  move        transport   chunks as prefill publishes them
  check       consumer    tile digests, before anything is placed
  convert     consumer    wire form to the target's, through f32, once
  place       consumer    wire rows to target layout
  verify      consumer    read back, digests of the target's form

bytes a token
  source              3072
  wire                3072
  target              1728
)");
}

TEST(Explain, ARejectShowsBothValuesAndWhy) {
  Descriptor target = sample::descriptor("llamacpp:f16");
  target.identity.rope_theta = 10000;
  EXPECT_EQ(explain(sample::descriptor("llamacpp:f16"), target, kLossless), R"(verdict       reject
policy        lossless, roundings at most 1

forbidden by
  identity.position.rope_theta  source  0x40f86a0000000000 (100000)
                                target  0x40c3880000000000 (10000)
                                why     the ends run different models
)");
}

}  // namespace
}  // namespace isthmus::kv
