// SPDX-License-Identifier: Apache-2.0
// Parsing the compiled-in records.
#include "cli/qualification_data.h"

#include "fleet/fleet.h"

namespace isthmus::cli {

Result<std::vector<kv::Qualification>> built_in_qualifications() {
  std::vector<kv::Qualification> all;
  for (const auto& [name, text] : qualification_files()) {
    ISTHMUS_TRY(const std::vector<kv::Qualification> records, fleet::parse_qualifications(text, name));
    all.insert(all.end(), records.begin(), records.end());
  }
  return all;
}

}  // namespace isthmus::cli
