// SPDX-License-Identifier: Apache-2.0
// The options of `isthmus bench serve`. Included by the translation units that know CLI11 only.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/serve_command.h"

namespace isthmus::cli {

// Adds the subcommand to `bench`; afterwards asks whether it was given.
class ServeOptions {
 public:
  explicit ServeOptions(CLI::App& bench);
  // The command if it was parsed; `error` says what is wrong with its values, if anything.
  std::optional<ServeCommand> parsed(std::string& error) const;

 private:
  void add_load(CLI::App& app);
  void add_answers(CLI::App& app);
  std::string read(ServeCommand& command) const;  // What is wrong, or "".

  CLI::App* app_ = nullptr;
  ServeCommand command_;
  std::string url_, prompt_ = "fixed:256", output_ = "fixed:32", pairs_file_, slo_;
  double duration_s_ = 30, timeout_s_ = 120;
};

}  // namespace isthmus::cli
