// SPDX-License-Identifier: Apache-2.0
// Raw memory, read and written with care: the only place where pointers are reinterpreted.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/check.h"

namespace isthmus {

static_assert(std::endian::native == std::endian::little,
              "every format here is little-endian, as is each host supported");

inline unsigned char* as_uchars(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
inline const unsigned char* as_uchars(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
inline char* as_chars(std::byte* bytes) {
  return reinterpret_cast<char*>(bytes);
}
inline const char* as_chars(const std::byte* bytes) {
  return reinterpret_cast<const char*>(bytes);
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {as_chars(bytes.data()), bytes.size()};
}

// The object's own bytes.
template <typename T>
  requires std::is_trivially_copyable_v<T>
std::span<const std::byte> bytes_of(std::span<const T> values) {
  return std::as_bytes(values);
}

// Typed view of raw memory. `bytes` must be aligned for T and hold whole elements.
template <typename T>
  requires std::is_trivially_copyable_v<T>
std::span<T> view_as(std::span<std::byte> bytes) {
  ISTHMUS_CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) == 0 &&
                bytes.size() % sizeof(T) == 0);
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <typename T>
  requires std::is_trivially_copyable_v<T>
std::span<const T> view_as(std::span<const std::byte> bytes) {
  ISTHMUS_CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) == 0 &&
                bytes.size() % sizeof(T) == 0);
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

inline bool is_aligned(const void* pointer, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

// Little-endian scalars at any alignment.
template <typename T>
  requires std::is_arithmetic_v<T>
T load_le(std::span<const std::byte> bytes) {
  ISTHMUS_CHECK(bytes.size() >= sizeof(T));
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}
template <typename T>
  requires std::is_arithmetic_v<T>
void store_le(std::span<std::byte> bytes, T value) {
  ISTHMUS_CHECK(bytes.size() >= sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
}

}  // namespace isthmus
