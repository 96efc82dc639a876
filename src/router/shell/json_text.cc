// SPDX-License-Identifier: Apache-2.0
// A scanner for JSON text that allocates for top-level keys only, and edits by copying segments.
#include "router/shell/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace isthmus::router::shell {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Walks over values; `at()` is the offset of the next byte. A false return means that `error()` is set.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::size_t at() const { return at_; }
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip_space() {
    while (!at_end() && is_space(text_[at_])) ++at_;
  }
  bool fail(std::string_view expected) {
    const std::string found =
        at_end() ? "the end" : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(text_[at_]));
    error_ = Error{Code::kMalformed,
                   fmt::format("not JSON: {} expected at byte {}, found {}", expected, at_, found)};
    return false;
  }
  const Error& error() const { return error_; }

  bool take(char c) {
    if (at_end() || text_[at_] != c) return fail(fmt::format("'{}'", c));
    ++at_;
    return true;
  }

  // The offset is behind the closing quote afterwards.
  bool string() {
    if (!take('"')) return false;
    while (!at_end() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return fail("no control character in a string");
      if (text_[at_] == '\\' && !escape()) return false;
      ++at_;
    }
    return take('"');
  }

  bool value(std::size_t depth) {
    switch (peek()) {
      case '{':
        return nested('}', depth);
      case '[':
        return nested(']', depth);
      case '"':
        return string();
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }

 private:
  // Leaves the offset on the last byte of the escape.
  bool escape() {
    ++at_;
    constexpr std::string_view kSimple = "\"\\/bfnrt";
    if (!at_end() && kSimple.find(text_[at_]) != std::string_view::npos) return true;
    if (peek() != 'u') return fail("an escape character");
    for (int i = 0; i < 4; ++i) {
      ++at_;
      if (at_end() || hex_digit(text_[at_]) < 0) return fail("a hex digit");
    }
    return true;
  }

  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return fail(expected);
    at_ += expected.size();
    return true;
  }

  bool digits() {
    if (!is_digit(peek())) return fail("a digit");
    while (is_digit(peek())) ++at_;
    return true;
  }

  bool number() {
    if (peek() != '-' && !is_digit(peek())) return fail("a value");
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else if (!digits()) {
      return false;
    }
    if (peek() == '.') {
      ++at_;
      if (!digits()) return false;
    }
    if (peek() != 'e' && peek() != 'E') return true;
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    return digits();
  }

  bool nested(char close, std::size_t depth) {
    if (depth == JsonObjectText::kDepthMax) {
      return fail(fmt::format("nesting of at most {} levels", JsonObjectText::kDepthMax));
    }
    ++at_;
    skip_space();
    if (peek() == close) return take(close);
    while (true) {
      skip_space();
      if (close == '}' && !key()) return false;
      if (!value(depth + 1)) return false;
      skip_space();
      if (peek() != ',') return take(close);
      ++at_;
    }
  }

  bool key() {
    if (!string()) return false;
    skip_space();
    if (!take(':')) return false;
    skip_space();
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  Error error_;
};

void append_utf8(std::uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

std::uint32_t hex4(std::string_view digits) {
  std::uint32_t value = 0;
  for (const char c : digits.substr(0, 4)) value = value * 16 + static_cast<std::uint32_t>(hex_digit(c));
  return value;
}

// `quoted` was scanned, so that every escape is whole.
std::string decode_string(std::string_view quoted) {
  std::string out;
  const std::string_view text = quoted.substr(1, quoted.size() - 2);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    ++i;
    constexpr std::string_view kFrom = "bfnrt";
    constexpr std::string_view kTo = "\b\f\n\r\t";
    if (text[i] != 'u') {
      const auto index = kFrom.find(text[i]);
      out += index == std::string_view::npos ? text[i] : kTo[index];
      continue;
    }
    std::uint32_t code = hex4(text.substr(i + 1));
    i += 4;
    const bool has_low = code >= 0xD800 && code < 0xDC00 && text.substr(i + 1, 2) == "\\u";
    const std::uint32_t low = has_low ? hex4(text.substr(i + 3)) : 0;
    if (low >= 0xDC00 && low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      i += 6;
    }
    append_utf8(code, out);
  }
  return out;
}

}  // namespace

