// SPDX-License-Identifier: Apache-2.0
// Random expressions that tile by construction, against the notation's rules evaluated anew.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "kv/layout.h"

namespace isthmus::kv {
namespace {

struct Digit1 {
  std::string axis;
  std::uint64_t div = 1, mod = 0, extent = 0;
  bool down = false;
  std::uint64_t pad_bytes = 0;  // Added to the stride by @.
};

struct Shape {
  std::uint64_t layers = 1, block = 16, heads = 1, dim = 16;
};

// `axis` of `extent` cut at a random chain of divisors.
std::vector<Digit1> cut(const std::string& axis, std::uint64_t extent) {
  std::vector<std::uint64_t> chain{1};
  while (chain.back() < extent && *rc::gen::inRange(0, 3) != 0) {
    std::vector<std::uint64_t> next;
    for (std::uint64_t n = chain.back() * 2; n < extent; n += chain.back()) {
      if (extent % n == 0) next.push_back(n);
    }
    if (next.empty()) break;
    chain.push_back(*rc::gen::elementOf(next));
  }
  chain.push_back(extent);
  std::vector<Digit1> digits;
  for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
    const bool is_top = i + 2 == chain.size();
    Digit1 digit{.axis = axis, .div = chain[i], .extent = chain[i + 1] / chain[i]};
    // The top digit may leave its extent to the rule ⌈E/n⌉.
    digit.mod = is_top && *rc::gen::arbitrary<bool>() ? 0 : digit.extent;
    digits.push_back(digit);
  }
  return digits;
}

struct Expression {
  std::vector<Digit1> factors;  // Outermost first.
  std::string text;
};

std::string text_of(const std::vector<Digit1>& factors) {
  std::string text = "region K = ";
  std::uint64_t bits = 16;
  std::string behind;
  bool crossed = false;
  for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
    std::string one = (factor->down ? "~" : "") + factor->axis;
    if (factor->div != 1) one += fmt::format("/{}", factor->div);
    if (factor->mod != 0) one += fmt::format("%{}", factor->mod);
    if (factor->pad_bytes != 0) one += fmt::format("@{}", bits / 8 + factor->pad_bytes);
    bits += factor->pad_bytes * 8;
    if (factor->axis == "tok" || factor->axis == "blk") crossed = true;
    if (factor->extent != 0) bits *= factor->extent;
    behind = one + " " + behind;
  }
  return text + behind + "k:f16" + (crossed ? "" : " ");
}

Expression random_expression(const Shape& shape, bool paged) {
  Expression out;
  const auto add = [&](const std::vector<Digit1>& digits) {
    out.factors.insert(out.factors.end(), digits.begin(), digits.end());
  };
  add(cut("layer", shape.layers));
  if (paged) add(cut("slot", shape.block));
  if (*rc::gen::arbitrary<bool>()) {
    // hd cut at divisors of D: what lies above is head alone.
    std::vector<Digit1> row = cut("hd", shape.dim);
    for (Digit1& digit : row) digit.mod = digit.extent;
    add(row);
    add({{.axis = "hd", .div = shape.dim, .extent = shape.heads}});
  } else {
    add(cut("head", shape.heads));
    add(cut("dim", shape.dim));
  }
  for (std::size_t i = out.factors.size(); i > 1; --i) {
    std::swap(out.factors[i - 1], out.factors[*rc::gen::inRange<std::size_t>(0, i)]);
  }
  const auto at = *rc::gen::inRange<std::size_t>(0, out.factors.size() + 1);
  out.factors.insert(out.factors.begin() + static_cast<std::ptrdiff_t>(at),
                     Digit1{.axis = paged ? "blk" : "tok"});
  for (std::size_t i = at + 1; i < out.factors.size(); ++i) {
    out.factors[i].down = *rc::gen::inRange(0, 4) == 0;
    if (*rc::gen::inRange(0, 6) == 0) out.factors[i].pad_bytes = *rc::gen::inRange<std::uint64_t>(1, 9);
  }
  out.text = text_of(out.factors);
  return out;
}

std::uint64_t value_of(const Digit1& factor, const ElementIndex& index, const Shape& shape) {
  std::uint64_t raw = 0;
  if (factor.axis == "layer") raw = index.layer;
  if (factor.axis == "slot") raw = index.slot;
  if (factor.axis == "head") raw = index.head;
  if (factor.axis == "dim") raw = index.dim;
  if (factor.axis == "hd") raw = index.head * shape.dim + index.dim;
  if (factor.axis == "blk") return index.block;
  if (factor.axis == "tok") return index.token;
  const std::uint64_t value = raw / factor.div % factor.extent;
  return factor.down ? factor.extent - 1 - value : value;
}

