// SPDX-License-Identifier: Apache-2.0
// Tests of the model that ISTHMUS_TEST_MODEL names.
#include <cstdlib>

#include "engine/openvino/test_engine.h"

namespace isthmus::engine::openvino {

std::string model_path() {
  const char* path = std::getenv("ISTHMUS_TEST_MODEL");
  return path == nullptr ? "" : path;
}

}  // namespace isthmus::engine::openvino
