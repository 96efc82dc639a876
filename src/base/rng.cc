// SPDX-License-Identifier: Apache-2.0
// getrandom(2) for identities and keys; a digest of the arguments for reproducible draws.
#include "base/rng.h"

#include <sys/random.h>

#include <array>
#include <cerrno>

#include "base/bytes.h"
#include "base/check.h"
#include "base/digest.h"

namespace isthmus {

void random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    ISTHMUS_CHECK(got > 0);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

Id128 random_id() {
  std::array<std::byte, 16> bytes{};
  random_bytes(bytes);
  return {.high = load_le<std::uint64_t>(bytes), .low = load_le<std::uint64_t>(std::span(bytes).subspan(8))};
}

double uniform_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const std::array<std::uint64_t, 3> key{seed, stream, index};
  constexpr double kUnit = 1.0 / (std::uint64_t{1} << 53);  // 53 bits fill a double's mantissa.
  return static_cast<double>(digest64(bytes_of(std::span<const std::uint64_t>(key))) >> 11) * kUnit;
}

}  // namespace isthmus
