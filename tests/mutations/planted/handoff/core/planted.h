// SPDX-License-Identifier: Apache-2.0
// The bug that is planted in this process. Stands in for src/handoff/core/planted.h in the preset
// "mutations".
#pragma once

#include "handoff/core/mutation.h"

namespace isthmus::handoff {

inline Mutation planted = Mutation::kNone;

inline bool mutation(Mutation asked) {
  return planted == asked;
}

}  // namespace isthmus::handoff
