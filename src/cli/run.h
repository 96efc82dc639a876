// SPDX-License-Identifier: Apache-2.0
// Carrying out a command.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/kv_live.h"
#include "cli/options.h"

namespace isthmus::cli {

// What is done with an engine: functions of worker/embedded. Passed in, so that all else here works without
// one.
struct Engines {
  std::function<int(const WorkerCommand&)> run_worker;
  MakeEngine make_engine;
  MakeTokenizer make_tokenizer;
};

// The whole program: parses, runs, gives the exit code (options.h). Results go to stdout, all else to stderr.
int run_program(const std::vector<std::string>& arguments, const Engines& engines);

// Of `bench`: kExitBarMissed if `check` and a record is not ok.
int bench_exit_code(const std::vector<bench::Record>& records, bool check);

}  // namespace isthmus::cli
