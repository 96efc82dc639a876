// SPDX-License-Identifier: Apache-2.0
// `isthmus kv qualify`: does a pair of engines answer like its decoder alone? Measured here, in one process.
#pragma once

#include <cstdint>
#include <string>

#include "cli/kv_live.h"

namespace isthmus::cli {

struct QualifyCommand {
  std::string prefill_engine, prefill_kv;  // "llamacpp", "f16"
  std::string decode_engine, decode_kv;
  std::string model_path;
  std::string decode_model_path;    // "": the same.
  std::string activations = "f32";  // Of OpenVINO, on either side.
  std::string lineage;              // Of both files; "": each file's own.
  std::string prompts_file;         // "": the built-in ones.
  std::uint32_t prompts_max = 0;    // Of the prompts, spread over them; 0: all.
  std::string output;               // Record file to write; "": it is printed with the rest.
  std::uint32_t threads = 1;
  bool json = false;
};

// Both engines pass their probe; then each prompt runs through the pair and each engine alone
// (spec/qualification.md). kExitBarMissed if the record covers nothing.
int run_qualify(const QualifyCommand& command, const MakeEngine& make_engine,
                const MakeTokenizer& make_tokenizer);

}  // namespace isthmus::cli
