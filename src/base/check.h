// SPDX-License-Identifier: Apache-2.0
// Assertions that stay on in release builds; for our own bugs, never for what a peer, file or user can cause.
#pragma once

namespace isthmus::detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}  // namespace isthmus::detail

#define ISTHMUS_CHECK(condition)                                       \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::isthmus::detail::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
