// SPDX-License-Identifier: Apache-2.0
// The notation: equal storages have equal text, and each wrong text has an error that names what is wrong.
#include "kv/layout.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/layout_text.h"
#include "kv/sample.h"

namespace isthmus::kv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// 2 layers, blocks of 32, 3 heads of 64.
LayoutExtents extents(std::vector<std::string> components = {"k"}) {
  LayoutExtents out{.layers = 2, .block_tokens = 32, .components = {}, .parameters = {{"x", 8}}};
  for (const std::string& component : components) out.components[component] = {.heads = 3, .dim = 64};
  return out;
}

std::string canonical(const std::string& text, const LayoutExtents& at = extents()) {
  const auto layout = Layout::parse(text, at);
  return layout.ok() ? layout->canonical_text() : layout.error().text();
}

std::string k_region(const std::string& node) {
  return "region K per layer = " + node;
}

TEST(Layout, CanonicalTextIsAsTheSpecificationShows) {
  EXPECT_EQ(canonical(k_region("tok head dim k:f16")),
            "k f16 region=K start=0 tok/1:3072 head/1%3:1024 dim/1%64:16\n");
  EXPECT_EQ(canonical(k_region("head tok dim k:f16")),
            "k f16 region=K start=0 tok/1:1024 head/1%3:1024.open dim/1%64:16\n");
}

TEST(Layout, EqualStoragesHaveEqualTextHoweverTheyAreWritten) {
  const std::vector<std::vector<std::string>> classes{
      {"blk slot head dim k:f16", "blk slot hd k:f16", "blk slot head dim/8 dim%8 k:f16",
       "blk slot hd/16 hd%16 k:f16", "blk slot/4 slot%4 head dim k:f16", "blk slot head dim/x dim%x k:f16",
       "blk { slot head dim k:f16 }", "blk@12288 slot@384 head@128 dim@2 k:f16",
       "blk slot { head { dim k:f16 } }", "blk slot head dim/5%13 dim%5 k:f16", "blk slot hd/64 hd%64 k:f16"},
      {"blk slot head dim/32 { k.s:f16 ; dim%32 k:i8 }", "blk slot hd/32 { k.s:f16 ; hd%32 k:i8 }"},
      {"blk head dim/8 slot dim%8 k:f16", "blk hd/8 slot hd%8 k:f16"},
      {"blk slot { head dim k:u8 ; head k.s:f32 ; align 64 }",
       "blk slot { head dim k:u8 ; head k.s:f32 ; pad 52 }", "blk slot@256 { head dim k:u8 ; head k.s:f32 }"},
  };
  for (const auto& forms : classes) {
    // dim/5%13 rounds up to 65 elements: the padding shows in the outer strides, so that one isn't equal.
    for (const std::string& form : forms) {
      const bool is_padded = form.find("%13") != std::string::npos;
      EXPECT_EQ(canonical(k_region(form)) == canonical(k_region(forms.front())), !is_padded)
          << form << "\n"
          << canonical(k_region(form)) << canonical(k_region(forms.front()));
    }
  }
}

TEST(Layout, UnlikeStoragesHaveUnlikeText) {
  const std::vector<std::string> texts{"blk slot head dim k:f16",
                                       "blk head slot dim k:f16",
                                       "tok head dim k:f16",
                                       "blk slot head dim k:bf16",
                                       "blk slot head dim k:f32",
                                       "blk slot head ~dim k:f16",
                                       "blk@65536 slot head dim k:f16",
                                       "blk { pad 8 ; slot head dim k:f16 }",
                                       "blk slot head dim%8 dim/8 k:f16"};
  std::vector<std::string> seen;
  for (const std::string& text : texts) {
    const std::string now = canonical(k_region(text));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), now), 0) << text;
    EXPECT_THAT(now, HasSubstr("region=K")) << text;
    seen.push_back(now);
  }
}

TEST(Layout, AxesOfExtentOneLeaveNoTrace) {
  LayoutExtents one = extents();
  one.components["k"].heads = 1;
  EXPECT_EQ(canonical(k_region("blk head slot dim k:f16"), one),
            canonical(k_region("blk slot head dim k:f16"), one));
  EXPECT_EQ(canonical(k_region("blk slot dim k:f16"), one),
            canonical(k_region("blk slot head dim k:f16"), one));
}

TEST(Layout, DescendingDigitsStartAtTheirEnd) {
  const auto layout = Layout::parse(k_region("blk head slot dim/2 ~dim%2 k:u4"), extents());
  ASSERT_TRUE(layout.ok()) << layout.error().text();
  const PartLayout& k = layout->parts().front();
  EXPECT_EQ(bit_offset(k, {.dim = 0}, 1), 4U);
  EXPECT_EQ(bit_offset(k, {.dim = 1}, 1), 0U);
  EXPECT_EQ(bit_offset(k, {.dim = 2}, 1), 12U);
}

