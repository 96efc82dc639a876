// SPDX-License-Identifier: Apache-2.0
// Reports a failed assertion and stops the process.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace isthmus::detail {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "isthmus: check failed: %s (%s:%d)\n", expression, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace isthmus::detail
