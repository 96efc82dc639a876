// SPDX-License-Identifier: Apache-2.0
// Commands that look at what runs: `fleet check`, `kv inspect`, `doctor pair`, `top`. Each from its values to
// its exit code.
#pragma once

#include "cli/options.h"

namespace isthmus::cli {

int run_fleet_check(const FleetCheckCommand& command);
int run_inspect(const InspectCommand& command);
int run_doctor_pair(const DoctorPairCommand& command);
int run_top(const TopCommand& command);

}  // namespace isthmus::cli
