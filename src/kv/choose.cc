// SPDX-License-Identifier: Apache-2.0
// See choose.h.
#include "kv/choose.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "kv/encoding.h"
#include "kv/value_transforms.h"

namespace isthmus::kv {
namespace {

constexpr std::uint64_t kPriceMax = std::numeric_limits<std::uint64_t>::max();

std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  return a > kPriceMax - b ? kPriceMax : a + b;
}

// Nanoseconds of `bytes` at `rate` bytes a microsecond where other work takes `busy` thousandths. Empty if it
// can't run.
std::optional<std::uint64_t> time_of(std::uint64_t bytes, std::uint64_t rate, std::uint32_t busy) {
  if (rate == 0 || busy >= 1000) return std::nullopt;
  using Wide = unsigned __int128;
  const Wide share = Wide{rate} * (1000 - busy);
  const Wide time = (Wide{bytes} * 1'000'000 + share - 1) / share;
  return time > kPriceMax ? kPriceMax : static_cast<std::uint64_t>(time);
}

// Stored bytes of one component: all layers, heads and tokens.
std::uint64_t bytes_of(const DecodeForm& form, const Component& component, std::uint64_t layers,
                       std::uint64_t tokens) {
  using Wide = unsigned __int128;
  const Wide rows = Wide{layers} * component.heads;
  Wide all = rows * tokens * component.dim * bits(form.codes);
  if (has_stored_scale(form.operation)) {
    const std::uint64_t groups = (tokens + form.granule_tokens - 1) / form.granule_tokens;
    const std::uint64_t granules = (component.dim + form.granule_dim - 1) / form.granule_dim;
    const std::uint32_t zero = form.operation == DecodeOperation::kScaledZeroPoint ? bits(form.zero) : 0;
    all += rows * groups * granules * (bits(form.scale) + zero);
  }
  const Wide bytes = (all + 7) / 8;
  return bytes > kPriceMax ? kPriceMax : static_cast<std::uint64_t>(bytes);
}

std::string unnamed(const DecodeForm& form) {
  return form.text().substr(form.component.size() + 1);
}

// The entry for exactly these numbers, else the one for any.
std::uint64_t conversion_rate(const PlaceRates& place, const DecodeForm& from, const DecodeForm& to) {
  std::uint64_t any = 0;
  for (const ConversionRate& one : place.conversions) {
    if (one.from == unnamed(from) && one.to == unnamed(to)) return one.rate;
    if (one.from == "any" && one.to == "any") any = one.rate;
  }
  return any;
}

// Null where none is told.
const CodecRate* codec_rate(const Prices& prices, Format codes) {
  const CodecRate* any = nullptr;
  for (const CodecRate& one : prices.codecs) {
    if (one.codes == name(codes)) return &one;
    if (one.codes == "any") any = &one;
  }
  return any;
}

bool same(const WireComponent& a, const WireComponent& b) {
  return a.form.same_form(b.form) && a.value_transforms == b.value_transforms;
}

// The same numbers stored as plain floats.
WireComponent plain(const WireComponent& of, Format format) {
  WireComponent made;
  made.form.component = of.form.component;
  made.form.codes = format;
  made.form.recipe = "nearest_even";
  made.value_transforms = of.value_transforms;
  return made;
}

// One component's possible ways, priced.
class Ways {
 public:
  Ways(const Prices& prices, const LayerGroup& group, const Component& component, const WireComponent& from,
       const WireComponent& to, std::uint32_t roundings_max)
      : prices_(prices),
        component_(component),
        layers_(group.layers.size()),
        tokens_(!component.has_token_axis ? 1
                : group.window == 0       ? prices.tokens
                                          : std::min<std::uint64_t>(prices.tokens, group.window)),
        from_(from),
        to_(to),
        roundings_max_(roundings_max) {}

