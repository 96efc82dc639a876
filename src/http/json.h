// SPDX-License-Identifier: Apache-2.0
// JSON values: parse, look up, build, write. Member order is kept and integers stay exact over all of int64
// and uint64.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace isthmus::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;
using Object = std::vector<Member>;

// Whole numbers are kInt where int64 holds them, else kUint where uint64 does, else kDouble.
enum class Kind : std::uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };

// One JSON value; a plain value type. Thread rule: as a std::vector.
class Value {
 public:
  Value() = default;
  Value(std::nullptr_t) {}          // NOLINT(*-explicit-*) and so for the others
  template <std::same_as<bool> T>   // Not by conversion: a pointer is no boolean.
  Value(T value) : data_(value) {}  // NOLINT(*-explicit-*)
  template <std::signed_integral T>
  Value(T value) : data_(std::int64_t{value}) {}  // NOLINT(*-explicit-*)
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Value(T value) : data_(number(value)) {}  // NOLINT(*-explicit-*)
  template <std::floating_point T>
  Value(T value) : data_(static_cast<double>(value)) {}       // NOLINT(*-explicit-*)
  Value(const char* text) : data_(std::string(text)) {}       // NOLINT(*-explicit-*)
  Value(std::string_view text) : data_(std::string(text)) {}  // NOLINT(*-explicit-*)
  Value(std::string text) : data_(std::move(text)) {}         // NOLINT(*-explicit-*)
  Value(Array items);                                         // NOLINT(*-explicit-*)
  Value(Object members);                                      // NOLINT(*-explicit-*)

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }

  // The value if it is of that kind, else nothing. An integral double below 2^53 (16.0) counts as an integer,
  // any number as a double.
  std::optional<bool> as_bool() const;
  std::optional<std::int64_t> as_int() const;
  std::optional<std::uint64_t> as_uint() const;
  std::optional<double> as_double() const;
  const std::string* as_string() const { return std::get_if<std::string>(&data_); }
  std::string* as_string() { return std::get_if<std::string>(&data_); }
  const Array* as_array() const { return std::get_if<Array>(&data_); }
  Array* as_array() { return std::get_if<Array>(&data_); }
  const Object* as_object() const { return std::get_if<Object>(&data_); }
  Object* as_object() { return std::get_if<Object>(&data_); }

  // The member of that exact name; null if absent or if this isn't an object.
  const Value* member(std::string_view name) const;
  Value* member(std::string_view name);
  // Follows member names and array indices joined by '.': "choices.0.delta.content"; null if any is absent.
  // Names that hold a '.' are reached with member().
  const Value* find(std::string_view path) const;
  Value* find(std::string_view path);

  // What stands at `path`, for T in bool, int64_t, uint64_t, double, std::string. Absent and null give
  // nothing; another kind is invalid_argument: "'max_tokens' must be an integer, not a string".
  template <typename T>
  Result<std::optional<T>> get(std::string_view path) const;
  // As get(), and absence is invalid_argument too.
  template <typename T>
  Result<T> require(std::string_view path) const;

  // Replaces the member in its place or appends it. This must be an object, or null, which becomes one.
  Value& set(std::string_view name, Value value);
  // False if there was no such member.
  bool erase(std::string_view name);
  // Appends. This must be an array, or null, which becomes one.
  void push(Value value);

  // Compact text. Bytes of strings that aren't UTF-8 become U+FFFD; infinities and NaN become null.
  std::string dump() const;

  friend bool operator==(const Value&, const Value&) = default;

 private:
  using Data =
      std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object>;
  static Data number(std::uint64_t value);
  Data data_ = nullptr;
};

// json::object({{"id", 7}, {"name", "x"}}) and json::array({1, 2, "three"}).
Value object(std::initializer_list<Member> members);
Value array(std::initializer_list<Value> items);
// An array of anything that converts to Value: token ids, names.
template <typename Range>
Value array_of(const Range& range) {
  Array items;
  for (const auto& item : range) items.emplace_back(item);
  return items;
}

struct Limits {
  std::size_t bytes_max = std::size_t{16} << 20;
  std::size_t depth_max = 32;                     // Nested arrays and objects.
  std::size_t values_max = std::size_t{1} << 20;  // All values, a bound on memory: one takes 40 bytes.
};

// Standard JSON in UTF-8, one value. Errors: malformed with the byte offset and the cause (syntax, a limit
// exceeded, a member named twice, a number beyond double).
Result<Value> parse(std::string_view text, const Limits& limits = {});

// "an integer", for messages.
std::string_view name(Kind kind);

}  // namespace isthmus::json
