// SPDX-License-Identifier: Apache-2.0
// The options of `isthmus kv` on files. Included by the translation units that know CLI11 only.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/kv_commands.h"
#include "cli/kv_live.h"
#include "cli/kv_qualify.h"

namespace isthmus::cli {

// Adds the subcommands to `kv`; afterwards asks which one was given.
class KvOptions {
 public:
  explicit KvOptions(CLI::App& kv);
  // The command that was parsed, or null. `error` says what is wrong with its values, if anything.
  const KvCommand* parsed(std::string& error);
  // Likewise of export and import.
  std::optional<LiveCommand> parsed_live(std::string& error);
  std::optional<QualifyCommand> parsed_qualify(std::string& error);

 private:
  void add_live(CLI::App& kv, const char* name, const char* about, LiveCommand::What what);
  void add_qualify(CLI::App& kv);
  void add_sample(CLI::App& kv);
  void add_convert(CLI::App& kv);
  void add_others(CLI::App& kv);
  void add_shape(CLI::App& app, const char* target);

  KvCommand command_;
  std::string ranks_ = "1x1", policy_ = "bounded", tokens_ = "300", non_finite_ = "refuse",
              compression_ = "none", static_scales_;
  std::vector<std::pair<CLI::App*, KvCommand::What>> apps_;
  LiveCommand live_;
  std::string live_engine_, live_policy_ = "lossless";
  std::vector<std::pair<CLI::App*, LiveCommand::What>> live_apps_;
  QualifyCommand qualify_;
  std::string prefill_choice_, decode_choice_;
  CLI::App* qualify_app_ = nullptr;
};

}  // namespace isthmus::cli
