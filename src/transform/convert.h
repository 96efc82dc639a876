// SPDX-License-Identifier: Apache-2.0
// Rewrites a tile's rows from one decode form to another, through f32 in pieces that stay in the first-level
// cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"
#include "transform/form_parts.h"
#include "transform/rows.h"

namespace isthmus::transform {

class RowConverter {
 public:
  // Errors: unsupported (a form that can't be decoded or encoded).
  static Result<RowConverter> make(const kv::DecodeForm& from, const kv::DecodeForm& to, std::uint32_t dim);

  // `rows` rows in canonical arrays, which must not overlap. Allocates nothing.
  // Errors: corrupt, naming row and element.
  Status convert(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to);

 private:
  struct Side {
    kv::DecodeForm form;
    std::uint64_t code_bytes = 0, scale_bytes = 0, zero_bytes = 0;  // Of one row.
    bool plain_f32 = false;
  };
  static Side side(const kv::DecodeForm& form, const std::vector<FormPart>& parts);
  template <typename Arrays>
  static Arrays at_row(const Side& side, const Arrays& arrays, std::uint64_t row);
  Status convert_piece(std::uint64_t rows, const ConstRowArrays& from, const RowArrays& to);

  Side from_, to_;
  std::uint32_t dim_ = 0;
  std::uint64_t rows_at_once_ = 1;
  std::vector<float> values_;
};

// True if converting `from` to `to` and back restores every bit.
bool is_exact(const kv::DecodeForm& from, const kv::DecodeForm& to);

}  // namespace isthmus::transform
