// SPDX-License-Identifier: Apache-2.0
// Two descriptors of any geometry and partition: the verdict is the same twice, and a plan is bounded,
// covers, and is the same at both ends; or a typed error.
#include <array>
#include <vector>

#include "fuzz/input.h"
#include "kv/catalogue.h"
#include "kv/negotiate.h"
#include "transform/plan.h"

namespace isthmus::fuzz {
namespace {

struct Shape {
  std::uint32_t layers = 1, heads = 1, dim = 64;
};

Shape shape_of(FuzzedDataProvider& choices) {
  constexpr std::array<std::uint32_t, 8> kDims{64, 128, 32, 80, 96, 16, 256, 8};
  const auto any = choices.ConsumeIntegralInRange<std::uint32_t>(0, 4096);
  return {choices.ConsumeIntegralInRange<std::uint32_t>(1, 40),
          choices.ConsumeIntegralInRange<std::uint32_t>(1, 32), any < 3072 ? kDims[any % 8] : any - 3071};
}

// Ranks that split layers or heads at chosen places; sometimes wrongly, which validate() must say.
std::vector<kv::RankBox> partition_of(const Shape& shape, FuzzedDataProvider& choices) {
  std::vector<kv::RankBox> boxes;
  const auto head_cut = choices.ConsumeIntegralInRange<std::uint32_t>(0, shape.heads);
  const auto layer_cut = choices.ConsumeIntegralInRange<std::uint32_t>(0, shape.layers);
  const auto add = [&](std::uint32_t l0, std::uint32_t l1, std::uint32_t h0, std::uint32_t h1) {
    const auto rank = static_cast<std::uint32_t>(boxes.size());
    if (l0 < l1 && h0 < h1) boxes.push_back({rank, 0, l0, l1, h0, h1, 0});
  };
  add(0, layer_cut, 0, head_cut);
  add(0, layer_cut, head_cut, shape.heads);
  add(layer_cut, shape.layers, 0, head_cut);
  add(layer_cut, shape.layers, head_cut, shape.heads);
  if (choices.ConsumeBool() && !boxes.empty()) {
    kv::RankBox copy = boxes[choices.ConsumeIntegral<std::uint8_t>() % boxes.size()];
    copy.rank = static_cast<std::uint32_t>(boxes.size());
    copy.data_replica = choices.ConsumeIntegralInRange<std::uint32_t>(0, 2);
    copy.head_end += choices.ConsumeIntegralInRange<std::uint32_t>(0, 1);
    boxes.push_back(copy);
  }
  return boxes;
}

Result<kv::Descriptor> descriptor_of(const Shape& shape, FuzzedDataProvider& choices) {
  const auto& all = kv::catalogue();
  const kv::Storage& storage = all[choices.ConsumeIntegral<std::uint8_t>() % all.size()];
  kv::Descriptor made;
  made.identity = {"llama", "lineage", "config", "tokenizer", {}, "rope", 10000, "none", true, 0};
  made.weights_recipe = "gguf-f16";
  made.weights_digest = "w";
  kv::LayerGroup group;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) group.layers.push_back(layer);
  for (const kv::DecodeForm& form : storage.forms) {
    group.components.push_back({form.component, shape.heads, shape.dim, true, {}});
    if (form.component == "k") {
      group.components.back().value_transforms = {choices.ConsumeBool() ? "rope:interleaved" : "rope:halves"};
    }
  }
  ISTHMUS_TRY(kv::StoredGroup stored, kv::represent(storage, std::move(group), {{"k", {0.5F}}, {"v", {2}}}));
  if (choices.ConsumeBool()) {
    stored.representation.block_tokens = choices.ConsumeIntegralInRange<std::uint32_t>(0, 512);
  }
  made.groups.push_back(std::move(stored.group));
  made.representation.push_back(std::move(stored.representation));
  made.partition = partition_of(shape, choices);
  made.schema_minor = made.minimum_minor();
  return made;
}

kv::Policy policy_of(FuzzedDataProvider& choices) {
  kv::Policy policy;
  policy.exactness = choices.PickValueInArray(
      {kv::Exactness::kUnqualified, kv::Exactness::kLossless, kv::Exactness::kBounded});
  policy.roundings_max = choices.ConsumeIntegralInRange<std::uint32_t>(0, 3);
  return policy;
}

kv::TokenRange tokens_of(FuzzedDataProvider& choices) {
  const std::uint64_t begin =
      choices.ConsumeBool() ? choices.ConsumeIntegralInRange<std::uint64_t>(0, 5000) : 0;
  switch (choices.ConsumeIntegralInRange<int>(0, 7)) {
    case 0:
      return {begin, choices.ConsumeIntegral<std::uint64_t>()};
    case 1:
      return {begin, begin + choices.ConsumeIntegralInRange<std::uint64_t>(0, 1 << 27)};
    default:
      return {begin, begin + choices.ConsumeIntegralInRange<std::uint64_t>(0, 3000)};
  }
}

void check_plan(const transform::Plan& plan, kv::TokenRange tokens) {
  ISTHMUS_CHECK(plan.chunk_count() <= transform::kChunksMax);
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < plan.chunk_count(); ++i) {
    const transform::Chunk chunk = plan.chunk(i);
    ISTHMUS_CHECK(chunk.index == i && !chunk.box.empty());
    ISTHMUS_CHECK(chunk.body_bytes <= plan.body_bytes_max());
    ISTHMUS_CHECK(tokens.contains(chunk.box.tokens));
    ISTHMUS_CHECK(plan.check_chunk(chunk).ok());
    total += chunk.body_bytes;
  }
  ISTHMUS_CHECK(total == plan.total_bytes());
  ISTHMUS_CHECK(plan.chunks_below(tokens.begin) == 0);
  ISTHMUS_CHECK(plan.chunks_below(tokens.end) == plan.chunk_count());
}

}  // namespace
}  // namespace isthmus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  FuzzedDataProvider choices(data, size);
  const fuzz::Shape shape = fuzz::shape_of(choices);
  const auto source = fuzz::descriptor_of(shape, choices);
  const auto target = fuzz::descriptor_of(shape, choices);
  if (!source.ok() || !target.ok()) return 0;
  const kv::Policy policy = fuzz::policy_of(choices);
  const kv::TokenRange tokens = fuzz::tokens_of(choices);
  const kv::Verdict verdict = kv::negotiate(*source, *target, policy);
  const kv::Verdict again = kv::negotiate(*source, *target, policy);
  ISTHMUS_CHECK(verdict.kind == again.kind && verdict.wire.text() == again.wire.text());
  if (verdict.kind == kv::VerdictKind::kReject) {
    ISTHMUS_CHECK(!verdict.rejects.empty());
    ISTHMUS_CHECK(!transform::Plan::make(*source, *target, verdict, tokens).ok());
    return 0;
  }
  ISTHMUS_CHECK(source->validate().ok() && target->validate().ok());
  const auto plan = transform::Plan::make(*source, *target, verdict, tokens);
  if (!plan.ok()) return 0;
  fuzz::check_plan(*plan, tokens);
  ISTHMUS_CHECK(transform::Plan::make(*source, *target, again, tokens)->digest() == plan->digest());
  return 0;
}
