// SPDX-License-Identifier: Apache-2.0
// Boost.JSON's parser, driven so that it builds our values: the one file that sees that library.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>

#include "http/json.h"

namespace isthmus::json {
namespace {

namespace bj = boost::json;

// Receives what the parser reads. A callback that returns false stops the parse; `why` says the reason then.
class Builder {
 public:
  // NOLINTBEGIN(readability-identifier-naming) Boost's names.
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  // NOLINTEND(readability-identifier-naming)

  explicit Builder(std::size_t values_max) : values_left_(values_max) {}

  bool on_document_begin(bj::error_code&) { return true; }
  bool on_document_end(bj::error_code&) { return true; }
  bool on_object_begin(bj::error_code& ec) { return open(Object(), ec); }
  bool on_array_begin(bj::error_code& ec) { return open(Array(), ec); }
  bool on_array_end(std::size_t, bj::error_code&) {
    open_.pop_back();
    return true;
  }
  bool on_object_end(std::size_t, bj::error_code& ec) {
    const Object& members = *open_.back()->as_object();
    // Sorted, because a body may hold as many members as it has room for.
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const Member& member : members) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) return stop(ec, fmt::format("member '{}' occurs twice", twice->substr(0, 64)));
    open_.pop_back();
    return true;
  }
  bool on_key_part(bj::string_view part, std::size_t, bj::error_code&) { return gather(key_, part); }
  bool on_key(bj::string_view part, std::size_t, bj::error_code&) { return gather(key_, part); }
  bool on_string_part(bj::string_view part, std::size_t, bj::error_code&) { return gather(text_, part); }
  bool on_string(bj::string_view part, std::size_t, bj::error_code& ec) {
    gather(text_, part);
    return add(std::exchange(text_, {}), ec);
  }
  bool on_number_part(bj::string_view part, bj::error_code&) { return gather(text_, part); }
  bool on_int64(std::int64_t value, bj::string_view, bj::error_code& ec) {
    text_.clear();
    return add(value, ec);
  }
  bool on_uint64(std::uint64_t value, bj::string_view, bj::error_code& ec) {
    text_.clear();
    return add(value, ec);
  }
  // Boost 1.81 rounds some decimals to a neighbour of the nearest double (0.7), so the text is read again.
  bool on_double(double rough, bj::string_view part, bj::error_code& ec) {
    gather(text_, part);
    const std::string text = std::exchange(text_, {});
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) value = rough;  // 0 below the range, infinite above it.
    if (!std::isfinite(value)) return stop(ec, "number out of range");
    return add(value, ec);
  }
  bool on_bool(bool value, bj::error_code& ec) { return add(value, ec); }
  bool on_null(bj::error_code& ec) { return add(nullptr, ec); }
  bool on_comment_part(bj::string_view, bj::error_code&) { return true; }
  bool on_comment(bj::string_view, bj::error_code&) { return true; }

  Value& root() { return root_; }
  const std::string& why() const { return why_; }

 private:
  static bool gather(std::string& into, bj::string_view part) {
    into.append(part.data(), part.size());
    return true;
  }
  bool stop(bj::error_code& ec, std::string why) {
    why_ = std::move(why);
    ec = bj::error::syntax;
    return false;
  }
  // Where the value went; null if one too many.
  Value* place(Value value, bj::error_code& ec) {
    if (values_left_ == 0) {
      stop(ec, "too many values");
      return nullptr;
    }
    --values_left_;
    if (open_.empty()) return &(root_ = std::move(value));
    if (Array* items = open_.back()->as_array()) return &items->emplace_back(std::move(value));
    return &open_.back()->as_object()->emplace_back(std::exchange(key_, {}), std::move(value)).second;
  }
  bool add(Value value, bj::error_code& ec) { return place(std::move(value), ec) != nullptr; }
  bool open(Value value, bj::error_code& ec) {
    Value* placed = place(std::move(value), ec);
    if (placed) open_.push_back(placed);
    return placed != nullptr;
  }

  Value root_;
  // Pointers stay good: only the innermost container grows, and it holds no open one.
  std::vector<Value*> open_;
  std::string key_;
  std::string text_;
  std::string why_;
  std::size_t values_left_;
};

Error malformed(std::size_t offset, std::string_view why) {
  return {Code::kMalformed, fmt::format("JSON: {} at byte {}", why, offset)};
}

}  // namespace

Result<Value> parse(std::string_view text, const Limits& limits) {
  if (text.size() > limits.bytes_max) {
    return Error{Code::kMalformed,
                 fmt::format("JSON: {} bytes, at most {} are read", text.size(), limits.bytes_max)};
  }
  bj::parse_options options;
  options.max_depth = limits.depth_max;
  try {
    bj::basic_parser<Builder> parser(options, limits.values_max);
    bj::error_code ec;
    const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
    Builder& builder = parser.handler();
    if (!builder.why().empty()) return malformed(used, builder.why());
    if (ec == bj::error::incomplete)
      return malformed(text.size(), text.empty() ? "empty text" : "text ends too early");
    if (ec == bj::error::too_deep)
      return malformed(used, fmt::format("nested deeper than {}", limits.depth_max));
    if (ec) return malformed(used, ec.message());
    if (used < text.size()) return malformed(used, "more after the value");
    return std::move(builder.root());
  } catch (const std::exception& error) {
    return Error{Code::kMalformed, fmt::format("JSON: {}", error.what())};
  }
}

}  // namespace isthmus::json