TEST(Layout, ScalesKnowWhatTheyServe) {
  struct Case {
    std::string node;
    std::uint32_t head, dim, token;
  };
  const std::vector<Case> cases{{"blk head slot { k.s:f32 ; dim k:u8 }", 1, 64, 1},
                                {"blk head { dim k.s:f32 ; slot dim k:u8 }", 1, 1, 32},
                                {"blk { k.s:f32 ; head slot dim k:u8 }", 3, 64, 32},
                                {"blk head { slot/8 k.s:f32 ; slot dim k:u8 }", 1, 64, 8},
                                {"blk slot { dim/16 k.s:f32 ; head dim k:u8 }", 3, 16, 1},
                                {"blk slot head { dim/100 k.s:f32 ; dim k:u8 }", 1, 64, 1},
                                {"blk slot head { dim/48 k.s:f32 ; dim k:u8 }", 1, 48, 1}};
  for (const Case& one : cases) {
    const auto layout = Layout::parse(k_region(one.node), extents());
    ASSERT_TRUE(layout.ok()) << layout.error().text();
    const PartLayout& scale = *layout->part("k.s").value();
    EXPECT_EQ(scale.head_granule, one.head) << one.node;
    EXPECT_EQ(scale.dim_granule, one.dim) << one.node;
    EXPECT_EQ(scale.token_granule, one.token) << one.node;
    const PartLayout& codes = *layout->part("k").value();
    EXPECT_EQ(codes.head_granule * codes.dim_granule * codes.token_granule, 1U);
  }
}

TEST(Layout, RegionsKnowTheirOpenAxisAndSize) {
  const auto layout = Layout::parse(
      "region K per layer = tok head dim k:f16\nregion V = layer head dim tok v:f16", extents({"k", "v"}));
  ASSERT_TRUE(layout.ok()) << layout.error().text();
  EXPECT_EQ(layout->region("K").open_axis, Axis::kToken);
  EXPECT_EQ(layout->region("K").open_stride_bits, 3072U);
  EXPECT_TRUE(layout->region("K").per_layer);
  EXPECT_EQ(layout->region("V").open_stride_bits, 0U);
  EXPECT_FALSE(layout->region("V").per_layer);
  EXPECT_EQ(layout->region_bytes("K", 100), 38400U);
  EXPECT_EQ(layout->region_bytes("V", 100), 76800U);
  EXPECT_EQ(layout->region_bytes("V", ~std::uint64_t{0}), ~std::uint64_t{0}) << "saturates";
}

TEST(Layout, EachComponentOfAGroupHasItsOwnRow) {
  LayoutExtents at = extents({"k", "v"});
  at.components["v"].dim = 48;
  EXPECT_EQ(canonical("region KV per layer = blk head slot { dim k:bf16 ; dim v:bf16 }", at),
            "k bf16 region=KV start=0 blk/1:172032 slot/1%32:1792 head/1%3:57344 dim/1%64:16\n"
            "v bf16 region=KV start=1024 blk/1:172032 slot/1%32:1792 head/1%3:57344 dim/1%48:16\n");
  EXPECT_THAT(canonical("region KV per layer = blk head slot dim { k:bf16 ; v:bf16 }", at),
              HasSubstr("dim has extent 64 for k and 48 for v"));
}

struct Wrong {
  std::string text, wanted;
  Code code = Code::kInvalidArgument;
};

void expect_errors(const std::vector<Wrong>& cases) {
  for (const Wrong& one : cases) {
    const auto layout = Layout::parse(one.text, extents());
    ASSERT_FALSE(layout.ok()) << one.text;
    EXPECT_EQ(layout.code(), one.code) << one.text;
    EXPECT_THAT(layout.error().detail, HasSubstr(one.wanted)) << one.text;
  }
}

