// SPDX-License-Identifier: Apache-2.0
// Builds and reads the fixed little-endian byte strings that are signed or sent as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/id.h"

namespace isthmus::wire {

class ByteWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void number(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    store_le(std::span(bytes_).subspan(at), value);
  }
  void id(const Id128& id) {
    number(id.high);
    number(id.low);
  }
  void digest(const Digest128& digest) {
    number(digest.high);
    number(digest.low);
  }
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // With its length, so that neighbours can't run into each other.
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    raw(bytes_of(text));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what ByteWriter wrote. Beyond the end everything is zero and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T number() {
    if (rest_.size() < sizeof(T)) return fail<T>();
    const T value = load_le<T>(rest_);
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  Id128 id() {
    const auto high = number<std::uint64_t>();
    return {high, number<std::uint64_t>()};
  }
  Digest128 digest() {
    const auto high = number<std::uint64_t>();
    return {high, number<std::uint64_t>()};
  }
  std::string text(std::size_t bytes_max) {
    const auto size = number<std::uint32_t>();
    if (size > bytes_max || size > rest_.size()) return fail<std::string>();
    std::string text(text_of(rest_.first(size)));
    rest_ = rest_.subspan(size);
    return text;
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return rest_.size(); }

 private:
  template <typename T>
  T fail() {
    ok_ = false;
    rest_ = {};
    return T{};
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace isthmus::wire
