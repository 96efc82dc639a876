// SPDX-License-Identifier: Apache-2.0
// Commands that only look: `fleet check`, `kv inspect`, `top`. Each from its values to its exit code.
#pragma once

#include "cli/options.h"

namespace isthmus::cli {

int run_fleet_check(const FleetCheckCommand& command);
int run_inspect(const InspectCommand& command);
int run_top(const TopCommand& command);

}  // namespace isthmus::cli