  // Those by which bodies cross under the codec, or those by which they cross as they are.
  std::vector<ComponentChoice> all(bool is_compressed) {
    is_compressed_ = is_compressed;
    if (same(from_, to_)) {
      add_way("direct", from_, Place::kConsumer);
      return std::move(ways_);
    }
    add_way("consumer", from_, Place::kConsumer);
    add_way("producer", to_, Place::kProducer);
    if (prices_.hop != 0) add_way("beside", to_, Place::kBeside);
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      const WireComponent wide = plain(from_, format);
      const bool is_new = !wide.form.same_form(from_.form) && !wide.form.same_form(to_.form);
      if (is_new && restores(from_.form, wide.form, {}))
        add_way(fmt::format("through {}", name(format)), wide, Place::kConsumer);
    }
    return std::move(ways_);
  }

 private:
  // How often values are rounded between two; empty if it isn't implemented.
  std::optional<std::uint32_t> roundings(const WireComponent& a, const WireComponent& b) const {
    const auto steps = value_steps(a.value_transforms, b.value_transforms);
    if (!steps.ok() || !implemented(a.form, b.form, *steps, component_.dim).ok()) return std::nullopt;
    return restores(a.form, b.form, *steps) ? 0 : 1;
  }

  // From the source's numbers to the wire's at the producer (or beside it), on to the target's at the
  // consumer.
  void add_way(std::string way, const WireComponent& wire, Place first) {
    const auto before = roundings(from_, wire), after = roundings(wire, to_);
    if (!before || !after || *before + *after > roundings_max_) return;
    ComponentChoice made;
    made.component = component_.name;
    made.way = std::move(way);
    made.wire = wire;
    const std::uint64_t source = bytes(from_), crossing = bytes(wire), target = bytes(to_);
    const bool has_hop = first == Place::kBeside;
    bool can = step(made, "pack", Place::kProducer, source, prices_.producer.layout);
    if (has_hop) {
      can = can && step(made, "digest", Place::kProducer, source, prices_.producer.digest);
      can = can && carry(made, "hop", source, prices_.hop);
    }
    const Place sender = has_hop ? Place::kBeside : Place::kProducer;
    if (!same(from_, wire)) can = can && convert(made, sender, from_, wire);
    can = can && step(made, "digest", sender, crossing, prices_.at(sender).digest);
    can = can && cross(made, sender, crossing, wire.form.codes);
    can = can && step(made, "check", Place::kConsumer, crossing, prices_.consumer.digest);
    if (!same(wire, to_)) can = can && convert(made, Place::kConsumer, wire, to_);
    can = can && step(made, "place", Place::kConsumer, target, prices_.consumer.layout);
    can = can && step(made, "verify", Place::kConsumer, target, prices_.consumer.digest);
    if (!can) return;
    for (const ChosenStep& one : made.steps) made.price = add(made.price, one.price);
    ways_.push_back(std::move(made));
  }

  std::uint64_t bytes(const WireComponent& of) const {
    return bytes_of(of.form, component_, layers_, tokens_);
  }
  bool step(ComponentChoice& way, std::string_view what, Place where, std::uint64_t bytes,
            std::uint64_t rate) const {
    const auto price = time_of(bytes, rate, prices_.at(where).busy);
    if (price) way.steps.push_back({what, name(where), bytes, *price});
    return price.has_value();
  }
  bool convert(ComponentChoice& way, Place where, const WireComponent& a, const WireComponent& b) const {
    return step(way, "convert", where, bytes(a), conversion_rate(prices_.at(where), a.form, b.form));
  }
  bool cross(ComponentChoice& way, Place sender, std::uint64_t bytes, Format codes) const {
    if (!is_compressed_) return carry(way, "move", bytes, prices_.link);
    const CodecRate* rate = codec_rate(prices_, codes);
    if (rate == nullptr) return false;
    using Wide = unsigned __int128;
    const auto stored = static_cast<std::uint64_t>((Wide{bytes} * rate->stored + 999) / 1000);
    return step(way, "encode", sender, bytes, rate->encode) && carry(way, "move", stored, prices_.link) &&
           step(way, "decode", Place::kConsumer, bytes, rate->decode);
  }
  static bool carry(ComponentChoice& way, std::string_view what, std::uint64_t bytes, std::uint64_t rate) {
    const auto price = time_of(bytes, rate, 0);
    if (price) way.steps.push_back({what, "transport", bytes, *price});
    return price.has_value();
  }

