// SPDX-License-Identifier: Apache-2.0
// The cheapest way by hand-made prices, and against an enumeration of its own over random pairs and prices.
#include "kv/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kv/sample.h"

namespace isthmus::kv {
namespace {

using ::testing::HasSubstr;

const Policy kOnce{.exactness = Exactness::kUnqualified, .qualifications = {}};

Choice chosen(const Descriptor& source, const Descriptor& target, const Prices& prices) {
  const Result<Choice> made = choose(source, target, negotiate(source, target, kOnce), prices);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().text());
  return made.ok() ? *made : Choice{};
}

std::string way(const char* from, const char* to, const Prices& prices) {
  return chosen(sample::descriptor(from), sample::descriptor(to), prices).components.front().way;
}

TEST(Choose, EqualNumbersCrossAsTheyAre) {
  const Choice choice =
      chosen(sample::descriptor("llamacpp:f16"), sample::descriptor("openvino:f16"), Prices::reference(100));
  ASSERT_EQ(choice.components.size(), 2U);
  EXPECT_EQ(choice.components[1].way, "direct");
  EXPECT_EQ(choice.wire.text(), "0 k codes=f16 op=q after rope:interleaved\n0 v codes=f16 op=q\n");
  // v: 4 layers, 3 heads, 64 elements of 2 bytes, 100 tokens: 153,600 bytes at each step.
  std::uint64_t price = 0;
  for (const ChosenStep& step : choice.components[1].steps) {
    EXPECT_EQ(step.bytes, 153'600U);
    price += step.price;
  }
  EXPECT_EQ(price, 25'600U + 10'240 + 122'880 + 10'240 + 25'600 + 10'240);
  EXPECT_EQ(price, choice.components[1].price);
}

TEST(Choose, ASlowLinkTakesTheSmallerNumbersAndAFastOneTheIdleEnd) {
  Prices prices = Prices::reference(1000);
  prices.link = 10;
  EXPECT_EQ(way("llamacpp:f16", "openvino:u8", prices), "producer");
  EXPECT_EQ(way("llamacpp:q8_0", "openvino:f32", prices), "consumer");
  prices.link = 100'000;
  prices.producer.busy = 900;  // Fewer bytes, and dearer all the same.
  EXPECT_EQ(way("llamacpp:f16", "openvino:u8", prices), "consumer");
  prices.hop = 100'000;
  prices.beside = prices.consumer;
  prices.consumer.busy = 950;
  EXPECT_EQ(way("llamacpp:f16", "openvino:u8", prices), "beside");
}

TEST(Choose, EqualPricesGoByName) {
  // No conversion costs more than the other end's, as bytes weigh nothing: f16 to bf16 of equal size.
  const Prices prices = Prices::reference(64);
  EXPECT_EQ(way("llamacpp:f16", "llamacpp:bf16", prices), "consumer");
}

TEST(Choose, AnExactSupersetIsAWayWhereNoEndConvertsDirectly) {
  Prices prices = Prices::reference(64);
  prices.producer.conversions = {{"codes=f16 op=q", "codes=f32 op=q", 3000}};
  prices.consumer.conversions = {{"codes=f32 op=q", "codes=bf16 op=q", 3000}};
  const Choice choice =
      chosen(sample::descriptor("llamacpp:f16"), sample::descriptor("llamacpp:bf16"), prices);
  EXPECT_EQ(choice.components[0].way, "through f32");
  EXPECT_EQ(choice.components[0].wire.text(), "k codes=f32 op=q after rope:interleaved");
  prices.consumer.conversions.clear();
  const Descriptor source = sample::descriptor("llamacpp:f16"), target = sample::descriptor("llamacpp:bf16");
  const auto none = choose(source, target, negotiate(source, target, kOnce), prices);
  ASSERT_EQ(none.code(), Code::kUnsupported);
  EXPECT_THAT(none.error().detail, HasSubstr("group 0, k: no place of the prices can bring"));
}

// Bytes a microsecond of a link at which encoding and decoding take as long as the bytes saved: 1/400 + 1/800
// = 0.2/53.33.
Prices with_codec(std::uint64_t link) {
  Prices prices = Prices::reference(256);
  prices.link = link;
  prices.codecs = {{"f16", 400, 800, 800}};
  return prices;
}

TEST(Choose, ACodecIsForLinksSlowEnoughToPayForIt) {
  const Descriptor source = sample::descriptor("llamacpp:f16"), target = sample::descriptor("openvino:f16");
  const Choice fast = chosen(source, target, with_codec(1250)), slow = chosen(source, target, with_codec(12));
  EXPECT_FALSE(fast.is_compressed);
  EXPECT_TRUE(slow.is_compressed);
  Prices without = with_codec(12);
  without.codecs.clear();
  const Choice plain = chosen(source, target, without);
  EXPECT_FALSE(plain.is_compressed);
  EXPECT_LT(slow.price, plain.price);
  EXPECT_EQ(slow.wire.text(), plain.wire.text());
  std::uint64_t encoded = 0, moved = 0, decoded = 0, whole = 0;
  for (const ChosenStep& step : slow.components[0].steps) {
    if (step.what == "encode") encoded = step.bytes;
    if (step.what == "move") moved = step.bytes;
    if (step.what == "decode") decoded = step.bytes;
    if (step.what == "check") whole = step.bytes;
  }
  EXPECT_EQ(encoded, whole);
  EXPECT_EQ(decoded, whole);
  EXPECT_EQ(moved, (whole * 800 + 999) / 1000);
  EXPECT_NE(slow.text(with_codec(12)), plain.text(without));
}

TEST(Choose, CompressionPaysByTheSamePricesForAWireThatIsGiven) {
  const Descriptor source = sample::descriptor("llamacpp:f16"), target = sample::descriptor("openvino:f32");
  const WireForm wire = negotiate(source, target, kOnce).wire;
  EXPECT_TRUE(compression_pays(source, wire, with_codec(53)));
  EXPECT_FALSE(compression_pays(source, wire, with_codec(54)));
  Prices prices = with_codec(12);
  prices.producer.busy = 990;  // Who has no time to encode sends what there is.
  EXPECT_FALSE(compression_pays(source, wire, prices));
  prices = with_codec(12);
  prices.codecs[0].codes = "u8";  // Of other numbers.
  EXPECT_FALSE(compression_pays(source, wire, prices));
  prices.codecs.push_back({"any", 400, 800, 800});
  EXPECT_TRUE(compression_pays(source, wire, prices));
  for (std::uint64_t CodecRate::* rate : {&CodecRate::encode, &CodecRate::decode}) {
    prices = with_codec(12);
    prices.codecs[0].*rate = 0;
    EXPECT_FALSE(compression_pays(source, wire, prices));
  }
  prices = with_codec(0);  // Nobody has told how fast it is.
  EXPECT_FALSE(compression_pays(source, wire, prices));
}

TEST(Choose, ARejectHasNoWay) {
  const Descriptor source = sample::descriptor("llamacpp:f16"), target = sample::descriptor("openvino:u8");
  EXPECT_EQ(choose(source, target, negotiate(source, target, {}), Prices::reference(1)).code(),
            Code::kIncompatible);
}

TEST(Prices, HaveOneTextAndReadNoOther) {
  Prices prices = Prices::reference(300);
  prices.consumer.busy = 250;
  prices.producer.conversions.push_back({"codes=f16 op=q", "codes=bf16 op=q", 7});
  prices.codecs = {{"u8", 1, 2, 999}, {"any", 500, 1500, 850}};
  const std::string text = prices.text();
  EXPECT_EQ(text,
            "isthmus-prices 1\ntokens 300\nlink 1250\nhop 0\nbeside busy 0 layout 0 digest 0\n"
            "consumer busy 250 layout 6000 digest 15000\nproducer busy 0 layout 6000 digest 15000\n"
            "convert consumer 2000 any > any\nconvert producer 2000 any > any\n"
            "convert producer 7 codes=f16 op=q > codes=bf16 op=q\n"
            "codec any encode 500 decode 1500 stored 850\ncodec u8 encode 1 decode 2 stored 999\n");
  EXPECT_EQ(Prices::parse(text)->text(), text);
  for (std::size_t at = 0; at < text.size(); ++at) {
    EXPECT_FALSE(Prices::parse(text.substr(0, at)).ok() && text[at - 1] != '\n') << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
      const auto read = Prices::parse(damaged);
      EXPECT_TRUE(!read.ok() || read->text() == damaged) << at;
    }
  }
  EXPECT_EQ(Prices::parse("isthmus-prices 1\ntokens 1099511627777\n").code(), Code::kExhausted);
  const std::string plain = Prices::reference(1).text();
  for (const char* wrong :
       {"codec u8 encode 1 decode 2 stored 1000\n", "codec u9 encode 1 decode 2 stored 9\n",
        "codec u8 encode 1 stored 9\n", "codec u8 encode 1 decode 2 stored 9 \n", "codec\n", "codec \n"}) {
    EXPECT_EQ(Prices::parse(plain + wrong).code(), Code::kMalformed) << wrong;
  }
}

// --- Against an enumeration.

Prices some_prices() {
  const auto rate = [] { return *rc::gen::element<std::uint64_t>(1, 7, 100, 2000, 2001, 15000); };
  Prices prices;
  prices.tokens = *rc::gen::inRange<std::uint64_t>(1, 5000);
  prices.link = rate();
  prices.hop = *rc::gen::element<std::uint64_t>(0, 3000);
  for (PlaceRates* place : {&prices.producer, &prices.beside, &prices.consumer}) {
    place->busy = *rc::gen::element<std::uint32_t>(0, 500, 999);
    place->layout = rate();
    place->digest = rate();
    if (*rc::gen::inRange(0, 5) != 0) place->conversions.push_back({"any", "any", rate()});
    if (*rc::gen::arbitrary<bool>())
      place->conversions.push_back({"codes=f16 op=q", "codes=f32 op=q", rate()});
    if (*rc::gen::arbitrary<bool>()) place->conversions.push_back({"codes=f32 op=q", "codes=f16 op=q", 0});
  }
  return prices;
}

const char* some_storage() {
  return *rc::gen::element("llamacpp:f16", "llamacpp:bf16", "llamacpp:f32", "llamacpp:q8_0", "openvino:u8",
                           "openvino:f16", "openvino:f32", "vllm:flash_nhd", "openvino:u8_channel");
}

// The other end's view: what it read from texts, and another order of whatever has none.
Descriptor other_view(Descriptor of) {
  std::reverse(of.partition.begin(), of.partition.end());
  for (GroupRepresentation& group : of.representation) group.layout_text += "\n\n";
  return of;
}

// Written out anew: nanoseconds of a step in long double, rounded up.
struct Enumeration {
  const Prices& prices;
  std::uint64_t tokens;

