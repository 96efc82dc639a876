// SPDX-License-Identifier: Apache-2.0
// Whole small text files.
#pragma once

#include <string>

#include "base/status.h"

namespace isthmus::fleet {

// Errors: not_found with the system's reason; exhausted over kFileBytesMax.
Result<std::string> read_text_file(const std::string& path);

}  // namespace isthmus::fleet
