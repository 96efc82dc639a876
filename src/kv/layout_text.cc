// SPDX-License-Identifier: Apache-2.0
// Recursive descent over the layout notation (grammar: spec/kv-state.md §3.1).
#include "kv/layout_text.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

namespace isthmus::kv {
namespace {

constexpr std::array<std::string_view, 7> kAxisNames{"layer", "blk", "slot", "tok", "head", "dim", "hd"};
// Larger numbers than this can't be a stride, a pad or an extent of a memory that exists.
constexpr std::uint64_t kNumberMax = std::uint64_t{1} << 40;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::optional<TextAxis> axis_of(std::string_view word) {
  for (std::size_t i = 0; i < kAxisNames.size(); ++i) {
    if (kAxisNames.at(i) == word) return static_cast<TextAxis>(i);
  }
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view text, const std::map<std::string, std::uint64_t>& parameters)
      : text_(text), parameters_(parameters) {}

  Result<LayoutText> layout() {
    std::vector<RegionText> regions;
    for (skip_lines(); at_ < text_.size(); skip_lines()) {
      if (regions.size() == kLayoutRegionsMax)
        return fail(fmt::format("more than {} regions", kLayoutRegionsMax));
      ISTHMUS_TRY(RegionText one, region());
      for (const RegionText& other : regions) {
        if (other.name == one.name) return fail(fmt::format("region {} is defined twice", one.name));
      }
      regions.push_back(std::move(one));
      if (peek() != '\n' && at_ < text_.size()) return fail("expected the end of the line");
    }
    if (regions.empty()) return fail("there is no region");
    return LayoutText{std::move(regions), steps_};
  }

 private:
  Result<RegionText> region() {
    RegionText region;
    if (word() != "region") return fail("expected \"region\"");
    region.name = word();
    if (region.name.empty()) return fail("expected the region's name");
    const std::size_t before = at_;
    if (word() == "per") {
      if (word() != "layer") return fail("expected \"per layer\"");
      region.per_layer = true;
    } else {
      at_ = before;
    }
    if (!take('=')) return fail("expected \"=\"");
    ISTHMUS_TRY(region.node, node(0));
    return region;
  }

  Result<Node> node(std::uint32_t depth) {
    if (depth > kLayoutDepthMax) return fail(fmt::format("groups nest deeper than {}", kLayoutDepthMax));
    Node node;
    while (true) {
      ++steps_;
      if (steps_ > kLayoutStepsPerByte * (text_.size() + 1)) return fail("takes too many steps");
      if (peek() == '{') {
        ISTHMUS_TRY(node.members, group(depth));
        return node;
      }
      if (peek() != '~') {
        const std::size_t before = at_;
        const std::string head = word();
        if (head.empty()) return fail("expected an axis, a part or \"{\"");
        if (!axis_of(head)) {
          ISTHMUS_TRY(node.leaf, leaf(head));
          return node;
        }
        at_ = before;
      }
      if (node.factors.size() == kLayoutFactorsMax)
        return fail(fmt::format("more than {} factors", kLayoutFactorsMax));
      ISTHMUS_TRY(const Factor one, factor());
      node.factors.push_back(one);
    }
  }

  Result<std::vector<Member>> group(std::uint32_t depth) {
    std::vector<Member> members;
    take('{');
    do {
      if (members.size() == kLayoutMembersMax)
        return fail(fmt::format("more than {} members", kLayoutMembersMax));
      ISTHMUS_TRY(Member one, member(depth));
      members.push_back(std::move(one));
    } while (take(';'));
    if (!take('}')) return fail("expected \";\" or \"}\"");
    return members;
  }

  Result<Member> member(std::uint32_t depth) {
    Member member;
    ++steps_;
    const std::size_t before = at_;
    const std::string head = word();
    if (head == "pad" || head == "align") {
      member.kind = head == "pad" ? MemberKind::kPad : MemberKind::kAlign;
      ISTHMUS_TRY(member.bytes, number(head));
      return member;
    }
    at_ = before;
    ISTHMUS_TRY(Node inner, node(depth + 1));
    member.node.push_back(std::move(inner));
    return member;
  }

