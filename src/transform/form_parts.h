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
  std::uint32_t units = 0;           // Elements per (head, token group).
  std::uint32_t granule = 1;         // Elements of the row that one unit serves.
  std::uint32_t granule_tokens = 1;  // Tokens of a group: those that share units, anchored at position 0.
  std::uint64_t group_bytes = 0;

  // Bytes of one head's tile whose first token begins a group; its last group may be incomplete.
  std::uint64_t tile_bytes(std::uint64_t tokens) const {
    return (tokens + granule_tokens - 1) / granule_tokens * group_bytes;
  }
};

// Codes first, then the scale, then the zero point, as far as the form has them.
// Errors: those of kv::movable; invalid_argument (rows without elements).
Result<std::vector<FormPart>> form_parts(const kv::DecodeForm& form, std::uint32_t dim);

}  // namespace isthmus::transform
