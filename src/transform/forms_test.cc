// SPDX-License-Identifier: Apache-2.0
// Every storage of the embedded engines to every other one, against formulas written out in test_numbers.cc;
// and what is caught if one end is mistaken about its numbers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/catalogue.h"
#include "transform/program.h"
#include "transform/rows.h"
#include "transform/test_numbers.h"
#include "transform/test_ranks.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

kv::WireComponent numbers_of(const kv::Descriptor& descriptor, std::size_t component) {
  return {descriptor.representation[0].forms[component],
          descriptor.groups[0].components[component].value_transforms};
}

// All stored elements of one component and head of the only layer.
TestCodes read_codes(const TestMemory& memory, const kv::DecodeForm& form, std::uint32_t dim,
                     std::uint32_t head, kv::TokenRange tokens) {
  TestCodes out;
  for (std::uint64_t position = tokens.begin; position < tokens.end; ++position) {
    for (std::uint32_t unit = 0; unit < dim; ++unit) {
      out.codes.push_back(memory.read({0, form.component, head, unit, position}));
    }
    const bool has_scale =
        form.operation != kv::DecodeOperation::kPlain && position % form.granule_tokens == 0;
    for (std::uint32_t unit = 0; has_scale && unit < dim / form.granule_dim; ++unit) {
      out.scales.push_back(memory.read({0, form.component + ".s", head, unit, position}));
      if (form.operation != kv::DecodeOperation::kScaledZeroPoint) continue;
      out.zeros.push_back(memory.read({0, form.component + ".z", head, unit, position}));
    }
  }
  return out;
}

void write_codes(TestMemory& memory, const kv::DecodeForm& form, std::uint32_t dim, std::uint32_t head,
                 kv::TokenRange tokens, const TestCodes& codes) {
  for (std::size_t i = 0; i < codes.codes.size(); ++i) {
    memory.write({0, form.component, head, static_cast<std::uint32_t>(i % dim), tokens.begin + i / dim},
                 codes.codes[i]);
  }
  const auto side = [&](const char* suffix, const std::vector<std::uint32_t>& values) {
    const std::uint32_t units = form.operation == kv::DecodeOperation::kPlain ? 1 : dim / form.granule_dim;
    for (std::size_t i = 0; i < values.size(); ++i) {
      memory.write({0, form.component + suffix, head, static_cast<std::uint32_t>(i % units),
                    tokens.begin + i / units * form.granule_tokens},
                   values[i]);
    }
  };
  side(".s", codes.scales);
  side(".z", codes.zeros);
}

// Packs, places and verifies everything of `plan` between two memories of one rank.
class Transfer {
 public:
  Transfer(const kv::Descriptor& source, const kv::Descriptor& target, const kv::Verdict& verdict,
           kv::TokenRange tokens)
      : plan_(std::make_shared<const Plan>(Plan::make(source, target, verdict, tokens).value())),
        packer_(Packer::make(plan_, source).value()),
        placer_(Placer::make(plan_, target).value()) {}

  Status run(TestMemory& from, TestMemory& to) {
    for (const Chunk& chunk : plan_->chunks()) {
      std::vector<std::byte> body(chunk.body_bytes, std::byte{0x77});
      std::vector<Digest128> tiles(chunk.tile_count()), stored(placer_.stored_count(chunk));
      ISTHMUS_TRY(packer_.pack(chunk, from.binding(), body, tiles));
      ISTHMUS_TRY(placer_.place(chunk, body, tiles, to.binding(), stored));
      kept_.emplace_back(std::move(tiles), std::move(stored));
    }
    return verify(to);
  }
  Status verify(TestMemory& to) {
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      ISTHMUS_TRY(placer_.verify(plan_->chunk(static_cast<std::uint32_t>(i)), to.binding(), kept_[i].first,
                                 kept_[i].second));
    }
    return ok_status();
  }
  const Plan& plan() const { return *plan_; }

 private:
  std::shared_ptr<const Plan> plan_;
  Packer packer_;
  Placer placer_;
  std::vector<std::pair<std::vector<Digest128>, std::vector<Digest128>>> kept_;
};

