// SPDX-License-Identifier: Apache-2.0
//   u32 magic | i32 sequence | u32 streams | u32 cells
//   a cell:  i32 position | u32 owners = 1 | i32 sequence
//   u32 v_transposed | u32 layers
//   a layer: i32 type | u64 row_bytes | cells rows of K        then, for all layers again, V
#include "engine/llamacpp/sequence_state.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/bytes.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::uint32_t kMagic = 0xaf143cd8;
constexpr std::size_t kCellBytes = 12;

Error unexpected(std::string_view what, std::size_t at, std::string_view detail) {
  return {Code::kIncompatible, fmt::format("llama.cpp sequence state: {} at byte {}: {}", what, at, detail)};
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }

  Result<std::span<const std::byte>> take(std::uint64_t size, std::string_view what) {
    if (size > left()) return unexpected(what, at_, fmt::format("{} bytes needed, {} left", size, left()));
    const auto taken = bytes_.subspan(at_, size);
    at_ += size;
    return taken;
  }

  template <typename T>
  Result<T> number(std::string_view what) {
    ISTHMUS_TRY(const auto bytes, take(sizeof(T), what));
    return load_le<T>(bytes);
  }

  // A number that must be `wanted`.
  template <typename T>
  Status expect(std::string_view what, T wanted) {
    const std::size_t begin = at_;
    ISTHMUS_TRY(const T found, number<T>(what));
    if (found == wanted) return ok_status();
    return unexpected(what, begin, fmt::format("{} found, {} expected", found, wanted));
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

Result<std::vector<std::int32_t>> read_cells(Reader& reader, const StateShape& shape) {
  const auto cells = static_cast<std::uint32_t>(shape.position_end - shape.position_begin);
  ISTHMUS_TRY(reader.expect("cell count", cells));
  std::vector<std::int32_t> positions;
  std::vector<bool> seen(cells, false);
  positions.reserve(cells);
  for (std::uint32_t cell = 0; cell < cells; ++cell) {
    const std::size_t begin = reader.at();
    ISTHMUS_TRY(const auto position, reader.number<std::int32_t>("position"));
    if (position < shape.position_begin || position >= shape.position_end) {
      return unexpected(
          "position", begin,
          fmt::format("{} is outside [{}, {})", position, shape.position_begin, shape.position_end));
    }
    const auto index = static_cast<std::size_t>(position - shape.position_begin);
    if (seen[index]) return unexpected("position", begin, fmt::format("{} stands twice", position));
    seen[index] = true;
    positions.push_back(position);
    ISTHMUS_TRY(reader.expect<std::uint32_t>("owners of a cell", 1));
    ISTHMUS_TRY(reader.expect("sequence of a cell", shape.sequence));
  }
  return positions;
}

Result<std::vector<std::span<const std::byte>>> read_planes(Reader& reader, const StateShape& shape,
                                                            bool keys) {
  const auto cells = static_cast<std::uint64_t>(shape.position_end - shape.position_begin);
  const std::uint64_t row_bytes = keys ? shape.k_row_bytes : shape.v_row_bytes;
  std::vector<std::span<const std::byte>> planes;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string plane = fmt::format("layer {} {}", layer, keys ? "K" : "V");
    ISTHMUS_TRY(reader.expect(plane + " type", keys ? shape.k_type : shape.v_type));
    ISTHMUS_TRY(reader.expect(plane + " row bytes", row_bytes));
    ISTHMUS_TRY(const auto rows, reader.take(cells * row_bytes, plane + " rows"));
    planes.push_back(rows);
  }
  return planes;
}

}  // namespace

Result<SequenceState> parse_sequence_state(std::span<const std::byte> bytes, const StateShape& shape) {
  ISTHMUS_CHECK(shape.position_begin >= 0 && shape.position_begin < shape.position_end);
  Reader reader(bytes);
  ISTHMUS_TRY(reader.expect("magic", kMagic));
  ISTHMUS_TRY(reader.expect("sequence", shape.sequence));
  ISTHMUS_TRY(reader.expect<std::uint32_t>("stream count", 1));
  SequenceState state;
  if (reader.left() / kCellBytes < static_cast<std::size_t>(shape.position_end - shape.position_begin)) {
    return unexpected(
        "cells", reader.at(),
        fmt::format("{} bytes left for {} cells", reader.left(), shape.position_end - shape.position_begin));
  }
  ISTHMUS_TRY(state.positions, read_cells(reader, shape));
  // 1: V lies by column, as it does without flash attention; this adapter runs with it.
  ISTHMUS_TRY(reader.expect<std::uint32_t>("v_trans", 0));
  ISTHMUS_TRY(reader.expect("layer count", shape.layers));
  ISTHMUS_TRY(state.k, read_planes(reader, shape, true));
  ISTHMUS_TRY(state.v, read_planes(reader, shape, false));
  if (reader.left() != 0) {
    return unexpected("end", reader.at(), fmt::format("{} bytes follow the last plane", reader.left()));
  }
  return state;
}

}  // namespace isthmus::engine::llamacpp
