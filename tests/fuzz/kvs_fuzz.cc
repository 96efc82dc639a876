// SPDX-License-Identifier: Apache-2.0
// A .kvs file of any bytes: read and loaded, or a typed error. Checksums that no mutation would hit are set
// right in two of three inputs, so that what is behind them is reached too: fields, and frames of a codec.
#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "fuzz/input.h"
#include "kvs/state.h"
#include "wire/chunk_header.h"

namespace isthmus::fuzz {
namespace {

// Places in a chunk header (spec/handoff.md): what is stored of the body, its sum, tile digests.
constexpr std::size_t kStoredBytesAt = 112, kBodySumAt = 120, kTilesAt = 128;

// Head, first chunk header and its body as if their sums were right.
void mend(std::vector<std::byte>& bytes) {
  if (bytes.size() < kvs::kHeadBytes) return;
  const auto length = load_le<std::uint32_t>(std::span<const std::byte>(bytes).subspan(12));
  if (length > bytes.size() - kvs::kHeadBytes) return;
  const auto manifest = std::span<const std::byte>(bytes).subspan(kvs::kHeadBytes, length);
  store_le(std::span(bytes).subspan(16), digest64(manifest));
  const std::size_t at = kvs::kHeadBytes + length;
  if (bytes.size() - at < wire::kChunkFixedBytes) return;
  const auto header = std::span(bytes).subspan(at, wire::kChunkFixedBytes);
  const auto stored = load_le<std::uint64_t>(std::span<const std::byte>(header).subspan(kStoredBytesAt));
  const std::uint64_t tiles = load_le<std::uint32_t>(std::span<const std::byte>(header).subspan(kTilesAt));
  const std::uint64_t body = at + wire::kChunkFixedBytes + tiles * wire::kTileDigestBytes;
  if (body < bytes.size() && stored <= bytes.size() - body) {
    const auto frame = std::span<const std::byte>(bytes).subspan(body, stored);
    store_le(header.subspan(kBodySumAt), digest64(frame));
  }
  store_le(header.last(8), digest64(std::span<const std::byte>(header).first(wire::kChunkFixedBytes - 8)));
}

}  // namespace
}  // namespace isthmus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  std::transform(data + 1, data + size, bytes.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
  if (data[0] % 3 != 0) fuzz::mend(bytes);
  std::size_t at = 0;
  const auto read = [&](std::span<std::byte> into) -> Status {
    if (into.size() > bytes.size() - at) return Error{Code::kMalformed, "too early"};
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), into.size(), into.begin());
    at += into.size();
    return ok_status();
  };
  auto reader = kvs::Reader::open(read, bytes.size());
  if (!reader.ok()) return 0;
  const auto state = kvs::load(*reader);
  if (!state.ok()) return 0;
  // What was accepted is written again the same.
  std::vector<std::byte> again;
  const auto root = kvs::save(*state, [&](std::span<const std::byte> more) {
    again.insert(again.end(), more.begin(), more.end());
    return ok_status();
  });
  ISTHMUS_CHECK(root.ok() && (reader->is_compressed() || again.size() == bytes.size()));
  return 0;
}
