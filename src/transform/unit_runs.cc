// SPDX-License-Identifier: Apache-2.0
// See unit_runs.h. A shape is found from the unit table once a tile; the loops inside are of known length.
#include "transform/unit_runs.h"

#include <cstdint>
#include <cstring>

namespace isthmus::transform {
namespace {

using std::int64_t;
using std::size_t;

constexpr size_t kLeastRunBytes = 8;

// Tokens lie whole bytes apart.
bool on_bytes(const TileView& view) {
  for (const int64_t bits : view.token_bits) {
    if (bits % 8 != 0) return false;
  }
  return true;
}

// Bit of a unit in its byte, the same for all tokens.
int64_t bit_in_byte(const TileView& view, size_t unit) {
  return (view.origin_bits + view.unit_bits[unit]) % 8;
}

// True if units come in runs of `run`, each element `step` bits after the one before it.
bool has_runs(const TileView& view, size_t run, int64_t step) {
  for (size_t unit = 0; unit < view.unit_bits.size(); ++unit) {
    const int64_t first = view.unit_bits[unit - unit % run];
    if (bit_in_byte(view, unit - unit % run) != 0 ||
        view.unit_bits[unit] != first + static_cast<int64_t>(unit % run) * step)
      return false;
  }
  return true;
}

// Length of the first run of whole-byte neighbours.
size_t first_run(const TileView& view, int64_t step) {
  size_t run = 1;
  while (run < view.unit_bits.size() && view.unit_bits[run] == view.unit_bits[run - 1] + step) ++run;
  return run;
}

// Calls each(memory, canonical, first unit) for every run of `run` units; canonical runs follow each other.
template <typename Memory, typename Canonical, typename Each>
void for_each_run(const TileView& view, Memory base, Canonical canonical, size_t run, Each each) {
  const size_t canonical_bytes = run * view.element_bits / 8;
  for (const int64_t token : view.token_bits) {
    for (size_t unit = 0; unit < view.unit_bits.size(); unit += run, canonical += canonical_bytes) {
      each(base + (view.origin_bits + token + view.unit_bits[unit]) / 8, canonical);
    }
  }
}

template <size_t kBytes, typename Memory, typename Canonical, typename Move>
void copy_runs_of(const TileView& view, Memory base, Canonical canonical, size_t run, Move move) {
  for_each_run(view, base, canonical, run, [&](Memory at, Canonical row) { move(at, row, kBytes); });
}

template <typename Memory, typename Canonical, typename Move>
bool copy_byte_runs(const TileView& view, Memory base, Canonical canonical, Move move) {
  const size_t run = first_run(view, view.element_bits), bytes = run * view.element_bits / 8;
  if (bytes < kLeastRunBytes || view.unit_bits.size() % run != 0 || !has_runs(view, run, view.element_bits))
    return false;
  switch (bytes) {  // A size known to the compiler becomes a few vector moves.
    case 16:
      copy_runs_of<16>(view, base, canonical, run, move);
      break;
    case 32:
      copy_runs_of<32>(view, base, canonical, run, move);
      break;
    case 64:
      copy_runs_of<64>(view, base, canonical, run, move);
      break;
    default:
      for_each_run(view, base, canonical, run, [&](Memory at, Canonical row) { move(at, row, bytes); });
  }
  return true;
}

// Each pair in one byte, the even element high: bytes with their nibbles exchanged.
bool has_high_pairs(const TileView& view) {
  const size_t units = view.unit_bits.size();
  if (units % 2 != 0 || bit_in_byte(view, 0) != 4) return false;
  for (size_t unit = 0; unit < units; ++unit) {
    const int64_t apart = static_cast<int64_t>(unit / 2) * 8 - (unit % 2 == 0 ? 0 : 4);
    if (view.unit_bits[unit] != view.unit_bits[0] + apart) return false;
  }
  return true;
}

void exchange_nibbles(const std::byte* from, std::byte* to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = from[i] << 4 | from[i] >> 4;
}

// h of a block whose first h elements are low nibbles of h bytes and whose others are the high ones; 0 if
// none.
size_t split_half(const TileView& view) {
  const size_t units = view.unit_bits.size(), half = first_run(view, 8);
  if (half < 2 || half % 2 != 0 || units % (2 * half) != 0) return 0;
  for (size_t block = 0; block < units; block += 2 * half) {
    if (bit_in_byte(view, block) != 0) return 0;
    for (size_t i = 0; i < half; ++i) {
      const int64_t low = view.unit_bits[block] + static_cast<int64_t>(i) * 8;
      if (view.unit_bits[block + i] != low || view.unit_bits[block + half + i] != low + 4) return 0;
    }
  }
  return half;
}

constexpr std::byte kLow{0x0f}, kHigh{0xf0};

// h bytes of low and high nibbles to h bytes of pairs: first those of the low nibbles, then those of the
// high.
void join_halves(const std::byte* memory, std::byte* canonical, size_t half) {
  for (size_t i = 0; i < half / 2; ++i) {
    const std::byte even = memory[2 * i], odd = memory[2 * i + 1];
    canonical[i] = (even & kLow) | odd << 4;
    canonical[half / 2 + i] = even >> 4 | (odd & kHigh);
  }
}

void split_halves(std::byte* memory, const std::byte* canonical, size_t half) {
  for (size_t i = 0; i < half / 2; ++i) {
    const std::byte low = canonical[i], high = canonical[half / 2 + i];
    memory[2 * i] = (low & kLow) | high << 4;
    memory[2 * i + 1] = low >> 4 | (high & kHigh);
  }
}

template <typename Memory, typename Canonical, typename Exchange, typename Halves>
bool copy_nibble_runs(const TileView& view, Memory base, Canonical canonical, Exchange exchange,
                      Halves halves) {
  if (has_high_pairs(view)) {
    for_each_run(view, base, canonical, view.unit_bits.size(), exchange);
    return true;
  }
  const size_t half = split_half(view);
  if (half == 16) {
    for_each_run(view, base, canonical, 32, [&](Memory at, Canonical row) { halves(at, row, size_t{16}); });
  } else if (half != 0) {
    for_each_run(view, base, canonical, 2 * half, [&](Memory at, Canonical row) { halves(at, row, half); });
  }
  return half != 0;
}

bool may_have_runs(const TileView& view) {
  return !view.whole_rows && !view.token_bits.empty() && view.unit_bits.size() > 1 && on_bytes(view);
}

}  // namespace

bool gather_runs(const TileView& memory, std::byte* canonical) {
  if (!may_have_runs(memory)) return false;
  const std::byte* base = memory.base;
  if (memory.element_bits >= 8) {
    return copy_byte_runs(memory, base, canonical, [](const std::byte* at, std::byte* row, size_t bytes) {
      std::memcpy(row, at, bytes);
    });
  }
  return copy_nibble_runs(
      memory, base, canonical,
      [&](const std::byte* at, std::byte* row) { exchange_nibbles(at, row, memory.unit_bits.size() / 2); },
      [](const std::byte* at, std::byte* row, size_t half) { join_halves(at, row, half); });
}

bool scatter_runs(const TileView& memory, const std::byte* canonical) {
  if (!may_have_runs(memory)) return false;
  if (memory.element_bits >= 8) {
    return copy_byte_runs(
        memory, memory.base, canonical,
        [](std::byte* at, const std::byte* row, size_t bytes) { std::memcpy(at, row, bytes); });
  }
  return copy_nibble_runs(
      memory, memory.base, canonical,
      [&](std::byte* at, const std::byte* row) { exchange_nibbles(row, at, memory.unit_bits.size() / 2); },
      [](std::byte* at, const std::byte* row, size_t half) { split_halves(at, row, half); });
}

}  // namespace isthmus::transform
