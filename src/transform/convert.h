// SPDX-License-Identifier: Apache-2.0
// Rewrites a tile's rows from one component's numbers to another's, through f32 in pieces that stay in the
// first-level cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/negotiate.h"
#include "transform/form_parts.h"
#include "transform/rows.h"

namespace isthmus::transform {

// Values that conversions changed by more than a rounding.
struct ConversionCounts {
  std::uint64_t saturated = 0;   // Finite, but beyond the target format's numbers: clamped.
  std::uint64_t non_finite = 0;  // Replaced, as the policy says.

  ConversionCounts& operator+=(const ConversionCounts& other) {
    saturated += other.saturated;
    non_finite += other.non_finite;
    return *this;
  }
  friend bool operator==(const ConversionCounts&, const ConversionCounts&) = default;
};

// A component of a layer group: elements of a row, layers of the group, global heads.
struct ComponentShape {
  std::uint32_t dim = 0, layers = 1, heads = 1;
  static ComponentShape of(const kv::LayerGroup& group, std::size_t component);
};

// Whose rows they are: static scales are those of its layer and head.
struct TileOwner {
  std::uint32_t layer = 0;  // Index within the group's list.
  std::uint32_t head = 0;   // Global.
};

class RowConverter {
 public:
  // Errors: unsupported (a form that can't be decoded or encoded, or value transforms without a way between).
  static Result<RowConverter> make(const kv::WireComponent& from, const kv::WireComponent& to,
                                   const ComponentShape& shape);

  // `rows` rows of consecutive tokens in canonical arrays, which must not overlap. The first row begins a
  // token group of both forms. Adds to `counts`. Allocates nothing. Errors: corrupt, naming row and element.
  Status convert(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to, const TileOwner& owner,
                 ConversionCounts& counts);

 private:
  struct Side {
    kv::DecodeForm form;
    std::vector<FormPart> parts;
    RowForm of(const ComponentShape& shape, const TileOwner& owner) const;
  };
  static Result<Side> side(const kv::DecodeForm& form, std::uint32_t dim);
  template <typename Arrays>
  static Arrays at_row(const Side& side, const Arrays& arrays, std::uint64_t row);
  Status convert_piece(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to,
                       const TileOwner& owner, ConversionCounts& counts);

  Side from_, to_;
  std::vector<kv::ValueStep> steps_;
  bool one_pass_ = false;  // Nothing has to lie in between as f32.
  bool replaces_ = false;  // Infinities and NaNs.
  ComponentShape shape_;
  std::uint64_t rows_at_once_ = 1;
  std::vector<float> values_, row_;
};

// True if both mean the same numbers by the same codes: bits are copied, never decoded.
bool same_numbers(const kv::WireComponent& a, const kv::WireComponent& b);
// True if converting `from` to `to` and back restores every bit of finite values.
bool is_invertible(const kv::WireComponent& from, const kv::WireComponent& to);

}  // namespace isthmus::transform