TEST(Layout, DigitsThatDoNotTileNameThePartAndTheAxis) {
  expect_errors({
      {k_region("blk slot head k:f16"), "part k, axis dim: digits cover 1 of 64"},
      {k_region("blk slot dim k:f16"), "part k, axis head: digits cover 1 of 3"},
      {k_region("blk head dim k:f16"), "part k, axis slot: digits cover 1 of 32"},
      {k_region("blk slot head dim%32 k:f16"), "part k, axis dim: digits cover 32 of 64"},
      {k_region("blk slot head dim/2 k:f16"), "part k, axis dim: digits start at 2, not 1"},
      {k_region("blk slot head dim dim k:f16"),
       "part k, axis dim: digits tile up to 64, then one starts at 1"},
      {k_region("blk slot head dim/8 dim%4 k:f16"),
       "part k, axis dim: digits tile up to 4, then one starts at 8"},
      {k_region("blk slot head dim%128 k:f16"), "part k, axis dim: digits cover 128 but there are only 64"},
      {k_region("blk slot head dim/16 dim%32 k:f16"),
       "part k, axis dim: digits tile up to 32, then one starts at 16"},
      {k_region("blk slot head { dim/2 dim/16%4 k.s:f16 ; dim k:u8 }"), "part k.s, axis dim"},
      {"region K = blk slot head dim k:f16", "part k, axis layer: digits cover 1 of 2"},
      {k_region("blk layer slot head dim k:f16"), "region K: it is per layer, and layer stands in it"},
      {k_region("tok slot head dim k:f16"), "part k, axis slot: a region of rows has no slots"},
      {k_region("blk slot hd/48 hd%48 k:f16"), "part k, axis hd: hd/1%48 crosses rows of 64",
       Code::kUnsupported},
  });
}

TEST(Layout, PartsThatAreWrongAreNamed) {
  expect_errors({
      {k_region("blk slot head { dim k:f16 ; dim k:f16 }"), "part k is placed 2 times"},
      {k_region("blk slot head k.s:f16"), "part k is missing"},
      {k_region("blk slot head { dim k:f16 ; k.z:f16 }"), "part k.s is missing, but k.z is there"},
      {k_region("blk slot head { dim k:f16 ; dim v:f16 }"), "part v: the layer group has no component v"},
      {k_region("blk slot head dim k.x:f16"), "only .s and .z exist"},
      {k_region("blk slot head dim k:q8_0"), "part k: number format \"q8_0\" isn't known",
       Code::kUnsupported},
  });
}

TEST(Layout, SizesThatAreWrongAreShown) {
  expect_errors({
      {k_region("blk slot head { k.s:u4 ; dim k:f16 }"),
       "the member that holds k.s has 4 bits, not whole bytes"},
      {k_region("blk slot@100 head dim k:f16"), "slot@100 is smaller than the 3072 bits that follow"},
      {k_region("blk slot@1099511627776 head@1099511627776 dim k:f16"), "slot@1099511627776 is smaller"},
      {k_region("blk slot head dim/0 k:f16"), "the number after \"/\" is 0"},
      {k_region("blk slot head dim/99999999999999999999 k:f16"), "too large"},
  });
}

TEST(Layout, OpenAxesStandOnceAndPlain) {
  expect_errors({
      {k_region("slot head dim k:f16"), "neither blk nor tok is there"},
      {k_region("head { blk slot dim k:f16 }"), "open axis blk stands inside a group"},
      {k_region("blk tok head dim k:f16"), "open axis blk is the second one"},
      {k_region("blk/2 slot head dim k:f16"), "open axis blk/2 takes neither"},
      {k_region("~tok head dim k:f16"), "open axis ~tok takes neither"},
      {k_region("head@65536 tok dim k:f16"), "head@65536 gives a stride across an open axis"},
      {k_region("~head tok dim k:f16"), "~head stands outside the open axis"},
  });
}

TEST(Layout, TextThatIsNotTheNotationIsPlacedByLineAndColumn) {
  expect_errors({
      {"", "there is no region"},
      {"blk slot head dim k:f16", "line 1 column 4: expected \"region\""},
      {"region K per token = blk k:f16", "expected \"per layer\""},
      {"region K blk k:f16", "expected \"=\""},
      {k_region("blk slot head dim"), "expected an axis, a part or \"{\""},
      {k_region("blk slot head dim k"), "part k: expected \":\""},
      {k_region("blk slot { head dim k:f16"), "expected \";\" or \"}\""},
      {k_region("blk slot { pad 4 }"), "a group holds no part"},
      {k_region("blk slot head dim/y k:f16"), "\"y\" after \"/\" is neither a number nor a parameter"},
      {k_region("blk slot head dim/8x k:f16"), "a number runs into a name"},
      {k_region("blk slot head ~k:f16"), "\"k\" isn't an axis"},
      {k_region("blk slot head dim k:f16 v:f16"), "expected the end of the line"},
      {k_region("blk slot head dim k:f16") + "\n" + k_region("blk slot head dim k:f16"),
       "region K is defined twice"},
      {k_region("{{{{{{{{{{ blk slot head dim k:f16 }}}}}}}}}}"), "groups nest deeper than 8"},
      {std::string(5000, ' '), "longer than 4096"},
  });
}

