// SPDX-License-Identifier: Apache-2.0
// Carrying out a command.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/options.h"

namespace isthmus::cli {

// How to run a worker: worker::run_worker. Passed in, so that all else here works without an engine.
using RunWorker = std::function<int(const WorkerCommand&)>;

// The whole program: parses, runs, gives the exit code (options.h). Results go to stdout, all else to stderr.
int run_program(const std::vector<std::string>& arguments, const RunWorker& run_worker);

// Of `bench`: kExitBarMissed if `check` and a record is not ok.
int bench_exit_code(const std::vector<bench::Record>& records, bool check);

}  // namespace isthmus::cli