struct Case {
  std::uint32_t dim;
  kv::TokenRange tokens;
};
// Numbers of tokens 1, 2, 31 to 33, 255 to 257, 600, at and across blocks and tiles; group anchors every 32.
constexpr std::array<Case, 10> kCases{{{64, {0, 1}},
                                       {128, {32, 34}},
                                       {64, {0, 31}},
                                       {128, {64, 96}},
                                       {64, {224, 257}},
                                       {128, {0, 33}},
                                       {64, {256, 511}},
                                       {64, {0, 256}},
                                       {128, {32, 289}},
                                       {64, {96, 696}}}};

std::vector<std::string> storages() {
  std::vector<std::string> names;
  for (const kv::Storage& storage : kv::catalogue()) {
    if (storage.engine == "llamacpp" || storage.engine == "openvino") names.push_back(storage.name);
  }
  for (const char* name : {"vllm:cpu_vec", "vllm:cpu_amx", "vllm:i8_scales_apart"}) names.emplace_back(name);
  return names;
}

// As stored after rope in this pairing.
kv::Descriptor with_rope(kv::Descriptor descriptor, const char* pairing) {
  std::vector<std::string>& transforms = descriptor.groups[0].components[0].value_transforms;
  transforms.insert(transforms.begin(), pairing);
  return descriptor;
}

class EverySource : public testing::TestWithParam<std::string> {
 protected:
  static void expect_arrival(const kv::Descriptor& source, TestMemory& from,
                             const std::vector<std::vector<TestCodes>>& stored, const kv::Descriptor& target,
                             kv::TokenRange tokens) {
    const kv::Verdict verdict = test_verdict(source, target);
    ASSERT_NE(verdict.kind, kv::VerdictKind::kReject) << verdict.rejects.front().text;
    TestMemory to(target, 0, tokens.begin, tokens), expected = to;
    const Status done = Transfer(source, target, verdict, tokens).run(from, to);
    ASSERT_TRUE(done.ok()) << done.error().text();
    for (std::size_t c = 0; c < 2; ++c) {
      const kv::WireComponent ours = numbers_of(source, c), theirs = numbers_of(target, c);
      const std::uint32_t dim = source.groups[0].components[c].dim;
      for (std::uint32_t head = 0; head < 3; ++head) {
        write_codes(expected, theirs.form, dim, head, tokens, converted(ours, theirs, dim, stored[c][head]));
      }
    }
    ASSERT_EQ(to.bytes(), expected.bytes());
  }
};

