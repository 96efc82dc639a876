// SPDX-License-Identifier: Apache-2.0
// XXH3 digests. They find accidents, not malice; see base/mac.h for the latter.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace isthmus {

// An XXH3-128 value. Text form: 32 lower-case hex digits, high half first.
struct Digest128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend auto operator<=>(const Digest128&, const Digest128&) = default;
  std::string hex() const;
  static std::optional<Digest128> from_hex(std::string_view text);
};

Digest128 digest128(std::span<const std::byte> bytes);
Digest128 digest128(std::string_view text);
std::uint64_t digest64(std::span<const std::byte> bytes);

// Streaming XXH3-128: add() in pieces gives the digest of the concatenation.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  DigestStream(DigestStream&&) noexcept;
  DigestStream& operator=(DigestStream&&) noexcept;

  void reset();
  void add(std::span<const std::byte> bytes);
  Digest128 finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace isthmus
