// SPDX-License-Identifier: Apache-2.0
// No bug is planted. The preset "mutations" has a header of this name in tests/mutations/planted, found
// before it.
#pragma once

#include "handoff/core/mutation.h"

namespace isthmus::handoff {

constexpr bool mutation(Mutation) {
  return false;
}

}  // namespace isthmus::handoff
