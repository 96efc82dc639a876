// SPDX-License-Identifier: Apache-2.0
// Bodies in place beside bodies that are packed and placed: the same bytes, digests and refusals.
#include "transform/in_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "transform/program.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

// One storage at both ends.
class Ends {
 public:
  Ends(std::string_view storage, const TestGeometry& geometry, kv::TokenRange tokens)
      : descriptor_(test_descriptor(storage, geometry)),
        plan_(std::make_shared<const Plan>(
            Plan::make(descriptor_, descriptor_, test_verdict(descriptor_, descriptor_), tokens).value())),
        source(descriptor_, 0, 0, tokens),
        target(descriptor_, 0, 0, tokens),
        from(InPlace::make(plan_, descriptor_).value()),
        to(InPlace::make(plan_, descriptor_).value()),
        packer(Packer::make(plan_, descriptor_).value()),
        placer(Placer::make(plan_, descriptor_).value()) {
    source.fill(tokens);
  }
  const Plan& plan() const { return *plan_; }

 private:
  kv::Descriptor descriptor_;
  std::shared_ptr<const Plan> plan_;

 public:
  TestMemory source, target;
  InPlace from, to;
  Packer packer;
  Placer placer;
};

std::vector<std::byte> joined(const BodyRuns& runs) {
  std::vector<std::byte> bytes;
  for (const auto run : runs) bytes.insert(bytes.end(), run.begin(), run.end());
  return bytes;
}

struct Case {
  const char* storage;
  TestGeometry geometry;
  kv::TokenRange tokens;
};

class InPlaceCases : public testing::TestWithParam<Case> {};

TEST_P(InPlaceCases, BytesAndDigestsAreThoseOfPackingAndPlacing) {
  const auto& [storage, geometry, tokens] = GetParam();
  Ends ends(storage, geometry, tokens);
  for (const Chunk& chunk : ends.plan().chunks()) {
    std::vector<std::byte> body(chunk.body_bytes);
    std::vector<Digest128> tiles(chunk.tile_count()), seen(chunk.tile_count());
    ASSERT_TRUE(ends.packer.pack(chunk, ends.source.binding(), body, tiles).ok());
    std::array<std::byte, kSectionAlign> pads{};
    BodyRuns runs;
    ASSERT_TRUE(ends.from.runs(chunk, ends.source.binding(), pads, runs).value());
    EXPECT_TRUE(joined(runs) == body);
    ASSERT_TRUE(ends.from.digest(chunk, ends.source.binding(), seen).ok());
    EXPECT_EQ(seen, tiles);

    ASSERT_TRUE(ends.to.runs(chunk, ends.target.binding(), pads, runs).value());
    auto at = body.begin();
    for (const auto run : runs) {
      std::copy_n(at, run.size(), run.begin());
      at += static_cast<std::ptrdiff_t>(run.size());
    }
    EXPECT_TRUE(ends.to.verify(chunk, ends.target.binding(), tiles).ok());
    EXPECT_TRUE(ends.placer.verify(chunk, ends.target.binding(), tiles, {}).ok());
  }
  const auto in_place = ends.target.bytes();
  for (const Chunk& chunk : ends.plan().chunks()) {
    std::vector<std::byte> body(chunk.body_bytes);
    std::vector<Digest128> tiles(chunk.tile_count());
    ASSERT_TRUE(ends.packer.pack(chunk, ends.source.binding(), body, tiles).ok());
    ASSERT_TRUE(ends.placer.place(chunk, body, tiles, ends.target.binding(), {}).ok());
  }
  EXPECT_TRUE(ends.target.bytes() == in_place) << "bytes between the elements included";
}

INSTANTIATE_TEST_SUITE_P(Storages, InPlaceCases,
                         testing::Values(Case{"openvino:f16", {}, {0, 300}},
                                         Case{"openvino:f32", {}, {0, 777}},
                                         // Sections that end within a line: pads between them.
                                         Case{"openvino:f16", {.layers = 1, .heads = 1, .dim = 8}, {0, 41}},
                                         Case{"llamacpp:f16", {.heads = 1, .dim = 256}, {0, 300}},
                                         Case{"llamacpp:f16", {.layers = 1, .heads = 1}, {0, 1}},
                                         Case{"vllm:flash_hnd", {.dim = 128}, {0, 300}}),
                         [](const auto& each) { return "case" + std::to_string(each.index); });

TEST(InPlace, AByteThatDiffersIsCorruptAndItsTileIsNamed) {
  Ends ends("openvino:f16", {}, {0, 300});
  const Chunk chunk = ends.plan().chunk(0);
  std::vector<Digest128> tiles(chunk.tile_count());
  ASSERT_TRUE(ends.from.digest(chunk, ends.source.binding(), tiles).ok());
  EXPECT_TRUE(ends.from.verify(chunk, ends.source.binding(), tiles).ok());
  ends.source.write({0, "v", 2, 63, 255}, 0x1234);
  const Status verified = ends.from.verify(chunk, ends.source.binding(), tiles);
  EXPECT_EQ(verified.code(), Code::kCorrupt);
  EXPECT_THAT(verified.error().detail, HasSubstr("layer 10, part v, head 2, tokens [0, 256)"));
}

TEST(InPlace, ABindingThatIsTooSmallIsRefused) {
  Ends ends("openvino:f16", {}, {0, 300});
  std::array<std::byte, kSectionAlign> pads{};
  BodyRuns runs;
  ends.target.binding().blocks.front() = 10'000;
  EXPECT_EQ(ends.to.runs(ends.plan().chunk(0), ends.target.binding(), pads, runs).code(),
            Code::kInvalidArgument);
}

TEST(InPlace, OtherNumbersOtherOrdersAndShortRunsArePacked) {
  const TestGeometry geometry{.heads = 4};
  const kv::Descriptor f16 = test_descriptor("openvino:f16", geometry);
  const auto is_shown = [&](const kv::Descriptor& source, const kv::Descriptor& target, bool at_source) {
    const auto plan = std::make_shared<const Plan>(
        Plan::make(source, target, test_verdict(source, target), {0, 256}).value());
    const kv::Descriptor& end = at_source ? source : target;
    TestMemory memory(end, 0, 0, {0, 256});
    std::array<std::byte, kSectionAlign> pads{};
    BodyRuns runs;
    return InPlace::make(plan, end).value().runs(plan->chunk(0), memory.binding(), pads, runs).value();
  };
  EXPECT_TRUE(is_shown(f16, f16, true));
  const kv::Descriptor u8 = test_descriptor("openvino:u8", geometry);
  EXPECT_TRUE(is_shown(f16, u8, true)) << "the wire has the source's numbers";
  EXPECT_FALSE(is_shown(f16, u8, false));
  const kv::Descriptor transposed = test_descriptor("llamacpp:f16_v_transposed", geometry);
  EXPECT_FALSE(is_shown(transposed, f16, true));
  EXPECT_TRUE(is_shown(transposed, f16, false));
  const kv::Descriptor rows = test_descriptor("llamacpp:f16", geometry);
  EXPECT_FALSE(is_shown(rows, f16, true)) << "rows of 128 bytes";
}

}  // namespace
}  // namespace isthmus::transform
