// SPDX-License-Identifier: Apache-2.0
// An engine with a test's hands in it: it may lie about itself, wait, fail, and show where its memory is.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "engine/api/engine.h"

namespace isthmus::support {

// All on the engine's thread but alter_descriptor, which is called once, at once. Unset ones change nothing.
struct EngineTap {
  std::function<void(kv::Descriptor&)> alter_descriptor;
  std::function<Status(std::span<const engine::StepItem>)> before_step;  // An error is the step's.
  bool keeps_prefixes = false;                // Says that it does, and never knows a prompt.
  std::function<void(kv::Binding&)> on_bind;  // Each group of a destination that is about to be filled.
  // What others get of an exported state: a copy of each group's memory, to be written.
  std::function<void(const kv::Binding&)> on_export;
};

// A source and a sink if `engine` is.
std::unique_ptr<engine::Engine> tap(std::unique_ptr<engine::Engine> engine, EngineTap tap);

}  // namespace isthmus::support