TEST_P(EverySource, ArrivesInEveryTargetBitForBitAndTouchesNothingElse) {
  for (std::size_t i = 0; i < kCases.size(); ++i) {
    const auto& [dim, tokens] = kCases.at(i);
    const TestGeometry geometry{.layers = 1, .heads = 3, .dim = dim};
    // Every third case crosses from one pairing to the other too.
    const kv::Descriptor source =
        with_rope(test_descriptor(GetParam(), geometry), i % 3 == 1 ? "rope:halves" : "rope:interleaved");
    TestMemory from(source, 0, tokens.begin, tokens);
    from.fill(tokens);
    std::vector<std::vector<TestCodes>> stored(2);
    for (std::size_t c = 0; c < 2; ++c) {
      for (std::uint32_t head = 0; head < 3; ++head) {
        stored[c].push_back(read_codes(from, numbers_of(source, c).form, dim, head, tokens));
      }
    }
    for (const std::string& name : storages()) {
      SCOPED_TRACE(fmt::format("to {}, dim {}, tokens [{}, {})", name, dim, tokens.begin, tokens.end));
      // No engine here takes what it would have to be made by; as a source it is read like all others.
      if (name == "vllm:i8_scales_apart") continue;
      expect_arrival(source, from, stored, with_rope(test_descriptor(name, geometry), "rope:interleaved"),
                     tokens);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Catalogue, EverySource, testing::ValuesIn(storages()), [](const auto& each) {
  std::string name = each.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// The kernels' own answers must be those of the verdict's table.
TEST(EveryStorage, VerdictAndKernelsAgreeOnWhatCanBeReadAndMade) {
  for (const kv::Storage& storage : kv::catalogue()) {
    for (const kv::DecodeForm& unsized_form : storage.forms) {
      kv::DecodeForm form = unsized_form;
      const std::uint32_t dim = 128;
      if (form.operation != kv::DecodeOperation::kPlain && form.granule_dim == 0) form.granule_dim = dim;
      const kv::DecodeForm f32{.component = form.component, .codes = kv::Format::kF32, .recipe = ""};
      if (form.same_form(f32)) continue;
      EXPECT_EQ(kv::implemented(form, f32, {}, dim).ok(), can_decode(form, dim).ok()) << form.text();
      EXPECT_EQ(kv::implemented(f32, form, {}, dim).ok(), can_encode(form, dim).ok()) << form.text();
    }
  }
}

constexpr TestGeometry kSmall{.layers = 1, .heads = 3, .dim = 64};

TEST(TokenGroups, ABindingWhoseBlocksBeginElsewhereIsRefused) {
  const kv::Descriptor channel = test_descriptor("openvino:u8_channel", kSmall);
  const kv::TokenRange tokens{32, 96};
  const auto plan = std::make_shared<const Plan>(
      Plan::make(channel, channel, test_verdict(channel, channel), tokens).value());
  TestMemory memory(channel, 0, 16, tokens);
  const Chunk chunk = plan->chunk(0);
  std::vector<std::byte> body(chunk.body_bytes);
  std::vector<Digest128> tiles(chunk.tile_count());
  const Status packed = Packer::make(plan, channel)->pack(chunk, memory.binding(), body, tiles);
  ASSERT_EQ(packed.code(), Code::kInvalidArgument);
  EXPECT_THAT(packed.error().detail,
              HasSubstr("slot 16 of its block and doesn't begin a group of 32 tokens"));
}

TEST(TokenGroups, BlocksThatCutThemAreRefused) {
  kv::Descriptor channel = test_descriptor("openvino:u8_channel", kSmall);
  const kv::TokenRange tokens{0, 64};
  const auto plan = std::make_shared<const Plan>(
      Plan::make(channel, channel, test_verdict(channel, channel), tokens).value());
  channel.representation[0].block_tokens = 48;
  EXPECT_EQ(Packer::make(plan, channel).code(), Code::kInvalidArgument);
}

TEST(TokenGroups, SectionsHaveOneRowOfScalesAGroup) {
  const kv::Descriptor channel = test_descriptor("openvino:u8_channel", kSmall);
  const Plan plan = Plan::make(channel, channel, test_verdict(channel, channel), {256, 300}).value();
  const std::span<const Section> sections = plan.chunk(0).sections;
  ASSERT_EQ(sections[1].part, "k.s");
  EXPECT_EQ(sections[0].head_bytes, 44U * 64);
  EXPECT_EQ(sections[1].head_bytes, 2U * 64 * 4);  // 44 tokens are two groups.
  EXPECT_EQ(sections[1].bytes, 3U * 2 * 64 * 4);
}

// The source believes something wrong about its own memory: either the verdict refuses, or what arrives isn't
// what its numbers truly are, which the start-up probe measures.
struct Mistake {
  std::string name;
  std::string source, target;
  std::function<void(kv::Descriptor&)> apply;
  std::string refused_by;  // A path of the verdict; "" if only the values can tell.
};

void replace(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

std::vector<Mistake> mistakes() {
  return {
      {"K and V are swapped", "llamacpp:f16", "openvino:u8",
       [](kv::Descriptor& d) {
         for (char& c : d.representation[0].layout_text) c = c == 'K' ? 'V' : c == 'V' ? 'K' : c;
       },
       ""},
      {"the rotation isn't known", "llamacpp:q8_0", "openvino:u8",
       [](kv::Descriptor& d) {
         for (kv::Component& c : d.groups[0].components) std::erase(c.value_transforms, "hadamard:64");
       },
       ""},
      {"halves are read as interleaved", "llamacpp:f16", "openvino:f32",
       [](kv::Descriptor& d) { d.groups[0].components[0].value_transforms = {"rope:halves"}; }, ""},
      {"K before its rotation", "llamacpp:f16", "openvino:f32",
       [](kv::Descriptor& d) { d.groups[0].components[0].value_transforms = {}; },
       "groups.0.geometry.component.k.transforms"},
      {"nibbles lie the other way round", "llamacpp:q8_0_v_q4_0", "openvino:f32",
       [](kv::Descriptor& d) {
         replace(d.representation[0].layout_text, "dim%16 dim/16%2 v", "dim%16 ~dim/16%2 v");
       },
       ""},
      {"scales are those of another head", "vllm:i8_scales_apart", "openvino:f32",
       [](kv::Descriptor& d) { replace(d.representation[0].layout_text, "head k.s", "~head k.s"); }, ""},
  };
}

TEST(Mistakes, AreSeenByTheVerdictOrByTheValues) {
  const kv::TokenRange tokens{0, 40};
  for (const Mistake& mistake : mistakes()) {
    SCOPED_TRACE(mistake.name);
    const kv::Descriptor truth = with_rope(test_descriptor(mistake.source, kSmall), "rope:interleaved");
    const kv::Descriptor target = with_rope(test_descriptor(mistake.target, kSmall), "rope:interleaved");
    kv::Descriptor lie = truth;
    mistake.apply(lie);
    const kv::Verdict verdict = test_verdict(lie, target);
    if (!mistake.refused_by.empty()) {
      ASSERT_EQ(verdict.kind, kv::VerdictKind::kReject);
      EXPECT_EQ(verdict.rejects.front().path, mistake.refused_by);
      continue;
    }
    ASSERT_NE(verdict.kind, kv::VerdictKind::kReject) << verdict.rejects.front().text;
    TestMemory from(truth, 0, 0, tokens), to(target, 0, 0, tokens);
    from.fill(tokens);
    ASSERT_TRUE(Transfer(lie, target, verdict, tokens).run(from, to).ok());
    const kv::WireComponent ours = numbers_of(truth, 0), theirs = numbers_of(target, 0);
    const kv::WireComponent our_v = numbers_of(truth, 1), their_v = numbers_of(target, 1);
    const auto is_right = [&](const kv::WireComponent& at_source, const kv::WireComponent& at_target) {
      const TestCodes stored = read_codes(from, at_source.form, 64, 0, tokens);
      const TestCodes placed = read_codes(to, at_target.form, 64, 0, tokens);
      return placed.codes == converted(at_source, at_target, 64, stored).codes;
    };
    EXPECT_FALSE(is_right(ours, theirs) && is_right(our_v, their_v));
  }
}

TEST(Mistakes, ADamagedScaleOrCodeOfAnyLossyTargetIsSeenByItsDigest) {
  const kv::TokenRange tokens{0, 300};
  const kv::Descriptor source = test_descriptor("llamacpp:q8_0", kSmall);
  for (const char* name : {"openvino:u8", "openvino:u8_channel", "openvino:u4", "llamacpp:q8_0_v_q4_0",
                           "openvino:f32", "llamacpp:f16_v_transposed"}) {
    const kv::Descriptor target = test_descriptor(name, kSmall);
    TestMemory from(source, 0, 0, tokens), to(target, 0, 0, tokens);
    from.fill(tokens);
    Transfer transfer(source, target, test_verdict(source, target), tokens);
    ASSERT_TRUE(transfer.run(from, to).ok());
    for (const kv::PartLayout& part : to.layout().parts()) {
      const TestElement element{0, part.part, 2, to.units(part) - 1, 288};
      const std::uint32_t before = to.read(element);
      to.write(element, before ^ 1);
      const Status seen = transfer.verify(to);
      EXPECT_EQ(seen.code(), Code::kCorrupt) << name << " " << part.part;
      to.write(element, before);
    }
    EXPECT_TRUE(transfer.verify(to).ok());
  }
}

}  // namespace
}  // namespace isthmus::transform
