// SPDX-License-Identifier: Apache-2.0
// The loop nests of redistribution: whole rows, token-contiguous columns, single elements, nibbles.
#include "transform/tile_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "transform/unit_runs.h"

namespace isthmus::transform {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kRowsAhead = 16;

template <std::size_t kBytes>
using Element = std::conditional_t<kBytes == 1, std::uint8_t,
                                   std::conditional_t<kBytes == 2, std::uint16_t, std::uint32_t>>;

// GCC ignores the attribute on an alias template.
template <typename T>
struct VectorOf {
  using Type [[gnu::vector_size(16)]] = T;
};
template <typename T>
using Vector = typename VectorOf<T>::Type;

// Elements of the first (second) halves of `a` and `b`, alternating.
template <typename V, std::size_t... kAt>
V interleave(V a, V b, std::size_t half, std::index_sequence<kAt...>) {
  constexpr std::size_t kLanes = sizeof...(kAt);
  return half == 0 ? __builtin_shufflevector(a, b, (kAt / 2 + kAt % 2 * kLanes)...)
                   : __builtin_shufflevector(a, b, (kLanes / 2 + kAt / 2 + kAt % 2 * kLanes)...);
}

// A square of as many rows as a 128-bit vector has elements, turned: element j of row i becomes element i of
// row j. Each round interleaves the rows' first half with their second; after log2(rows) rounds that is the
// transpose.
template <typename T, typename FromRow, typename ToRow>
void turn_square(FromRow from_row, ToRow to_row) {
  constexpr std::size_t kLanes = 16 / sizeof(T);
  constexpr auto kAt = std::make_index_sequence<kLanes>();
  std::array<Vector<T>, kLanes> rows;
  for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(&rows[i], from_row(i), sizeof(rows[i]));
  for (std::size_t half = 1; half < kLanes; half *= 2) {
    const auto before = rows;
    for (std::size_t i = 0; i < kLanes / 2; ++i) {
      rows[2 * i] = interleave(before[i], before[i + kLanes / 2], 0, kAt);
      rows[2 * i + 1] = interleave(before[i], before[i + kLanes / 2], 1, kAt);
    }
  }
  for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(to_row(i), &rows[i], sizeof(rows[i]));
}

// Even (odd) elements of `a` and `b`, in order.
template <typename V, std::size_t... kAt>
V every_other(V a, V b, std::size_t first, std::index_sequence<kAt...>) {
  return first == 0 ? __builtin_shufflevector(a, b, (2 * kAt)...)
                    : __builtin_shufflevector(a, b, (2 * kAt + 1)...);
}

struct Gather {
  using Memory = const std::byte*;
  using Canonical = std::byte*;
  // Two vectors of elements of two tokens in turn, to one vector of each token.
  template <std::size_t kBytes>
  static void part(Memory memory, Canonical even, Canonical odd) {
    constexpr auto kAt = std::make_index_sequence<16 / kBytes>();
    std::array<Vector<Element<kBytes>>, 2> both, rows;
    std::memcpy(both.data(), memory, sizeof(both));
    for (std::size_t i = 0; i < 2; ++i) rows[i] = every_other(both[0], both[1], i, kAt);
    std::memcpy(even, &rows[0], sizeof(rows[0]));
    std::memcpy(odd, &rows[1], sizeof(rows[1]));
  }
  static void move(Memory memory, Canonical canonical, std::size_t bytes) {
    std::memcpy(canonical, memory, bytes);
  }
  template <std::size_t kBytes, typename MemoryRow, typename CanonicalRow>
  static void turn(MemoryRow memory, CanonicalRow canonical) {
    turn_square<Element<kBytes>>(memory, canonical);
  }
};

struct Scatter {
  using Memory = std::byte*;
  using Canonical = const std::byte*;
  template <std::size_t kBytes>
  static void part(Memory memory, Canonical even, Canonical odd) {
    constexpr auto kAt = std::make_index_sequence<16 / kBytes>();
    std::array<Vector<Element<kBytes>>, 2> both, rows;
    std::memcpy(&rows[0], even, sizeof(rows[0]));
    std::memcpy(&rows[1], odd, sizeof(rows[1]));
    for (std::size_t i = 0; i < 2; ++i) both[i] = interleave(rows[0], rows[1], i, kAt);
    std::memcpy(memory, both.data(), sizeof(both));
  }
  static void move(Memory memory, Canonical canonical, std::size_t bytes) {
    std::memcpy(memory, canonical, bytes);
  }
  template <std::size_t kBytes, typename MemoryRow, typename CanonicalRow>
  static void turn(MemoryRow memory, CanonicalRow canonical) {
    turn_square<Element<kBytes>>(canonical, memory);
  }
};

// Tokens that follow each other at a distance of `step` bits, from `begin` on; found by comparing neighbours.
std::size_t run_end(std::span<const std::int64_t> token_bits, std::size_t begin, std::int64_t step) {
  std::size_t end = begin + 1;
  while (end < token_bits.size() && token_bits[end] - token_bits[end - 1] == step) ++end;
  return end;
}

template <typename Direction>
void copy_row_runs(const TileView& view, typename Direction::Canonical canonical, std::size_t row_bytes) {
  const auto step = static_cast<std::int64_t>(row_bytes * 8);
  const std::int64_t first = view.origin_bits + view.unit_bits[0];
  for (std::size_t token = 0; token < view.token_bits.size();) {
    const std::size_t end = run_end(view.token_bits, token, step);
    Direction::move(view.base + (first + view.token_bits[token]) / 8, canonical + token * row_bytes,
                    (end - token) * row_bytes);
    token = end;
  }
}

// A size known to the compiler becomes a few vector moves instead of a call per row.
template <typename Direction, std::size_t kRowBytes>
void copy_rows_of(const TileView& view, typename Direction::Canonical canonical) {
  typename Direction::Memory first = view.base + (view.origin_bits + view.unit_bits[0]) / 8;
  const std::size_t tokens = view.token_bits.size();
  for (std::size_t token = 0; token < tokens; ++token) {
    if constexpr (kRowBytes >= kLineBytes) {
      // Rows of one head lie a stride apart that hardware doesn't follow.
      const std::int64_t ahead = view.token_bits[std::min(token + kRowsAhead, tokens - 1)];
      for (std::size_t line = 0; line < kRowBytes; line += kLineBytes) {
        __builtin_prefetch(first + ahead / 8 + line);
      }
    }
    Direction::move(first + view.token_bits[token] / 8, canonical + token * kRowBytes, kRowBytes);
  }
}

template <typename Direction>
void copy_rows(const TileView& view, typename Direction::Canonical canonical) {
  const std::size_t row_bytes = view.unit_bits.size() * view.element_bits / 8;
  const auto step = static_cast<std::int64_t>(row_bytes * 8);
  const bool runs = view.token_bits.size() > 1 && view.token_bits[1] - view.token_bits[0] == step;
  if (runs) return copy_row_runs<Direction>(view, canonical, row_bytes);
  switch (row_bytes) {
    case 1:
      return copy_rows_of<Direction, 1>(view, canonical);
    case 2:
      return copy_rows_of<Direction, 2>(view, canonical);
    case 4:
      return copy_rows_of<Direction, 4>(view, canonical);
    case 8:
      return copy_rows_of<Direction, 8>(view, canonical);
    case 64:
      return copy_rows_of<Direction, 64>(view, canonical);
    case 128:
      return copy_rows_of<Direction, 128>(view, canonical);
    case 256:
      return copy_rows_of<Direction, 256>(view, canonical);
    default:
      return copy_row_runs<Direction>(view, canonical, row_bytes);
  }
}

// As many elements of a row as move as one, since they lie side by side: up to four bytes.
std::size_t merged_units(const TileView& view) {
  const std::size_t units = view.unit_bits.size();
  for (std::size_t merged = 32 / view.element_bits; merged > 1; merged /= 2) {
    bool fits = units % merged == 0;
    for (std::size_t unit = 0; fits && unit < units; ++unit) {
      const auto in_run = static_cast<std::int64_t>(unit % merged * view.element_bits);
      fits = view.unit_bits[unit] == view.unit_bits[unit - unit % merged] + in_run;
    }
    if (fits) return merged;
  }
  return 1;
}

// Elements of `bytes` bytes, each made of `merged` units.
struct Elements {
  std::span<const std::int64_t> unit_bits;
  std::size_t merged = 1;
  std::size_t size() const { return unit_bits.size() / merged; }
  std::int64_t bits(std::size_t element) const { return unit_bits[element * merged]; }
};

// True if each vector's worth of elements lies two elements apart: room for those of another token.
template <std::size_t kBytes>
bool has_gaps_of_one(const Elements& elements) {
  constexpr std::size_t kLanes = 16 / kBytes;
  bool has = elements.size() % kLanes == 0;
  for (std::size_t i = 0; has && i < elements.size(); ++i) {
    const auto in_run = static_cast<std::int64_t>(i % kLanes * kBytes * 16);
    has = elements.bits(i) == elements.bits(i - i % kLanes) + in_run;
  }
  return has;
}

// Tokens [begin, end) are neighbours in memory, units are anywhere. As many units at a time as fill a vector:
// their tokens are read or written in order, and the canonical lines that they share stay in the first-level
// cache.
template <typename Direction, std::size_t kBytes>
void transpose(const TileView& view, const Elements& elements, typename Direction::Canonical canonical,
               std::size_t begin, std::size_t end) {
  constexpr std::size_t kLanes = 16 / kBytes;
  const std::size_t units = elements.size();
  const std::size_t row_bytes = units * kBytes;
  const std::size_t whole_tokens = begin + (end - begin) / kLanes * kLanes;
  const std::size_t whole_units = units / kLanes * kLanes;
  typename Direction::Memory first = view.base + (view.origin_bits + view.token_bits[begin]) / 8;
  const auto memory = [&](std::size_t token, std::size_t unit) {
    return first + elements.bits(unit) / 8 + (token - begin) * kBytes;
  };
  const auto element = [&](std::size_t token, std::size_t unit) {
    return canonical + token * row_bytes + unit * kBytes;
  };
  for (std::size_t unit = 0; unit < whole_units; unit += kLanes) {
    for (std::size_t token = begin; token < whole_tokens; token += kLanes) {
      // Rows of other units lie far apart, where no hardware looks ahead.
      if (unit + kLanes < whole_units && (token - begin) * kBytes % kLineBytes == 0) {
        for (std::size_t i = 0; i < kLanes; ++i) __builtin_prefetch(memory(token, unit + kLanes + i));
      }
      Direction::template turn<kBytes>([&](std::size_t i) { return memory(token, unit + i); },
                                       [&](std::size_t i) { return element(token + i, unit); });
    }
  }
  for (std::size_t unit = 0; unit < units; ++unit) {
    for (std::size_t token = unit < whole_units ? whole_tokens : begin; token < end; ++token) {
      Direction::move(memory(token, unit), element(token, unit), kBytes);
    }
  }
}

template <typename Direction, std::size_t kBytes>
void copy_elements(const TileView& view, std::size_t merged, typename Direction::Canonical canonical) {
  constexpr std::size_t kLanes = 16 / kBytes;
  const Elements elements{view.unit_bits, merged};
  const std::size_t units = elements.size();
  const bool has_pairs = has_gaps_of_one<kBytes>(elements);
  for (std::size_t token = 0; token < view.token_bits.size();) {
    const std::size_t end = run_end(view.token_bits, token, kBytes * 8);
    if (end - token >= 4) {
      transpose<Direction, kBytes>(view, elements, canonical, token, end);
      token = end;
      continue;
    }
    typename Direction::Memory row = view.base + (view.origin_bits + view.token_bits[token]) / 8;
    const auto at = [&](std::size_t unit) { return canonical + (token * units + unit) * kBytes; };
    if (has_pairs && end - token >= 2) {
      for (std::size_t unit = 0; unit < units; unit += kLanes)
        Direction::template part<kBytes>(row + elements.bits(unit) / 8, at(unit), at(units + unit));
      token += 2;
      continue;
    }
    for (std::size_t unit = 0; unit < units; ++unit)
      Direction::move(row + elements.bits(unit) / 8, at(unit), kBytes);
    ++token;
  }
}

std::byte nibble(const std::byte* base, std::int64_t bit) {
  return (base[bit / 8] >> static_cast<int>(bit % 8)) & std::byte{0x0f};
}

void set_nibble(std::byte* base, std::int64_t bit, std::byte value) {
  const auto shift = static_cast<int>(bit % 8);
  base[bit / 8] = (base[bit / 8] & ~(std::byte{0x0f} << shift)) | (value << shift);
}

void copy_nibble(const std::byte* memory, std::int64_t bit, std::byte* canonical, std::int64_t at) {
  set_nibble(canonical, at, nibble(memory, bit));
}

void copy_nibble(std::byte* memory, std::int64_t bit, const std::byte* canonical, std::int64_t at) {
  set_nibble(memory, bit, nibble(canonical, at));
}

template <typename Direction>
void copy_nibbles(const TileView& view, typename Direction::Canonical canonical) {
  typename Direction::Memory base = view.base;
  std::int64_t at = 0;
  for (const std::int64_t token : view.token_bits) {
    for (const std::int64_t unit : view.unit_bits) {
      copy_nibble(base, view.origin_bits + token + unit, canonical, at);
      at += 4;
    }
  }
}

template <typename Direction>
void copy(const TileView& view, typename Direction::Canonical canonical) {
  if (view.token_bits.empty() || view.unit_bits.empty()) return;
  if (view.whole_rows) return copy_rows<Direction>(view, canonical);
  if (view.element_bits == 4) return copy_nibbles<Direction>(view, canonical);
  const std::size_t merged = merged_units(view);
  switch (view.element_bits * merged) {
    case 8:
      return copy_elements<Direction, 1>(view, merged, canonical);
    case 16:
      return copy_elements<Direction, 2>(view, merged, canonical);
    case 32:
      return copy_elements<Direction, 4>(view, merged, canonical);
    default:
      ISTHMUS_CHECK(false);
  }
}

}  // namespace

void gather(const TileView& memory, std::byte* canonical) {
  if (!gather_runs(memory, canonical)) copy<Gather>(memory, canonical);
}
void scatter(const TileView& memory, const std::byte* canonical) {
  if (!scatter_runs(memory, canonical)) copy<Scatter>(memory, canonical);
}

}  // namespace isthmus::transform