TEST(Layout, BlocksNeedABlockSize) {
  LayoutExtents rows = extents();
  rows.block_tokens = 0;
  EXPECT_THAT(canonical(k_region("blk slot head dim k:f16"), rows),
              HasSubstr("slot needs a block size, and it is 0"));
  EXPECT_THAT(canonical(k_region("blk head dim k:f16"), rows),
              HasSubstr("blk needs a block size, and it is 0"));
  EXPECT_THAT(canonical(k_region("tok head dim k:f16"), rows), HasSubstr("tok/1"));
}

TEST(Layout, EmptyExtentsAreRefused) {
  LayoutExtents at = extents();
  at.components["k"].heads = 0;
  EXPECT_THAT(canonical(k_region("blk slot head dim k:f16"), at),
              HasSubstr("component k: 0 heads of 64 elements"));
  at = extents();
  at.layers = 0;
  EXPECT_THAT(canonical(k_region("blk slot head dim k:f16"), at), HasSubstr("stores no layer"));
}

TEST(Layout, SizesThatNoMemoryHasAreRefusedBeforeTheyOverflow) {
  LayoutExtents at = extents();
  at.components["k"].dim = 65536;
  EXPECT_THAT(canonical(k_region("blk slot head dim@1099511627776 k:f16"), at),
              HasSubstr("region K: larger than"));
  EXPECT_THAT(canonical(k_region("blk slot head dim%1099511627776 k:f16"), at),
              HasSubstr("there are only 65536"));
  EXPECT_THAT(canonical(k_region("blk slot head dim/1099511627776%1099511627776 dim k:f16"), at),
              HasSubstr("region K: larger than"));
}

TEST(Layout, AskingForAPartThatIsNotThereNamesThoseThatAre) {
  const auto layout = Layout::parse(k_region("blk slot head dim k:f16"), extents());
  EXPECT_THAT(layout->part("v").error().detail, HasSubstr("no part \"v\"; it has k"));
}

