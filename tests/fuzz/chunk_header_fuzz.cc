// SPDX-License-Identifier: Apache-2.0
// Chunk headers. Their checksums are set right first: without that no field is ever read.
#include <algorithm>
#include <vector>

#include "base/digest.h"
#include "fuzz/input.h"
#include "wire/chunk_header.h"

namespace isthmus::fuzz {
namespace {

constexpr std::size_t kTilesChecksumAt = 136, kChecksumAt = 152;  // spec/handoff.md, "Chunk header".

void check_header(const wire::ChunkHeader& header, std::span<const std::byte> bytes) {
  const auto encoded = wire::encode_chunk_header(header);
  ISTHMUS_CHECK(encoded.ok());
  ISTHMUS_CHECK(std::ranges::equal(*encoded, bytes));
  wire::ChunkGeometry geometry{header.group, header.box, header.raw_bytes, header.tiles.size()};
  const bool is_plain = header.codec == wire::Codec::kNone;  // A codec must have been agreed on.
  ISTHMUS_CHECK(wire::equal_geometry(header, geometry).ok() == is_plain);
  geometry.may_have_codec = true;
  ISTHMUS_CHECK(wire::equal_geometry(header, geometry).ok());
  wire::ChunkGeometry other = geometry;
  ++other.box.tokens.end;
  ISTHMUS_CHECK(!wire::equal_geometry(header, other).ok());
}

}  // namespace
}  // namespace isthmus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  const auto input = fuzz::bytes_of_input(data, size);
  const auto as_it_is = wire::decode_chunk_header(input);
  if (as_it_is.ok()) fuzz::check_header(*as_it_is, input);
  if (size < wire::kChunkFixedBytes) return 0;
  std::vector<std::byte> bytes(input.begin(), input.end());
  const std::span<std::byte> all(bytes);
  store_le(all.subspan(fuzz::kTilesChecksumAt), digest64(all.subspan(wire::kChunkFixedBytes)));
  store_le(all.subspan(fuzz::kChecksumAt), digest64(all.first(fuzz::kChecksumAt)));
  const auto header = wire::decode_chunk_header(bytes);
  if (header.ok()) fuzz::check_header(*header, bytes);
  return 0;
}
