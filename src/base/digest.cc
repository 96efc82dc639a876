// SPDX-License-Identifier: Apache-2.0
// The one home of xxHash.
#include "base/digest.h"

#include <fmt/format.h>

// xxhash.h, or on x86 the header that makes it choose the widest vectors at run time.
#include ISTHMUS_XXHASH

#include <charconv>

namespace isthmus {
namespace {

Digest128 from_xxh(XXH128_hash_t hash) {
  return {hash.high64, hash.low64};
}

std::optional<std::uint64_t> parse_hex64(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string Digest128::hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

std::optional<Digest128> Digest128::from_hex(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  const auto high = parse_hex64(text.substr(0, 16));
  const auto low = parse_hex64(text.substr(16));
  if (!high || !low) return std::nullopt;
  return Digest128{*high, *low};
}

Digest128 digest128(std::span<const std::byte> bytes) {
  return from_xxh(XXH3_128bits(bytes.data(), bytes.size()));
}
Digest128 digest128(std::string_view text) {
  return from_xxh(XXH3_128bits(text.data(), text.size()));
}
std::uint64_t digest64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

struct DigestStream::State {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  reset();
}
DigestStream::~DigestStream() = default;
DigestStream::DigestStream(DigestStream&&) noexcept = default;
DigestStream& DigestStream::operator=(DigestStream&&) noexcept = default;

void DigestStream::reset() {
  XXH3_128bits_reset(state_->xxh.get());
}
void DigestStream::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}
Digest128 DigestStream::finish() const {
  return from_xxh(XXH3_128bits_digest(state_->xxh.get()));
}

}  // namespace isthmus
