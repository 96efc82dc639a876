// SPDX-License-Identifier: Apache-2.0
// Mistakes that would make a plausible but wrong state, planted one at a time: each is caught by the verdict,
// the plan's proof, the tables' check or a digest, and the test says by which.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transform/program.h"
#include "transform/ranks.h"
#include "transform/test_ranks.h"
#include "transform/test_state.h"

namespace isthmus::transform {
namespace {

using testing::HasSubstr;

struct Catch {
  std::string by;  // "verdict", "proof", "tables", "tile digest", "read-back"; "" if nothing did.
  std::string text;
};

// One rank to one rank, with a hook at each place where a mistake can be made.
struct Crossing {
  kv::Descriptor source, target;
  kv::TokenRange tokens{0, 300};
  std::function<void(Product&)> on_product;
  std::function<void(const Chunk&, std::span<std::byte>)> on_body;
  std::function<void(kv::Binding&)> on_table;   // Before a byte is placed.
  std::function<void(kv::Binding&)> on_placed;  // What is read back, and hence what the engine would read.
  bool drops_last_chunk = false;
  bool would_copy_bits = false;  // The mistake takes the codes for equal: a verdict that converts catches it.

  Catch run() const {
    kv::Policy policy;
    policy.exactness = kv::Exactness::kUnqualified;
    const kv::Verdict verdict = kv::negotiate(source, target, policy);
    if (verdict.kind == kv::VerdictKind::kReject) return {"verdict", verdict.rejects.front().text};
    if (would_copy_bits && !verdict.conversions.empty()) {
      const kv::Reason& reason = verdict.conversions.front();
      return {"verdict", fmt::format("{}: {} is converted to {}", reason.path, reason.source, reason.target)};
    }
    auto plan = Plan::make(source, target, verdict, tokens);
    if (!plan.ok()) return {"proof", plan.error().detail};
    if (on_product) {
      Product product = plan->product();
      on_product(product);
      const Status proof = prove(product, source, target, tokens);
      return proof.ok() ? Catch{} : Catch{"proof", proof.error().detail};
    }
    return move(std::make_shared<const Plan>(*std::move(plan)));
  }

