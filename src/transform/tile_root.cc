// SPDX-License-Identifier: Apache-2.0
// The root over all tile digests (spec/wire-form.md §5).
#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "transform/plan.h"

namespace isthmus::transform {
namespace {

template <typename T>
void add_le(DigestStream& stream, T value) {
  std::array<std::byte, sizeof(T)> bytes{};
  store_le(std::span<std::byte>(bytes), value);
  stream.add(bytes);
}

}  // namespace

void TileRoot::add(const TileKey& key, Digest128 digest) {
  tiles_.emplace_back(key, digest);
}

Digest128 TileRoot::root() const {
  // Arrival order differs between the ends; a copy is sorted so that root() may be asked for at any time.
  auto sorted = tiles_;
  std::sort(sorted.begin(), sorted.end());
  DigestStream stream;
  for (const auto& [key, digest] : sorted) {
    add_le(stream, key.group);
    add_le(stream, key.layer);
    add_le(stream, static_cast<std::uint32_t>(key.part.size()));
    stream.add(bytes_of(key.part));
    add_le(stream, key.head);
    add_le(stream, key.tokens.begin);
    add_le(stream, key.tokens.end);
    add_le(stream, digest.high);
    add_le(stream, digest.low);
  }
  return stream.finish();
}

}  // namespace isthmus::transform
