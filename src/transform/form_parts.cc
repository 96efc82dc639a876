// SPDX-License-Identifier: Apache-2.0
// See form_parts.h.
#include "transform/form_parts.h"

#include <fmt/format.h>

namespace isthmus::transform {
namespace {

Status add_part(std::vector<FormPart>& parts, FormPart part) {
  const std::uint64_t token_bits = std::uint64_t{part.units} * kv::bits(part.format);
  if (token_bits % 8 != 0) {
    return Error{Code::kUnsupported,
                 fmt::format("part {}: a row of {} {} elements isn't whole bytes; make the row even",
                             part.part, part.units, kv::name(part.format))};
  }
  part.token_bytes = token_bits / 8;
  parts.push_back(std::move(part));
  return ok_status();
}

}  // namespace

Result<std::vector<FormPart>> form_parts(const kv::DecodeForm& form, std::uint32_t dim) {
  if (dim == 0) {
    return Error{Code::kInvalidArgument, fmt::format("component {}: rows have no elements", form.component)};
  }
  std::vector<FormPart> parts;
  ISTHMUS_TRY(add_part(parts, {form.component, form.codes, dim, 1, 0}));
  if (form.operation == kv::DecodeOperation::kPlain) return parts;
  if (form.granule_tokens != 1) {
    return Error{Code::kUnsupported,
                 fmt::format("component {}: scales that span {} tokens can't be cut at token ranges; "
                             "use a form with one scale per token",
                             form.component, form.granule_tokens)};
  }
  const std::uint32_t granule = form.granule_dim == 0 ? dim : form.granule_dim;
  if (dim % granule != 0) {
    return Error{Code::kInvalidArgument,
                 fmt::format("component {}: scale granule {} doesn't divide the row's {} elements",
                             form.component, granule, dim)};
  }
  ISTHMUS_TRY(add_part(parts, {form.component + ".s", form.scale, dim / granule, granule, 0}));
  if (form.operation == kv::DecodeOperation::kScaledZeroPoint) {
    ISTHMUS_TRY(add_part(parts, {form.component + ".z", form.zero, dim / granule, granule, 0}));
  }
  return parts;
}

}  // namespace isthmus::transform