 private:
  Catch move(const std::shared_ptr<const Plan>& plan) const {
    TestRanks from(source, 0, tokens, 1), to(target, 0, tokens, 2);
    write_state(source, target, plan->product(), {3}, &from, nullptr);
    kv::Binding binding = to.memory()[0].groups[0];
    if (on_table) on_table(binding);
    if (const Status distinct = check_blocks(binding); !distinct.ok())
      return {"tables", distinct.error().detail};
    Packer packer = Packer::make(plan, source).value();
    Placer placer = Placer::make(plan, target).value();
    kv::Binding read = binding;
    if (on_placed) on_placed(read);
    for (const Chunk& chunk : plan->chunks()) {
      std::vector<std::byte> body(chunk.body_bytes);
      std::vector<Digest128> tiles(chunk.tile_count()), stored(placer.stored_count(chunk));
      const Status packed = packer.pack(chunk, from.memory()[0].groups[0], body, tiles);
      EXPECT_TRUE(packed.ok());
      if (on_body) on_body(chunk, body);
      const bool is_dropped = drops_last_chunk && chunk.index + 1 == plan->chunk_count();
      if (!is_dropped) {
        const Status placed = placer.place(chunk, body, tiles, binding, stored);
        if (!placed.ok())
          return {placed.code() == Code::kCorrupt ? "tile digest" : "tables", placed.error().detail};
      }
      const Status verified = placer.verify(chunk, read, tiles, stored, body);
      if (verified.ok()) continue;
      const std::string& why = verified.error().detail;
      return {why.find("the body") == std::string::npos ? "read-back" : "tile digest", why};
    }
    return {};
  }
};

kv::Descriptor describe(const char* storage) {
  return test_descriptor(storage, {.layers = 2, .heads = 4, .dim = 64});
}

Crossing plain() {
  Crossing crossing;
  crossing.source = describe("vllm:flash_nhd");
  crossing.target = describe("vllm:flash_hnd");
  return crossing;
}

struct Fault {
  const char* name;
  const char* caught_by;
  const char* says;  // Part of what the catcher says.
  std::function<Crossing()> plant;
};

void swap_sections(const Chunk& chunk, std::span<std::byte> body) {
  // k and v of the first layer have one size.
  const Section &k = chunk.sections[0], &v = chunk.sections[1];
  std::swap_ranges(body.begin() + static_cast<std::ptrdiff_t>(k.offset),
                   body.begin() + static_cast<std::ptrdiff_t>(k.offset + k.bytes),
                   body.begin() + static_cast<std::ptrdiff_t>(v.offset));
}

void shift_heads(const Chunk& chunk, std::span<std::byte> body) {
  const Section& k = chunk.sections[0];
  const auto section = body.subspan(k.offset, k.bytes);
  std::rotate(section.begin(), section.begin() + static_cast<std::ptrdiff_t>(k.head_bytes), section.end());
}

// Codes of one format read as another's: bits stay, numbers change.
kv::Descriptor with_codes(const char* storage, kv::Format codes) {
  kv::Descriptor made = describe(storage);
  for (kv::DecodeForm& form : made.representation[0].forms) form.codes = codes;
  std::string& layout = made.representation[0].layout_text;
  for (std::size_t at = 0; (at = layout.find(":bf16", at)) != std::string::npos; ++at)
    layout.replace(at, 5, fmt::format(":{}", kv::name(codes)));
  return made;
}

// Of the numbers: what the codes mean, and which bytes they are.
std::vector<Fault> faults_of_numbers() {
  return {
      {"K and V swapped in what crosses", "tile digest", "part k",
       [] {
         Crossing crossing = plain();
         crossing.on_body = swap_sections;
         return crossing;
       }},
      {"K and V swapped where the target reads", "read-back", "part k",
       [] {
         Crossing crossing = plain();
         crossing.on_placed = [](kv::Binding& binding) {
           for (kv::RegionMemory& memory : binding.memory) memory.region = memory.region == "K" ? "V" : "K";
         };
         return crossing;
       }},
      {"e4m3fn read as e4m3fnuz", "verdict", "e4m3fn",
       [] {
         Crossing crossing;
         crossing.source = with_codes("vllm:flash_nhd", kv::Format::kE4m3fn);
         crossing.target = with_codes("vllm:flash_hnd", kv::Format::kE4m3fnuz);
         crossing.would_copy_bits = true;
         return crossing;
       }},
      {"one pairing of rotated elements taken for the other", "verdict",
       "rope:halves is converted to rope:interleaved",
       [] {
         Crossing crossing = plain();
         crossing.source.groups[0].components[0].value_transforms = {"rope:halves"};
         crossing.target.groups[0].components[0].value_transforms = {"rope:interleaved"};
         crossing.would_copy_bits = true;
         return crossing;
       }},
      {"K stored before its rotation at one end", "verdict",
       "rotates values that the other end stores unrotated",
       [] {
         Crossing crossing = plain();
         crossing.source.groups[0].components[0].value_transforms = {"rope:halves"};
         return crossing;
       }},
  };
}

// Of places: heads, blocks, copies.
std::vector<Fault> faults_of_places() {
  return {
      {"off by one head", "tile digest", "head 0",
       [] {
         Crossing crossing = plain();
         crossing.on_body = shift_heads;
         return crossing;
       }},
      {"off by one block", "read-back", "tokens [0, 256)",
       [] {
         Crossing crossing = plain();
         crossing.on_placed = [](kv::Binding& binding) {
           std::rotate(binding.blocks.begin(), binding.blocks.begin() + 1, binding.blocks.end());
         };
         return crossing;
       }},
      {"a block of the table twice", "tables", "names block",
       [] {
         Crossing crossing = plain();
         crossing.on_table = [](kv::Binding& binding) { binding.blocks[5] = binding.blocks[1]; };
         return crossing;
       }},
      {"scales along the wrong axis", "verdict", "contradicts itself",
       [] {
         Crossing crossing;
         crossing.source = describe("openvino:u8");
         crossing.target = describe("openvino:u8");
         kv::DecodeForm& form = crossing.target.representation[0].forms[0];
         form.granule_dim = 1;  // As by channel, in a layout by token.
         form.granule_tokens = 32;
         return crossing;
       }},
      {"the tail block dropped from the plan", "proof", "no tile covers tokens [256, 300)",
       [] {
         Crossing crossing = plain();
         crossing.on_product = [](Product& product) { product.tiles.pop_back(); };
         return crossing;
       }},
      {"the tail block dropped on the way", "read-back", "tokens [256, 300)",
       [] {
         Crossing crossing = plain();
         crossing.drops_last_chunk = true;
         return crossing;
       }},
      {"a head written twice", "proof", "heads [3, 2) is covered twice",
       [] {
         Crossing crossing = plain();
         crossing.on_product = [](Product& product) { product.groups[0].heads = {0, 3, 2, 4}; };
         return crossing;
       }},
      {"a copy of heads written in part", "proof", "isn't inside one rank of the target",
       [] {
         Crossing crossing = plain();
         EXPECT_TRUE(split_ranks(crossing.target, {3, 1}).ok());
         crossing.on_product = [](Product& product) { product.groups[0].heads = {0, 4}; };
         return crossing;
       }},
      {"a group of tokens with one scale cut", "proof", "shares a scale among 32 tokens",
       [] {
         Crossing crossing;
         crossing.source = crossing.target = describe("openvino:u8_channel");
         crossing.tokens = {16, 300};
         return crossing;
       }},
  };
}

TEST(Planted, NothingIsCaughtWhereNothingIsWrong) {
  const Catch caught = plain().run();
  EXPECT_EQ(caught.by, "") << caught.text;
}

TEST(Planted, EachMistakeIsCaught) {
  std::vector<Fault> faults = faults_of_numbers();
  std::ranges::move(faults_of_places(), std::back_inserter(faults));
  for (const Fault& fault : faults) {
    const Catch caught = fault.plant().run();
    fmt::print("  {:52} {:12} {}\n", fault.name, caught.by.empty() ? "NOTHING" : caught.by, caught.text);
    EXPECT_EQ(caught.by, fault.caught_by) << fault.name << ": " << caught.text;
    EXPECT_THAT(caught.text, HasSubstr(fault.says)) << fault.name;
  }
}

// Here both ends are right, and what would be wrong is to copy bits: the verdict says that elements must
// move.
TEST(Planted, PairingsThatDifferAreConvertedNotCopied) {
  Crossing crossing = plain();
  crossing.source.groups[0].components[0].value_transforms = {"rope:halves"};
  crossing.target.groups[0].components[0].value_transforms = {"rope:interleaved"};
  const kv::Verdict verdict = kv::negotiate(crossing.source, crossing.target, {});
  ASSERT_EQ(verdict.kind, kv::VerdictKind::kRedistributeConvert);
  EXPECT_EQ(verdict.conversions.front().path, "groups.0.geometry.component.k.transforms");
  const auto plan = std::make_shared<const Plan>(
      Plan::make(crossing.source, crossing.target, verdict, crossing.tokens).value());
  TestRanks from(crossing.source, 0, crossing.tokens, 1), to(crossing.target, 0, crossing.tokens, 2);
  TestRanks expected(crossing.target, 0, crossing.tokens, 2), copied(crossing.target, 0, crossing.tokens, 2);
  write_state(crossing.source, crossing.target, plan->product(), {3}, &from, &expected);
  write_state(crossing.target, crossing.target, plan->product(), {3}, nullptr,
              &copied);  // The same bits, unmoved.
  ASSERT_TRUE(redistribute({.plan = plan,
                            .source = crossing.source,
                            .target = crossing.target,
                            .from = from.memory(),
                            .to = to.memory()})
                  .ok());
  EXPECT_EQ(to.bytes(), expected.bytes());
  EXPECT_NE(to.bytes(), copied.bytes());
}

}  // namespace
}  // namespace isthmus::transform
