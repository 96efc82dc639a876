// SPDX-License-Identifier: Apache-2.0
// The same tests of a model most of whose layers attend to 24 positions: no block's length, and less than
// most prompts.
#include <cstdlib>

#include "engine/openvino/test_engine.h"
#include "engine/probe/test_model.h"

namespace isthmus::engine::openvino {

std::string model_path() {
  const char* shipped = std::getenv("ISTHMUS_TEST_MODEL");
  static const WrittenModel written(gemma3_model(), shipped == nullptr ? "" : shipped);
  return written.path();
}

}  // namespace isthmus::engine::openvino
