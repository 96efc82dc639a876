// SPDX-License-Identifier: Apache-2.0
// `isthmus kv explain`: the verdict on two storages.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/options.h"

namespace isthmus::cli {

struct Explanation {
  std::string text;
  std::string json;  // The same as one object.
  bool is_rejected = false;
};
// Errors: not_found (unknown storage, with the list; missing file), those of the fleet file and the model
// file.
Result<Explanation> explain(const ExplainCommand& command);

}  // namespace isthmus::cli
