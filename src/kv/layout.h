// SPDX-License-Identifier: Apache-2.0
// The layout notation (spec/kv-state.md): text in, per part a canonical list of digits out, offsets from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/format.h"

namespace isthmus::kv {

// kBlock and kToken are the open axes: their extent is known to the binding only. A position p is (block
// table entry p/B, slot p%B) in a paged region and a row in a region with kToken.
enum class Axis : std::uint8_t { kLayer, kBlock, kSlot, kToken, kHead, kDim };
std::string_view name(Axis axis);

// One digit of a part's address: value = (index[axis] / div) % mod, contributing value * stride.
struct Digit {
  Axis axis = Axis::kDim;
  std::uint64_t div = 1;
  std::uint64_t mod = 0;  // Extent of the digit; 0 for an open axis (unbounded).
  std::int64_t stride_bits =
      0;              // Negative for a digit that counts downwards (~); times the open extent if `open`.
  bool open = false;  // stride_bits is a coefficient of the region's open extent (blocks or rows).
  friend bool operator==(const Digit&, const Digit&) = default;
};

// Where one part lies: bit offset in its region = start_bits + Σ digits. A part is a component's codes ("k")
// or one of its side arrays ("k.s" scale, "k.z" zero point).
struct PartLayout {
  std::string part;
  Format format = Format::kF16;
  std::string region;  // Region name; a per-layer region has one base address a layer.
  std::uint64_t start_bits = 0;
  std::vector<Digit> digits;  // Sorted by (axis, div), extents of 1 dropped, adjacent digits merged.
  // Elements covered per axis: a scale that serves 32 consecutive dims has dim_granule 32; no `dim` axis: the
  // whole row; no `slot` axis: the whole block. Codes have 1 everywhere.
  std::uint32_t head_granule = 1, dim_granule = 1, token_granule = 1;

  // "k f16 region=K start=0 tok/1:3072 head/1%3:1024 dim/1%64:16"
  std::string text() const;
  bool operator==(const PartLayout&) const = default;
};

struct RegionLayout {
  std::string name;
  bool per_layer = false;
  Axis open_axis = Axis::kBlock;  // kBlock (paged by table) or kToken (rows).
  std::uint64_t open_stride_bits =
      0;  // Bits from one block (row) to the next, when the open axis is outermost; else 0.
  std::uint64_t open_size_bits = 0;  // Bits of the whole region a block (row).
  bool operator==(const RegionLayout&) const = default;
};

// What the notation's parameters and axes mean for one storage, besides the open ones.
struct LayoutExtents {
  std::uint32_t layers = 0;        // Layers of the group that this rank stores.
  std::uint32_t block_tokens = 0;  // B, 0 without blocks.
  struct ComponentExtent {
    std::uint32_t heads = 0;  // Heads of this rank.
    std::uint32_t dim = 0;
  };
  std::map<std::string, ComponentExtent> components;  // By component name.
  std::map<std::string, std::uint64_t> parameters;    // Named N in the text, e.g. {"x", 8}.
};

class Layout {
 public:
  // Parse and validate `text`. A part's name is its component's, ".s" or ".z" added for side arrays.
  // Errors name part and axis. invalid_argument: digits that don't tile an axis, a part placed twice or
  // missing, a member that isn't whole bytes, an open axis inside a group. unsupported: an unknown number
  // format, an `hd` digit that neither divides nor is divided by D.
  static Result<Layout> parse(std::string_view text, const LayoutExtents& extents);

  const std::string& source_text() const { return source_text_; }
  const LayoutExtents& extents() const { return extents_; }
  const std::vector<RegionLayout>& regions() const { return regions_; }
  const std::vector<PartLayout>& parts() const { return parts_; }
  // invalid_argument naming the part if it isn't there.
  Result<const PartLayout*> part(std::string_view name) const;
  const RegionLayout& region(std::string_view name) const;  // The region must exist.

  // One line a part: "k f16 region=K start=0 tok/1:3072 head/1%3:1024 dim/1%64:16". Equal storages have equal
  // text, however they were written. This text, not the source, enters digests.
  std::string canonical_text() const;

  // Bytes of one layer's region (or of the whole region if not per layer) with this many blocks or rows.
  std::uint64_t region_bytes(std::string_view region, std::uint64_t open_extent) const;

 private:
  std::string source_text_;
  LayoutExtents extents_;
  std::vector<RegionLayout> regions_;
  std::vector<PartLayout> parts_;
};

// Index of one element: layer within the region's list, block id (or row), slot, rank-local head, dim. Axes
// that a part lacks are ignored.
struct ElementIndex {
  std::uint64_t layer = 0, block = 0, slot = 0, token = 0, head = 0, dim = 0;
};

// Bit offset of an element from its region's base; the plain formula, for tests and tools.
std::uint64_t bit_offset(const PartLayout& part, const ElementIndex& index, std::uint64_t open_extent);

}  // namespace isthmus::kv
