// SPDX-License-Identifier: Apache-2.0
// Names and HTTP statuses of the error codes, as spec/errors.md lists them.
#include "base/status.h"

#include <array>
#include <cstddef>

#include <fmt/format.h>

namespace isthmus {
namespace {

struct Row {
  std::string_view name;
  int http;
};

constexpr std::array<Row, kCodeCount> kRows{{
    {"ok", 200},
    {"invalid_argument", 400},
    {"malformed", 400},
    {"incompatible", 409},
    {"not_found", 404},
    {"exhausted", 429},
    {"unavailable", 503},
    {"aborted", 503},
    {"deadline_exceeded", 504},
    {"cancelled", 499},
    {"corrupt", 502},
    {"unsupported", 501},
    {"internal", 500},
}};

}  // namespace

std::string_view name(Code code) {
  return kRows.at(static_cast<std::size_t>(code)).name;
}

std::optional<Code> code_from_name(std::string_view text) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows.at(i).name == text) return static_cast<Code>(i);
  }
  return std::nullopt;
}

int http_status(Code code) {
  return kRows.at(static_cast<std::size_t>(code)).http;
}

std::string Error::text() const {
  return fmt::format("{}: {}", name(code), detail);
}

Status Status::with_context(std::string_view where) && {
  if (error_) error_->detail = fmt::format("{}: {}", where, error_->detail);
  return std::move(*this);
}

}  // namespace isthmus
