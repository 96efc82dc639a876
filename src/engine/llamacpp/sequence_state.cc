// SPDX-License-Identifier: Apache-2.0
//   u32 magic | i32 sequence
// and a cache, or two: of layers that attend to all positions, then of local ones
//   u32 streams | u32 cells
//   a cell:  i32 position | u32 owners = 1 | i32 sequence
//   u32 v_transposed | u32 layers
//   a layer: i32 type | u64 row_bytes | cells rows of K
//   a layer: i32 type | u64 row_bytes | cells rows of V                                     not transposed
//            i32 type | u32 element_bytes | u32 columns | columns of cells elements of V    transposed
#include "engine/llamacpp/sequence_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::uint32_t kMagic = 0xaf143cd8;
constexpr std::size_t kHeadBytes = 8, kCellBytes = 12;
constexpr std::size_t kCacheHeadBytes = 16;  // All four counts.
constexpr std::size_t kPlaneHeadBytes = 12;  // The same for all kinds of planes.

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

class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::size_t left() const { return bytes_.size(); }
  void skip(std::uint64_t size) { bytes_ = bytes_.subspan(size); }

  template <typename T>
  void number(T value) {
    store_le(bytes_, value);
    skip(sizeof(T));
  }

 private:
  std::span<std::byte> bytes_;
};

Result<std::vector<std::int32_t>> read_cells(Reader& reader, const StateShape& shape) {
  const std::uint32_t cells = shape.cells();
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

// Into `planes`, of which each of `layers` has one.
Status read_planes(Reader& reader, const StateShape& shape, std::span<const std::uint32_t> layers, bool keys,
                   std::vector<std::span<const std::byte>>& planes) {
  const std::uint64_t row_bytes = keys ? shape.k_row_bytes : shape.v_row_bytes;
  for (const std::uint32_t layer : layers) {
    const std::string plane = fmt::format("layer {} {}", layer, keys ? "K" : "V");
    ISTHMUS_TRY(reader.expect(plane + " type", keys ? shape.k_type : shape.v_type));
    if (!keys && shape.v_columns != 0) {
      ISTHMUS_TRY(reader.expect(plane + " element bytes", shape.v_element_bytes()));
      ISTHMUS_TRY(reader.expect(plane + " columns", shape.v_columns));
    } else {
      ISTHMUS_TRY(reader.expect(plane + " row bytes", row_bytes));
    }
    ISTHMUS_TRY(planes[layer], reader.take(shape.cells() * row_bytes, plane + " rows"));
  }
  return ok_status();
}

// The positions of its cells.
Result<std::vector<std::int32_t>> read_cache(Reader& reader, const StateShape& shape,
                                             std::span<const std::uint32_t> layers, SequenceState& state) {
  ISTHMUS_TRY(reader.expect<std::uint32_t>("stream count", 1));
  if (reader.left() / kCellBytes < shape.cells()) {
    return unexpected("cells", reader.at(),
                      fmt::format("{} bytes left for {} cells", reader.left(), shape.cells()));
  }
  ISTHMUS_TRY(std::vector<std::int32_t> positions, read_cells(reader, shape));
  ISTHMUS_TRY(reader.expect<std::uint32_t>("v_trans", shape.v_columns == 0 ? 0 : 1));
  ISTHMUS_TRY(reader.expect("layer count", static_cast<std::uint32_t>(layers.size())));
  ISTHMUS_TRY(read_planes(reader, shape, layers, true, state.k));
  ISTHMUS_TRY(read_planes(reader, shape, layers, false, state.v));
  return positions;
}

void write_cache(Writer& writer, const StateShape& shape, std::span<const std::uint32_t> layers) {
  writer.number(std::uint32_t{1});
  writer.number(shape.cells());
  for (std::int32_t position = shape.position_begin; position < shape.position_end; ++position) {
    writer.number(position);
    writer.number(std::uint32_t{1});
    writer.number(shape.sequence);
  }
  writer.number(std::uint32_t{shape.v_columns == 0 ? 0U : 1U});
  writer.number(static_cast<std::uint32_t>(layers.size()));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    writer.number(shape.k_type);
    writer.number(shape.k_row_bytes);
    writer.skip(shape.cells() * shape.k_row_bytes);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    writer.number(shape.v_type);
    if (shape.v_columns != 0) {
      writer.number(shape.v_element_bytes());
      writer.number(shape.v_columns);
    } else {
      writer.number(shape.v_row_bytes);
    }
    writer.skip(shape.cells() * shape.v_row_bytes);
  }
}

std::vector<std::uint32_t> layers_of_cache(const StateShape& shape, bool is_local) {
  std::vector<std::uint32_t> layers;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.window.is_local(layer) == is_local) layers.push_back(layer);
  }
  return layers;
}

void check_shape(const StateShape& shape) {
  ISTHMUS_CHECK(shape.position_begin >= 0 && shape.position_begin < shape.position_end);
  ISTHMUS_CHECK(shape.v_columns == 0 || shape.v_row_bytes % shape.v_columns == 0);
}

}  // namespace

Result<SequenceState> parse_sequence_state(std::span<const std::byte> bytes, const StateShape& shape) {
  check_shape(shape);
  Reader reader(bytes);
  ISTHMUS_TRY(reader.expect("magic", kMagic));
  ISTHMUS_TRY(reader.expect("sequence", shape.sequence));
  SequenceState state{.positions = {}, .local_positions = {}, .k = {}, .v = {}};
  state.k.resize(shape.layers);
  state.v.resize(shape.layers);
  ISTHMUS_TRY(state.positions, read_cache(reader, shape, layers_of_cache(shape, false), state));
  if (shape.window.tokens != 0) {
    ISTHMUS_TRY(state.local_positions, read_cache(reader, shape, layers_of_cache(shape, true), state));
  }
  if (reader.left() != 0) {
    return unexpected("end", reader.at(), fmt::format("{} bytes follow the last plane", reader.left()));
  }
  return state;
}

std::uint64_t sequence_state_bytes(const StateShape& shape) {
  check_shape(shape);
  const std::uint64_t caches = shape.window.tokens == 0 ? 1 : 2;
  const std::uint64_t of_cell = caches * kCellBytes + shape.layers * (shape.k_row_bytes + shape.v_row_bytes);
  return kHeadBytes + caches * kCacheHeadBytes + shape.layers * 2 * kPlaneHeadBytes + shape.cells() * of_cell;
}

void format_sequence_state(std::span<std::byte> bytes, const StateShape& shape) {
  ISTHMUS_CHECK(bytes.size() == sequence_state_bytes(shape));
  Writer writer(bytes);
  writer.number(kMagic);
  writer.number(shape.sequence);
  write_cache(writer, shape, layers_of_cache(shape, false));
  if (shape.window.tokens != 0) write_cache(writer, shape, layers_of_cache(shape, true));
  ISTHMUS_CHECK(writer.left() == 0);
}

bool SequenceState::is_in_order() const {
  return std::ranges::is_sorted(positions) && std::ranges::is_sorted(local_positions);
}

}  // namespace isthmus::engine::llamacpp
