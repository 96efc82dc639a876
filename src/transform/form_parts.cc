// SPDX-License-Identifier: Apache-2.0
// See form_parts.h.
#include "transform/form_parts.h"

#include <fmt/format.h>

#include <utility>

#include "kv/encoding.h"

namespace isthmus::transform {

Result<std::vector<FormPart>> form_parts(const kv::DecodeForm& form, std::uint32_t dim) {
  if (dim == 0) {
    return Error{Code::kInvalidArgument, fmt::format("component {}: rows have no elements", form.component)};
  }
  const bool scaled = has_stored_scale(form.operation);
  ISTHMUS_TRY(kv::movable(form, dim));
  const auto part = [&](std::string_view suffix, kv::Format format, std::uint32_t granule,
                        std::uint32_t tokens) {
    const std::uint32_t units = dim / granule;
    return FormPart{form.component + std::string(suffix),       format, units, granule, tokens,
                    std::uint64_t{units} * kv::bits(format) / 8};
  };
  std::vector<FormPart> parts{part("", form.codes, 1, 1)};
  if (!scaled) return parts;
  parts.push_back(part(".s", form.scale, form.granule_dim, form.granule_tokens));
  if (form.operation == kv::DecodeOperation::kScaledZeroPoint) {
    parts.push_back(part(".z", form.zero, form.granule_dim, form.granule_tokens));
  }
  return parts;
}

}  // namespace isthmus::transform