// A peer's text may be anything: every truncation and every changed byte gives an error or a layout, never a
// crash.
TEST(Layout, EveryMutationOfATextIsAnErrorOrALayout) {
  const std::string text =
      "region K per layer = blk@65536 head { slot/8 ~dim%2 dim/2 slot%8 k:u4 ; align 64 ; k.s:f16 }";
  int accepted = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    accepted += Layout::parse(text.substr(0, i), extents()).ok() ? 1 : 0;
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = text;
      changed[i] = static_cast<char>(byte);
      accepted += Layout::parse(changed, extents()).ok() ? 1 : 0;
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(LayoutText, BlanksMayEndEveryLine) {
  const std::map<std::string, std::uint64_t> none;
  for (const char* end : {" ", "\t \t", " \n", "\n \n\t"}) {
    const auto parsed = parse_layout_text(std::string("region K = tok dim k:f16") + end, none);
    EXPECT_TRUE(parsed.ok()) << parsed.error().text();
  }
}

// Every byte of a text replaced or cut off: an error, or a layout that reads the same from its own text.
TEST(LayoutText, DamageGivesAnErrorOrALayoutThatStays) {
  for (const std::string& text :
       {k_region("blk head { k.s:f32 ; k.z:f32 ; align 64 ; slot dim/2 ~dim%2 k:u4 ; pad 8 }"),
        k_region("blk@32768 { slot/16 hd/x slot%16 hd%x k:bf16 }"),
        std::string("region K = blk layer head\tslot dim k:f16\n")}) {
    ASSERT_TRUE(Layout::parse(text, extents()).ok()) << Layout::parse(text, extents()).error().text();
    const auto check = [](const std::string& damaged) {
      const auto layout = Layout::parse(damaged, extents());
      if (!layout.ok()) {
        EXPECT_FALSE(layout.error().detail.empty());
        return;
      }
      EXPECT_EQ(Layout::parse(layout->source_text(), extents())->canonical_text(), layout->canonical_text());
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
      check(text.substr(0, i));
      std::string damaged = text;
      for (int value = 0; value < 256; ++value) {
        damaged[i] = static_cast<char>(value);
        check(damaged);
      }
    }
  }
}

// A text that costs as much as one of `size` bytes can.
std::string repeated(std::string_view head, std::string_view unit, std::string_view tail, std::size_t size) {
  std::string text(head);
  while (text.size() + unit.size() + tail.size() <= size) text += unit;
  return text + std::string(tail);
}

// What parsing looks at is bounded by a small multiple of the text's length, whatever the text.
TEST(LayoutText, StepsGrowNoFasterThanTheText) {
  const std::map<std::string, std::uint64_t> none;
  struct Shape {
    std::string_view head, unit, tail;
    bool is_valid;
  };
  const std::vector<Shape> shapes{
      {"region K = tok", " ", "dim k:f16", true},
      {"region K = tok dim k:f16", "\n", "", true},
      {"region K = tok dim k:f16", " \t", "", true},
      {"region K = tok { dim k:f16", " ; pad 1", " }", false},  // More than 32 members from some size on.
      {"region ", "K", " = tok dim k:f16", true},
      {"region K = tok ", "d", ":f16", true},
      {"region K = ", "{", "", false},
      {"region K = tok ", "dim%2 ", "k:f16", false},
      {"region K = tok ", "~", "", false},
      {"region K = tok dim/", "1", " k:f16", false},
      {"", "region K = tok dim k:f16\n", "", false},
      {"", "region per ", "", false},
      {"region K = tok { ", "{ k:f16 ; ", "}", false},
      {"region K = tok { ", "k:u4;", "k:u4 }", false},
  };
  for (const Shape& shape : shapes) {
    for (const std::size_t size : {64U, 128U, 256U, 512U, 1024U, 2048U, 4096U}) {
      const std::string text = repeated(shape.head, shape.unit, shape.tail, size);
      const auto parsed = parse_layout_text(text, none);
      if (parsed.ok()) EXPECT_LE(parsed->steps, 8 * text.size()) << shape.unit << " " << size;
      if (shape.is_valid) EXPECT_TRUE(parsed.ok()) << parsed.error().text();
      if (!parsed.ok()) EXPECT_THAT(parsed.error().detail, Not(HasSubstr("steps"))) << shape.unit;
    }
  }
}

TEST(LayoutText, PartsAreBounded) {
  std::string text = "region K = tok { k:u8";
  for (int i = 0; i < 31; ++i) text += fmt::format(" ; c{}:u8", i);
  EXPECT_TRUE(parse_layout_text(text + " }", {}).ok());
  EXPECT_THAT(parse_layout_text(text + " }\nregion V = tok v:u8", {}).error().detail,
              HasSubstr("more than 32 parts"));
}

// Lowest and highest bit that a part reaches with three blocks or rows, in arithmetic that can't wrap.
std::pair<__int128, __int128> reach_of(const PartLayout& part) {
  constexpr __int128 kOpen = 3;
  __int128 lowest = part.start_bits, highest = lowest + bits(part.format);
  for (const Digit& digit : part.digits) {
    const __int128 extent = digit.mod == 0 ? kOpen : static_cast<__int128>(digit.mod);
    const __int128 reach = (extent - 1) * digit.stride_bits * (digit.open ? kOpen : 1);
    (reach < 0 ? lowest : highest) += reach;
  }
  return {lowest, highest};
}

// Every byte of the catalogue's texts flipped in each bit, and every cut: an error that says why, or a layout
// that lies in its regions and reads the same again.
TEST(LayoutText, DamagedIsRefusedOrALayoutAllTheSame) {
  std::size_t read = 0, refused = 0;
  const auto check = [&](const std::string& text, const LayoutExtents& extents) {
    const auto layout = Layout::parse(text, extents);
    if (!layout.ok()) {
      ++refused;
      ASSERT_TRUE(layout.code() == Code::kInvalidArgument || layout.code() == Code::kUnsupported) << text;
      ASSERT_FALSE(layout.error().detail.empty()) << text;
      return;
    }
    ++read;
    for (const PartLayout& part : layout->parts()) {
      const auto [lowest, highest] = reach_of(part);
      ASSERT_TRUE(lowest >= 0 && highest <= __int128{layout->region_bytes(part.region, 3)} * 8) << text;
    }
    ASSERT_EQ(Layout::parse(text, extents)->canonical_text(), layout->canonical_text()) << text;
  };
  for (const Storage& storage : catalogue()) {
    const Descriptor descriptor = sample::descriptor(storage.name);
    const LayoutExtents extents = descriptor.layout(0, 0)->extents();
    std::string text = storage.layout_text;
    for (std::size_t at = 0; at < text.size(); ++at) {
      check(text.substr(0, at), extents);
      for (int bit = 0; bit < 8; ++bit) {
        text[at] = static_cast<char>(text[at] ^ 1 << bit);
        check(text, extents);
        text[at] = static_cast<char>(text[at] ^ 1 << bit);
      }
    }
  }
  EXPECT_GT(refused, 20 * read);
  EXPECT_GT(read, 0U);
}

}  // namespace
}  // namespace isthmus::kv
