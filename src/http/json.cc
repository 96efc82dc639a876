// SPDX-License-Identifier: Apache-2.0
// JSON values. Parsing is in json_parse.cc, so that Boost.JSON is seen by one file.
#include "http/json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace isthmus::json {
namespace {

constexpr double kExactIntegers = 9007199254740992.0;  // 2^53: below it each integer is its own double.

// Length of the valid UTF-8 sequence that starts `text`, 0 if there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool surrogate = lead == 0xed && second > 0x9f;
  const bool beyond = lead == 0xf4 && second > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (length > 1) {
      out += text.substr(0, length);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  const std::string_view digits(text.data(), static_cast<std::size_t>(end - text.data()));
  out += digits;
  // Keeps the kind: 1.0 reads back as a double.
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append(std::string& out, const Value& value);

void append_object(std::string& out, const Object& members) {
  out += '{';
  bool first = true;
  for (const auto& [name, value] : members) {
    if (!std::exchange(first, false)) out += ',';
    append_string(out, name);
    out += ':';
    append(out, value);
  }
  out += '}';
}

void append_array(std::string& out, const Array& items) {
  out += '[';
  bool first = true;
  for (const Value& item : items) {
    if (!std::exchange(first, false)) out += ',';
    append(out, item);
  }
  out += ']';
}

void append(std::string& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBool:
      out += *value.as_bool() ? "true" : "false";
      return;
    case Kind::kInt:
      out += fmt::format("{}", *value.as_int());
      return;
    case Kind::kUint:
      out += fmt::format("{}", *value.as_uint());
      return;
    case Kind::kDouble:
      append_double(out, *value.as_double());
      return;
    case Kind::kString:
      append_string(out, *value.as_string());
      return;
    case Kind::kArray:
      append_array(out, *value.as_array());
      return;
    case Kind::kObject:
      append_object(out, *value.as_object());
      return;
  }
}

template <typename T>
std::optional<T> read(const Value& value, std::string_view& wanted) {
  if constexpr (std::is_same_v<T, bool>) {
    wanted = "a boolean";
    return value.as_bool();
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    wanted = "an integer";
    return value.as_int();
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    wanted = "a non-negative integer";
    return value.as_uint();
  } else if constexpr (std::is_same_v<T, double>) {
    wanted = "a number";
    return value.as_double();
  } else {
    wanted = "a string";
    const std::string* text = value.as_string();
    return text ? std::optional(*text) : std::nullopt;
  }
}

// The value that was seen, short enough for a message; texts and containers may hold prompts, so only numbers
// are shown.
std::string seen(const Value& value) {
  const bool is_number = value.as_double().has_value();
  return is_number ? value.dump() : std::string(name(value.kind()));
}

}  // namespace

Value::Value(Array items) : data_(std::move(items)) {}
Value::Value(Object members) : data_(std::move(members)) {}

Value::Data Value::number(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

std::optional<bool> Value::as_bool() const {
  const bool* value = std::get_if<bool>(&data_);
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<std::int64_t> Value::as_int() const {
  if (const auto* value = std::get_if<std::int64_t>(&data_)) return *value;
  const auto* real = std::get_if<double>(&data_);
  if (real && std::abs(*real) < kExactIntegers && std::trunc(*real) == *real)
    return static_cast<std::int64_t>(*real);
  return std::nullopt;
}

std::optional<std::uint64_t> Value::as_uint() const {
  if (const auto* value = std::get_if<std::uint64_t>(&data_)) return *value;
  const std::optional<std::int64_t> value = as_int();
  return value && *value >= 0 ? std::optional(static_cast<std::uint64_t>(*value)) : std::nullopt;
}

std::optional<double> Value::as_double() const {
  if (const auto* real = std::get_if<double>(&data_)) return *real;
  if (const auto* value = std::get_if<std::int64_t>(&data_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::uint64_t>(&data_)) return static_cast<double>(*value);
  return std::nullopt;
}

const Value* Value::member(std::string_view name) const {
  const Object* members = as_object();
  if (!members) return nullptr;
  for (const auto& [key, value] : *members) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value* Value::member(std::string_view name) {
  return const_cast<Value*>(std::as_const(*this).member(name));
}

const Value* Value::find(std::string_view path) const {
  const Value* at = this;
  while (at) {
    const std::size_t dot = path.find('.');
    const std::string_view step = path.substr(0, dot);
    if (const Array* items = at->as_array()) {
      std::size_t index = 0;
      const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), index);
      const bool is_index = error == std::errc() && end == step.data() + step.size();
      at = is_index && index < items->size() ? &(*items)[index] : nullptr;
    } else {
      at = at->member(step);
    }
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
  return nullptr;
}

Value* Value::find(std::string_view path) {
  return const_cast<Value*>(std::as_const(*this).find(path));
}

template <typename T>
Result<std::optional<T>> Value::get(std::string_view path) const {
  const Value* value = find(path);
  if (!value || value->is_null()) return std::optional<T>();
  std::string_view wanted;
  std::optional<T> read_value = read<T>(*value, wanted);
  if (!read_value)
    return Error{Code::kInvalidArgument, fmt::format("'{}' must be {}, not {}", path, wanted, seen(*value))};
  return read_value;
}

template <typename T>
Result<T> Value::require(std::string_view path) const {
  ISTHMUS_TRY(std::optional<T> value, get<T>(path));
  if (!value) return Error{Code::kInvalidArgument, fmt::format("'{}' is required", path)};
  return *std::move(value);
}

template Result<std::optional<bool>> Value::get<bool>(std::string_view) const;
template Result<std::optional<std::int64_t>> Value::get<std::int64_t>(std::string_view) const;
template Result<std::optional<std::uint64_t>> Value::get<std::uint64_t>(std::string_view) const;
template Result<std::optional<double>> Value::get<double>(std::string_view) const;
template Result<std::optional<std::string>> Value::get<std::string>(std::string_view) const;
template Result<bool> Value::require<bool>(std::string_view) const;
template Result<std::int64_t> Value::require<std::int64_t>(std::string_view) const;
template Result<std::uint64_t> Value::require<std::uint64_t>(std::string_view) const;
template Result<double> Value::require<double>(std::string_view) const;
template Result<std::string> Value::require<std::string>(std::string_view) const;

Value& Value::set(std::string_view name, Value value) {
  if (is_null()) data_ = Object();
  ISTHMUS_CHECK(is_object());
  if (Value* old = member(name)) return *old = std::move(value);
  return as_object()->emplace_back(std::string(name), std::move(value)).second;
}

bool Value::erase(std::string_view name) {
  Object* members = as_object();
  return members && std::erase_if(*members, [&](const Member& member) { return member.first == name; }) > 0;
}

void Value::push(Value value) {
  if (is_null()) data_ = Array();
  ISTHMUS_CHECK(is_array());
  as_array()->push_back(std::move(value));
}

std::string Value::dump() const {
  std::string out;
  append(out, *this);
  return out;
}

Value object(std::initializer_list<Member> members) {
  return Object(members);
}
Value array(std::initializer_list<Value> items) {
  return Array(items);
}

std::string_view name(Kind kind) {
  constexpr std::array<std::string_view, 8> kNames{"null",     "a boolean", "an integer", "an integer",
                                                   "a number", "a string",  "an array",   "an object"};
  return kNames.at(static_cast<std::size_t>(kind));
}

}  // namespace isthmus::json