  const Prices& prices_;
  const Component& component_;
  std::uint64_t layers_, tokens_;
  const WireComponent &from_, &to_;
  std::uint32_t roundings_max_;
  bool is_compressed_ = false;
  std::vector<ComponentChoice> ways_;
};

}  // namespace

std::string Choice::text(const Prices& prices) const {
  std::string out = fmt::format("prices {}\n{}", prices.digest().hex(), is_compressed ? "compressed\n" : "");
  for (const ComponentChoice& one : components)
    out += fmt::format("{} {} {} {}\n", one.group, one.component, one.way, one.price);
  return out + wire.text();
}

namespace {

Result<Choice> cheapest(const Descriptor& source, const Descriptor& target, const Verdict& verdict,
                        const Prices& prices, bool is_compressed) {
  Choice choice;
  choice.is_compressed = is_compressed;
  for (std::uint32_t g = 0; g < source.groups.size(); ++g) {
    std::vector<WireComponent>& wire = choice.wire.groups.emplace_back();
    for (std::size_t c = 0; c < source.groups[g].components.size(); ++c) {
      const Component& component = source.groups[g].components[c];
      const WireComponent from{source.representation[g].forms[c], component.value_transforms};
      const WireComponent to{target.representation[g].forms[c],
                             target.groups[g].components[c].value_transforms};
      auto ways =
          Ways(prices, source.groups[g], component, from, to, verdict.exact ? 0 : 1).all(is_compressed);
      const auto best = std::min_element(ways.begin(), ways.end(), [](const auto& a, const auto& b) {
        return std::pair(a.price, std::string_view(a.way)) < std::pair(b.price, std::string_view(b.way));
      });
      if (best == ways.end()) {
        return Error{Code::kUnsupported,
                     fmt::format("group {}, {}: no place of the prices can bring \"{}\" to \"{}\"", g,
                                 component.name, from.text(), to.text())};
      }
      best->group = g;
      choice.price = add(choice.price, best->price);
      wire.push_back(best->wire);
      choice.components.push_back(std::move(*best));
    }
  }
  return choice;
}

}  // namespace

Result<Choice> choose(const Descriptor& source, const Descriptor& target, const Verdict& verdict,
                      const Prices& prices) {
  if (verdict.kind == VerdictKind::kReject)
    return Error{Code::kIncompatible, "the verdict rejects this pair: there is nothing to choose"};
  ISTHMUS_TRY(Choice plain, cheapest(source, target, verdict, prices, false));
  Result<Choice> compressed = cheapest(source, target, verdict, prices, true);
  if (compressed.ok() && compressed->price < plain.price) return compressed;
  return plain;
}

bool compression_pays(const Descriptor& source, const WireForm& wire, const Prices& prices) {
  std::uint64_t plain = 0, compressed = 0;
  for (std::size_t g = 0; g < wire.groups.size(); ++g) {
    for (std::size_t c = 0; c < wire.groups[g].size(); ++c) {
      // From the wire's numbers to the same: the two prices differ by the codec alone.
      const WireComponent& one = wire.groups[g][c];
      const auto price_of = [&](bool is_compressed) {
        const LayerGroup& group = source.groups[g];
        return Ways(prices, group, group.components[c], one, one, 0).all(is_compressed);
      };
      const auto as_it_is = price_of(false), smaller = price_of(true);
      if (as_it_is.empty() || smaller.empty()) return false;
      plain = add(plain, as_it_is.front().price);
      compressed = add(compressed, smaller.front().price);
    }
  }
  return compressed < plain;
}

}  // namespace isthmus::kv