  Result<Leaf> leaf(const std::string& component) {
    if (parts_ == kLayoutPartsMax) return fail(fmt::format("more than {} parts", kLayoutPartsMax));
    ++parts_;
    Leaf leaf{.component = component, .part = component, .format = Format::kF16};
    if (take('.')) {
      const std::string side = word();
      if (side != "s" && side != "z")
        return fail(fmt::format("part {}.{}: only .s and .z exist", component, side));
      leaf.part = fmt::format("{}.{}", component, side);
    }
    if (!take(':')) return fail(fmt::format("part {}: expected \":\" and a format", leaf.part));
    auto format = parse_format(word());
    if (!format) return format.status().with_context(fmt::format("layout: part {}", leaf.part));
    leaf.format = *format;
    return leaf;
  }

  Result<Factor> factor() {
    Factor factor;
    factor.descending = take('~');
    const std::string axis_word = word();
    const auto axis = axis_of(axis_word);
    if (!axis) return fail(fmt::format("\"{}\" isn't an axis", axis_word));
    factor.axis = *axis;
    if (take('/')) {
      ISTHMUS_TRY(factor.div, number("/"));
    }
    if (take('%')) {
      ISTHMUS_TRY(factor.mod, number("%"));
    }
    if (take('@')) {
      ISTHMUS_TRY(factor.stride_bytes, number("@"));
    }
    return factor;
  }

  // An integer from 1 up, or a parameter's value.
  Result<std::uint64_t> number(std::string_view after) {
    skip_blanks();
    ++steps_;
    std::uint64_t value = 0;
    if (at_ < text_.size() && is_digit(text_[at_])) {
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
      if (error != std::errc()) return fail(fmt::format("the number after \"{}\" is too large", after));
      at_ += static_cast<std::size_t>(end - begin);
      steps_ += static_cast<std::uint64_t>(end - begin);
      if (at_ < text_.size() && is_letter(text_[at_])) return fail("a number runs into a name");
    } else {
      const std::string parameter = word();
      const auto found = parameters_.find(parameter);
      if (found == parameters_.end()) {
        return fail(fmt::format("\"{}\" after \"{}\" is neither a number nor a parameter", parameter, after));
      }
      value = found->second;
    }
    if (value == 0 || value > kNumberMax) {
      return fail(fmt::format("the number after \"{}\" is {}, not in 1..{}", after, value, kNumberMax));
    }
    return value;
  }

  std::string word() {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) ++at_;
    steps_ += 1 + at_ - begin;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // The next character after blanks; '\n' at the end of a line, '\0' at the end of the text.
  char peek() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted || wanted == '\0') return false;
    ++at_;
    return true;
  }

  void skip_blanks() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    steps_ += 1 + at_ - begin;
  }
  void skip_lines() {
    while (peek() == '\n') ++at_;
  }

  Error fail(std::string_view what) const {
    std::size_t line = 1, column = 1;
    for (std::size_t i = 0; i < at_; ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n' ? 1U : 0U;
    }
    return {Code::kInvalidArgument, fmt::format("layout: line {} column {}: {}", line, column, what)};
  }

  std::string_view text_;
  const std::map<std::string, std::uint64_t>& parameters_;
  std::size_t at_ = 0;
  std::uint64_t steps_ = 0;
  std::uint32_t parts_ = 0;
};

}  // namespace

std::string_view name(TextAxis axis) {
  return kAxisNames.at(static_cast<std::size_t>(axis));
}
bool is_axis(std::string_view word) {
  return axis_of(word).has_value();
}

std::string Factor::text() const {
  std::string out = fmt::format("{}{}", descending ? "~" : "", name(axis));
  if (div != 1) out += fmt::format("/{}", div);
  if (mod) out += fmt::format("%{}", *mod);
  if (stride_bytes) out += fmt::format("@{}", *stride_bytes);
  return out;
}

Result<LayoutText> parse_layout_text(std::string_view text,
                                     const std::map<std::string, std::uint64_t>& parameters) {
  if (text.size() > kLayoutTextMax) {
    return Error{Code::kInvalidArgument,
                 fmt::format("layout: text of {} bytes is longer than {}", text.size(), kLayoutTextMax)};
  }
  return Parser(text, parameters).layout();
}

}  // namespace isthmus::kv
