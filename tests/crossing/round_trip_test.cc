// SPDX-License-Identifier: Apache-2.0
// A real engine's live state goes out into every storage of the catalogue that holds its numbers, comes back
// into a new sequence, and the engine goes on with the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "crossing/measure.h"
#include "kv/catalogue.h"
#include "qualify/pair.h"
#include "transform/redistribute.h"

namespace isthmus::crossing {
namespace {

constexpr std::size_t kPrompt = 14;  // 129 tokens: more than four blocks of 32, and one token in the last.
constexpr std::size_t kForcedTokens = 16;

// Memory of one rank that isn't an engine's.
struct Copy {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<transform::RankMemory> ranks;
};

Copy allocate(const kv::Descriptor& descriptor, std::uint64_t tokens) {
  const kv::Layout layout = *descriptor.layout(0, 0);
  const std::uint32_t block = descriptor.representation[0].block_tokens;
  const std::uint64_t extent = block == 0 ? tokens : (tokens + block - 1) / block;
  Copy copy;
  kv::Binding binding;
  for (const kv::RegionLayout& region : layout.regions()) {
    for (std::uint32_t layer = 0; layer < (region.per_layer ? layout.extents().layers : 1); ++layer) {
      auto& bytes = copy.bytes.emplace_back(layout.region_bytes(region.name, extent));
      binding.memory.push_back({region.name, layer, bytes.data(), bytes.size(), extent});
    }
  }
  for (std::uint64_t i = 0; block != 0 && i < extent; ++i)
    binding.blocks.push_back(static_cast<std::uint32_t>(extent - 1 - i));
  binding.valid = {0, tokens};
  copy.ranks.push_back({0, {binding}});
  return copy;
}

// The same model's state as `storage` would hold it.
Result<kv::Descriptor> stored_as(const kv::Storage& storage, kv::Descriptor descriptor) {
  kv::LayerGroup group = descriptor.groups.front();
  for (kv::Component& component : group.components)
    std::erase_if(component.value_transforms, [](const auto& name) { return name.starts_with("hadamard"); });
  ISTHMUS_TRY(kv::StoredGroup stored, kv::represent(storage, std::move(group)));
  descriptor.groups = {std::move(stored.group)};
  descriptor.representation = {std::move(stored.representation)};
  ISTHMUS_TRY(descriptor.validate());
  return descriptor;
}

Status move(const kv::Descriptor& source, const std::vector<transform::RankMemory>& from,
            const kv::Descriptor& target, const std::vector<transform::RankMemory>& to,
            const kv::Policy& policy) {
  const kv::TokenRange tokens = from.front().groups.front().valid;
  ISTHMUS_TRY(auto plan,
              transform::Plan::make(source, target, kv::negotiate(source, target, policy), tokens));
  return transform::redistribute({.plan = std::make_shared<const transform::Plan>(std::move(plan)),
                                  .source = source,
                                  .target = target,
                                  .from = from,
                                  .to = to})
      .status();
}

class RoundTrip : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const std::size_t colon = name.find(':');
    engine_ = *make_engine({name.substr(0, colon), name.substr(colon + 1)}, 1);
    prompt_ = prompt(kPrompt);
    forced_ = prompt(kPrompt + 1);
    forced_.resize(kForcedTokens);
  }
  // A new sequence; both engines give it the place that the one closed before had.
  engine::SequenceId open() { return *engine_->open(prompt_.size() + kForcedTokens); }

  // The prompt's state, out of a sequence that is closed again.
  Result<std::unique_ptr<engine::ExportedKv>> computed() {
    const engine::SequenceId source = open();
    ISTHMUS_TRY(qualify::run_prompt(*engine_, source, prompt_).status());
    auto exported = engine_->kv_source()->export_range(source, {0, prompt_.size()});
    engine_->close(source);
    return exported;
  }

  // Out to `other`, back into a new sequence, and on.
  Result<Logits> there_and_back(const kv::Binding& exported, const kv::Descriptor& other) {
    const kv::TokenRange tokens{0, prompt_.size()};
    const std::vector<transform::RankMemory> from{{0, {exported}}};
    const Copy copy = allocate(other, prompt_.size());
    ISTHMUS_TRY(move(engine_->descriptor(), from, other, copy.ranks, {}));
    const engine::SequenceId target = open();
    ISTHMUS_TRY(const auto bindings, engine_->kv_sink()->bind(target, tokens));
    // Numbers that came out of this engine go back in exactly, though the verdict can't know it.
    ISTHMUS_TRY(move(other, copy.ranks, engine_->descriptor(), {{0, bindings}}, kUnqualified));
    ISTHMUS_TRY(engine_->kv_sink()->adopt(target, tokens));
    Result<Logits> rows = qualify::run_forced(*engine_, target, forced_);
    engine_->close(target);
    return rows;
  }

  std::unique_ptr<engine::Engine> engine_;
  Tokens prompt_, forced_;
};

TEST_P(RoundTrip, TheEngineGoesOnWithTheSameBits) {
  const engine::SequenceId alone = open();
  ASSERT_TRUE(qualify::run_prompt(*engine_, alone, prompt_).ok());
  const Logits expected = *qualify::run_forced(*engine_, alone, forced_);
  engine_->close(alone);
  const auto exported = computed();
  ASSERT_TRUE(exported.ok()) << exported.error().text();
  std::size_t exact = 0, lossy = 0, unlike = 0;
  for (const kv::Storage& storage : kv::catalogue()) {
    const auto other = stored_as(storage, engine_->descriptor());
    if (!other.ok()) {
      ++unlike;
      continue;
    }
    if (kv::negotiate(engine_->descriptor(), *other, {}).kind == kv::VerdictKind::kReject) {
      ++lossy;
      continue;
    }
    SCOPED_TRACE(storage.name);
    const auto rows = there_and_back((*exported)->bindings().front(), *other);
    ASSERT_TRUE(rows.ok()) << rows.error().text();
    EXPECT_TRUE(*rows == expected);
    ++exact;
  }
  fmt::print("{}: through {} storages and back; {} would round, {} hold other components or shapes\n",
             GetParam(), exact, lossy, unlike);
  EXPECT_GE(exact, 1u);
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::ranges::replace(name, ':', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Engines, RoundTrip,
                         testing::Values("llamacpp:f16", "llamacpp:bf16", "llamacpp:f32_v_transposed",
                                         "llamacpp:q8_0", "openvino:f32", "openvino:f16", "openvino:u8"),
                         name_of);

}  // namespace
}  // namespace isthmus::crossing
