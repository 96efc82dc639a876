// SPDX-License-Identifier: Apache-2.0
// The program: command line in, exit code out.
#include <string>
#include <vector>

#include "cli/run.h"
#include "worker/embedded/engines.h"
#include "worker/embedded/run_worker.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  namespace worker = isthmus::worker;
  return isthmus::cli::run_program(arguments, {.run_worker = worker::run_worker,
                                               .make_engine = worker::make_engine,
                                               .make_tokenizer = worker::make_tokenizer});
}