Result<JsonObjectText> JsonObjectText::scan(std::string_view text) {
  JsonObjectText object;
  object.text_ = text;
  Scanner scanner(text);
  scanner.skip_space();
  if (scanner.peek() != '{') {
    if (!scanner.value(0)) return scanner.error();
    return Error{Code::kInvalidArgument, "a JSON object is expected, not another kind of value"};
  }
  if (!scanner.take('{')) return scanner.error();
  std::size_t segment_begin = scanner.at();
  scanner.skip_space();
  while (scanner.peek() != '}' || !object.members_.empty()) {
    scanner.skip_space();
    JsonMember member;
    member.segment_begin = segment_begin;
    const std::size_t key_begin = scanner.at();
    if (!scanner.string()) return scanner.error();
    member.key = decode_string(text.substr(key_begin, scanner.at() - key_begin));
    scanner.skip_space();
    if (!scanner.take(':')) return scanner.error();
    scanner.skip_space();
    member.value_begin = scanner.at();
    if (!scanner.value(1)) return scanner.error();
    member.value_end = scanner.at();
    scanner.skip_space();
    member.segment_end = scanner.at();
    object.members_.push_back(std::move(member));
    if (scanner.peek() == '}') break;
    if (!scanner.take(',')) return scanner.error();
    segment_begin = scanner.at();
  }
  if (!scanner.take('}')) return scanner.error();
  scanner.skip_space();
  if (!scanner.at_end()) {
    scanner.fail("the end");
    return scanner.error();
  }
  return object;
}

const JsonMember* JsonObjectText::find(std::string_view key) const {
  for (auto it = members_.rbegin(); it != members_.rend(); ++it) {
    if (it->key == key) return &*it;
  }
  return nullptr;
}

std::string_view JsonObjectText::raw(std::string_view key) const {
  const JsonMember* member = find(key);
  return member == nullptr ? "" : text_.substr(member->value_begin, member->value_end - member->value_begin);
}

std::optional<std::string> JsonObjectText::as_string(std::string_view key) const {
  const std::string_view value = raw(key);
  if (!value.starts_with('"')) return std::nullopt;
  return decode_string(value);
}

std::optional<bool> JsonObjectText::as_bool(std::string_view key) const {
  const std::string_view value = raw(key);
  if (value == "true") return true;
  if (value == "false") return false;
  return std::nullopt;
}

std::optional<std::uint64_t> JsonObjectText::as_uint(std::string_view key) const {
  const std::string_view value = raw(key);
  std::uint64_t number = 0;
  const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (value.empty() || failed != std::errc() || end != value.data() + value.size()) return std::nullopt;
  return number;
}

std::string edited(const JsonObjectText& object, std::span<const JsonEdit> edits) {
  const std::string_view text = object.text();
  const auto& members = object.members();
  const std::size_t open = text.find('{');
  const std::size_t close = members.empty() ? text.find('}', open) : members.back().segment_end;

  std::string out(text.substr(0, open + 1));
  bool is_first = true;
  std::size_t last_value_end =
      0;  // In `out`, behind the last value kept; white space before '}' stays at the end.
  const auto append = [&](std::string_view before, std::string_view value, std::string_view after) {
    if (!is_first) out += ',';
    is_first = false;
    out += before;
    out += value;
    last_value_end = out.size();
    out += after;
  };
  for (const JsonMember& member : members) {
    const auto edit = std::ranges::find(edits, member.key, &JsonEdit::key);
    std::string_view value = text.substr(member.value_begin, member.value_end - member.value_begin);
    if (edit != edits.end()) {
      if (!edit->value.has_value() || object.find(member.key) != &member) continue;
      value = *edit->value;
    }
    append(text.substr(member.segment_begin, member.value_begin - member.segment_begin), value,
           text.substr(member.value_end, member.segment_end - member.value_end));
  }
  std::string tail = is_first ? "" : out.substr(last_value_end);
  if (!is_first) out.resize(last_value_end);
  for (const JsonEdit& edit : edits) {
    if (!edit.value.has_value() || object.find(edit.key) != nullptr) continue;
    append(fmt::format("\"{}\":", edit.key), *edit.value, "");
  }
  out += tail;
  out += text.substr(close);
  return out;
}

}  // namespace isthmus::router::shell
