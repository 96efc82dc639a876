// SPDX-License-Identifier: Apache-2.0
// The stored arrays of one component in one decode form: codes, scales, zero points.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/descriptor.h"

namespace isthmus::transform {

struct FormPart {
  std::string part;  // "k", "k.s", "k.z".
  kv::Format format = kv::Format::kF16;
  std::uint32_t units = 0;    // Elements per (head, token).
  std::uint32_t granule = 1;  // Elements of the row that one unit serves.
  std::uint64_t token_bytes = 0;
};

// Codes first, then the scale, then the zero point, as far as the form has them.
// Errors: unsupported (a scale that spans tokens, a row that isn't whole bytes), invalid_argument (granule
// that doesn't divide `dim`).
Result<std::vector<FormPart>> form_parts(const kv::DecodeForm& form, std::uint32_t dim);

}  // namespace isthmus::transform