  std::uint64_t size(const DecodeForm& form, const Component& component) const {
    std::uint64_t row_bits = std::uint64_t{component.dim} * bits(form.codes) * tokens;
    if (has_stored_scale(form.operation)) {
      const std::uint64_t side =
          bits(form.scale) + (form.operation == DecodeOperation::kScaledZeroPoint ? bits(form.zero) : 0);
      row_bits += component.dim / form.granule_dim * side *
                  ((tokens + form.granule_tokens - 1) / form.granule_tokens);
    }
    return (row_bits * component.heads * sample::kLayers + 7) / 8;
  }
  static std::uint64_t time(std::uint64_t bytes, std::uint64_t rate, std::uint64_t busy) {
    const std::uint64_t share = rate * (1000 - busy);
    return bytes * 1'000'000 / share + (bytes * 1'000'000 % share != 0 ? 1 : 0);
  }
  static std::uint64_t rate(const PlaceRates& place, const DecodeForm& a, const DecodeForm& b) {
    const auto numbers = [](const DecodeForm& form) { return form.text().substr(form.text().find(' ') + 1); };
    std::map<std::pair<std::string, std::string>, std::uint64_t> known;
    for (const ConversionRate& one : place.conversions) known.emplace(std::pair(one.from, one.to), one.rate);
    const auto exact = known.find({numbers(a), numbers(b)});
    return exact != known.end() ? exact->second : known[{"any", "any"}];
  }

