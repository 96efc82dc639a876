// SPDX-License-Identifier: Apache-2.0
// Descriptors by digest, verdicts of pairs.
#include "handoff/core/protocol.h"

#include <gtest/gtest.h>

#include "sim/scene.h"

namespace isthmus::handoff {
namespace {

using sim::source_descriptor;
using sim::target_descriptor;

kv::Descriptor of_recipe(std::string recipe) {
  kv::Descriptor descriptor = target_descriptor();
  descriptor.weights_recipe = std::move(recipe);
  return descriptor;
}

kv::Verdict ask(Verdicts& verdicts, const kv::Descriptor& target, const kv::Policy& policy) {
  const kv::Descriptor source = source_descriptor();
  return verdicts.of({source, source.digest()}, {target, target.digest()}, policy);
}

TEST(DescriptorSet, FindsByDigestWhatItHolds) {
  const DescriptorSet set{source_descriptor(), of_recipe("a")};
  EXPECT_EQ(set.find(of_recipe("a").digest())->weights_recipe, "a");
  EXPECT_EQ(set.find(of_recipe("b").digest()), nullptr);
  EXPECT_EQ(DescriptorSet().find(source_descriptor().digest()), nullptr);
}

TEST(Verdicts, APairMetBeforeIsJudgedByThePolicyAskedFor) {
  Verdicts verdicts;
  const kv::Descriptor target = of_recipe("another");
  const kv::Policy loose{.exactness = kv::Exactness::kUnqualified, .roundings_max = 1, .qualifications = {}};
  for (int round = 0; round < 2; ++round) {
    EXPECT_NE(ask(verdicts, target, loose).kind, kv::VerdictKind::kReject);
    EXPECT_EQ(ask(verdicts, target, {}).kind, kv::VerdictKind::kReject);
  }
}

TEST(Verdicts, MorePairsThanAreKeptAreJudgedAsNegotiated) {
  Verdicts verdicts;
  constexpr int kMany = 150;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kMany; ++i) {
      const kv::Descriptor target = of_recipe(std::to_string(i));
      const kv::Verdict verdict = ask(verdicts, target, {});
      ASSERT_FALSE(verdict.rejects.empty());
      const kv::Verdict fresh = kv::negotiate(source_descriptor(), target, {});
      ASSERT_EQ(verdict.rejects.front().target, fresh.rejects.front().target) << i;
    }
  }
}

}  // namespace
}  // namespace isthmus::handoff