// Rule 3 of the notation, straight from the expression.
std::uint64_t expected_bits(const Expression& expression, const ElementIndex& index, const Shape& shape,
                            std::uint64_t open) {
  std::uint64_t size = 16, offset = 0;
  for (auto factor = expression.factors.rbegin(); factor != expression.factors.rend(); ++factor) {
    size += factor->pad_bytes * 8;
    offset += value_of(*factor, index, shape) * size;
    size *= factor->extent == 0 ? open : factor->extent;
  }
  return offset;
}

Shape random_shape() {
  return {.layers = *rc::gen::inRange<std::uint64_t>(1, 4),
          .block = *rc::gen::element<std::uint64_t>(1, 2, 6, 8),
          .heads = *rc::gen::inRange<std::uint64_t>(1, 4),
          .dim = *rc::gen::element<std::uint64_t>(1, 6, 8, 12, 16)};
}

LayoutExtents extents_of(const Shape& shape, bool paged) {
  return {
      .layers = static_cast<std::uint32_t>(shape.layers),
      .block_tokens = paged ? static_cast<std::uint32_t>(shape.block) : 0,
      .components = {{"k", {static_cast<std::uint32_t>(shape.heads), static_cast<std::uint32_t>(shape.dim)}}},
      .parameters = {}};
}

std::vector<ElementIndex> all_elements(const Shape& shape, bool paged, std::uint64_t open) {
  std::vector<ElementIndex> out;
  const std::uint64_t slots = paged ? shape.block : 1;
  for (std::uint64_t i = 0; i < shape.layers * open * slots * shape.heads * shape.dim; ++i) {
    std::uint64_t rest = i;
    const auto take = [&](std::uint64_t extent) {
      const std::uint64_t value = rest % extent;
      rest /= extent;
      return value;
    };
    ElementIndex index;
    index.dim = take(shape.dim);
    index.head = take(shape.heads);
    index.slot = take(slots);
    index.layer = take(shape.layers);
    (paged ? index.block : index.token) = rest;
    out.push_back(index);
  }
  return out;
}

RC_GTEST_PROP(LayoutProperty, OffsetsFollowTheRulesAndNeverCollide, ()) {
  const Shape shape = random_shape();
  const bool paged = *rc::gen::arbitrary<bool>();
  const std::uint64_t open = *rc::gen::inRange<std::uint64_t>(1, 4);
  const Expression expression = random_expression(shape, paged);
  const auto layout = Layout::parse(expression.text, extents_of(shape, paged));
  if (!layout.ok()) RC_FAIL(expression.text + "\n" + layout.error().text());
  const std::uint64_t bytes = layout->region_bytes("K", open);
  std::set<std::uint64_t> seen;
  bool is_dense = true;
  for (const Digit1& factor : expression.factors) is_dense = is_dense && factor.pad_bytes == 0;
  for (const ElementIndex& index : all_elements(shape, paged, open)) {
    const std::uint64_t offset = bit_offset(layout->parts().front(), index, open);
    RC_ASSERT(offset == expected_bits(expression, index, shape, open));
    RC_ASSERT(offset + 16 <= bytes * 8);
    RC_ASSERT(seen.insert(offset).second);
  }
  if (is_dense) RC_ASSERT(seen.size() * 2 == bytes);
}

RC_GTEST_PROP(LayoutProperty, AMissingOrDoubledFactorNeverTiles, ()) {
  const Shape shape = random_shape();
  const bool paged = *rc::gen::arbitrary<bool>();
  Expression expression = random_expression(shape, paged);
  std::vector<std::size_t> real;
  for (std::size_t i = 0; i < expression.factors.size(); ++i) {
    if (expression.factors[i].extent > 1) real.push_back(i);
  }
  RC_PRE(!real.empty());
  const auto at = static_cast<std::ptrdiff_t>(*rc::gen::elementOf(real));
  const Digit1 factor = expression.factors[static_cast<std::size_t>(at)];
  if (*rc::gen::arbitrary<bool>()) {
    expression.factors.erase(expression.factors.begin() + at);
  } else {
    expression.factors.insert(expression.factors.begin() + at, factor);
  }
  const auto layout = Layout::parse(text_of(expression.factors), extents_of(shape, paged));
  RC_ASSERT(!layout.ok());
}

RC_GTEST_PROP(LayoutProperty, EqualOffsetsGiveEqualCanonicalText, ()) {
  const Shape shape = random_shape();
  const Expression a = random_expression(shape, true);
  const Expression b = random_expression(shape, true);
  const auto first = Layout::parse(a.text, extents_of(shape, true));
  const auto second = Layout::parse(b.text, extents_of(shape, true));
  RC_ASSERT(first.ok() && second.ok());
  bool is_equal = true;
  for (const std::uint64_t open : {2, 3}) {
    for (const ElementIndex& index : all_elements(shape, true, open)) {
      is_equal = is_equal && bit_offset(first->parts().front(), index, open) ==
                                 bit_offset(second->parts().front(), index, open);
    }
  }
  RC_ASSERT(is_equal == (first->canonical_text() == second->canonical_text()));
}

}  // namespace
}  // namespace isthmus::kv
