// SPDX-License-Identifier: Apache-2.0
// `sim handoff`: the handoff's cores under virtual time, from the command's values to its exit code.
#pragma once

#include <string>

#include "base/time.h"
#include "cli/options.h"
#include "sim/runs.h"

namespace isthmus::cli {

int run_sim(const SimCommand& command);

// What is printed at the end, as text or as one JSON object.
std::string sim_text(const handoff::sim::Summary& sum, Duration took);
std::string sim_json(const handoff::sim::Summary& sum, Duration took);
// The command that runs this seed alone.
std::string sim_replay(std::uint64_t seed);
// docs/simulation.md: the text above, and the table.
std::string sim_coverage(const handoff::sim::Summary& sum);

}  // namespace isthmus::cli
