// SPDX-License-Identifier: Apache-2.0
// The options of `isthmus kv` on files. Included by the translation units that know CLI11 only.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/kv_commands.h"

namespace isthmus::cli {

// Adds the subcommands to `kv`; afterwards asks which one was given.
class KvOptions {
 public:
  explicit KvOptions(CLI::App& kv);
  // The command that was parsed, or null. `error` says what is wrong with its values, if anything.
  const KvCommand* parsed(std::string& error);

 private:
  void add_sample(CLI::App& kv);
  void add_convert(CLI::App& kv);
  void add_others(CLI::App& kv);
  void add_shape(CLI::App& app, const char* target);

  KvCommand command_;
  std::string ranks_ = "1x1", policy_ = "bounded", tokens_ = "300";
  std::vector<std::pair<CLI::App*, KvCommand::What>> apps_;
};

}  // namespace isthmus::cli
