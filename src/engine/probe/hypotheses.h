// SPDX-License-Identifier: Apache-2.0
// If a state isn't what its descriptor says: which single untrue statement would explain what was read?
#pragma once

#include <string>

#include "base/status.h"
#include "engine/probe/expectation.h"
#include "engine/probe/probe.h"
#include "kv/binding.h"
#include "kv/descriptor.h"

namespace isthmus::engine {

// A state to judge: positions 0.. of `binding`, as many as `truth` has tokens. Nothing is owned.
struct Subject {
  const kv::Descriptor* descriptor = nullptr;
  const kv::Binding* binding = nullptr;
  const Layer0* truth = nullptr;
  ProbeTolerance tolerance;
};

struct Judgement {
  double k_error = 0, v_error = 0;  // Relative RMS as described; infinite if it can't be read so.
  std::string surprise;             // Empty if both are within the tolerance.
};

Judgement judge(const Subject& subject);

}  // namespace isthmus::engine