  // Price and name of the best way of one component, over every place and every form that may cross.
  std::pair<std::uint64_t, std::string> best(const DecodeForm& from, const DecodeForm& to,
                                             const Component& component, bool is_same) const {
    std::vector<std::pair<std::uint64_t, std::string>> ways;
    const std::uint64_t f = size(from, component), t = size(to, component);
    const PlaceRates &p = prices.producer, &b = prices.beside, &c = prices.consumer;
    const auto end = [&](std::uint64_t crossing) {
      return time(crossing, prices.link, 0) + time(crossing, c.digest, c.busy) + time(t, c.layout, c.busy) +
             time(t, c.digest, c.busy);
    };
    const std::uint64_t pack = time(f, p.layout, p.busy);
    if (is_same) return {pack + time(f, p.digest, p.busy) + end(f), "direct"};
    if (const auto r = rate(c, from, to); r != 0)
      ways.emplace_back(pack + time(f, p.digest, p.busy) + end(f) + time(f, r, c.busy), "consumer");
    if (const auto r = rate(p, from, to); r != 0)
      ways.emplace_back(pack + time(f, r, p.busy) + time(t, p.digest, p.busy) + end(t), "producer");
    if (const auto r = rate(b, from, to); r != 0 && prices.hop != 0) {
      ways.emplace_back(pack + time(f, p.digest, p.busy) + time(f, prices.hop, 0) + time(f, r, b.busy) +
                            time(t, b.digest, b.busy) + end(t),
                        "beside");
    }
    for (const Format format : {Format::kF32, Format::kF16, Format::kBf16}) {
      DecodeForm wide;
      wide.component = from.component;
      wide.codes = format;
      if (wide.same_form(from) || wide.same_form(to) || !restores(from, wide, {})) continue;
      const std::uint64_t w = size(wide, component);
      const auto up = rate(p, from, wide), down = rate(c, wide, to);
      if (up == 0 || down == 0) continue;
      ways.emplace_back(
          pack + time(f, up, p.busy) + time(w, p.digest, p.busy) + end(w) + time(w, down, c.busy),
          "through " + std::string(name(format)));
    }
    return ways.empty() ? std::pair<std::uint64_t, std::string>{0, ""}
                        : *std::min_element(ways.begin(), ways.end());
  }
};

RC_GTEST_PROP(ChooseProperty, BothEndsChooseTheCheapestWayAndTheSame, ()) {
  const Descriptor source = sample::descriptor(some_storage()), target = sample::descriptor(some_storage());
  const Prices prices = some_prices();
  const Verdict verdict = negotiate(source, target, kOnce);
  RC_PRE(verdict.kind != VerdictKind::kReject);
  const Result<Choice> here = choose(source, target, verdict, prices);
  const Descriptor theirs = other_view(source), ours = other_view(target);
  const Prices read = Prices::parse(prices.text()).value();
  const Result<Choice> there = choose(theirs, ours, negotiate(theirs, ours, kOnce), read);
  RC_ASSERT(here.ok() == there.ok());
  const Enumeration all{prices, prices.tokens};
  std::uint64_t price = 0;
  bool can = true;
  std::vector<std::string> ways;
  for (std::size_t c = 0; c < 2; ++c) {
    const DecodeForm &from = source.representation[0].forms[c], &to = target.representation[0].forms[c];
    const Component& component = source.groups[0].components[c];
    const bool is_same =
        from.same_form(to) && component.value_transforms == target.groups[0].components[c].value_transforms;
    const auto [cheapest, name] = all.best(from, to, component, is_same);
    can = can && !name.empty();
    price += cheapest;
    ways.push_back(name);
  }
  RC_ASSERT(here.ok() == can);
  if (!can) return;
  RC_ASSERT(here->text(prices) == there->text(read));
  RC_ASSERT(here->price == price);
  for (std::size_t c = 0; c < 2; ++c) RC_ASSERT(here->components[c].way == ways[c]);
}

}  // namespace
}  // namespace isthmus::kv
