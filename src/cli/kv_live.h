// SPDX-License-Identifier: Apache-2.0
// `isthmus kv export` and `import`: a live state of an embedded engine to a file, and from a file into one
// that goes on with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/api/engine.h"
#include "engine/api/tokenizer.h"
#include "kv/negotiate.h"
#include "worker/embedded/run_worker.h"

namespace isthmus::cli {

using MakeEngine = std::function<Result<std::unique_ptr<engine::Engine>>(const worker::WorkerOptions&)>;
using MakeTokenizer =
    std::function<Result<std::unique_ptr<engine::Tokenizer>>(const std::string& model_path)>;

struct LiveCommand {
  enum class What : std::uint8_t { kExport, kImport } what = What::kExport;
  std::string engine, kv_type;  // "openvino", "u8"
  std::string model_path;
  std::string prompt;  // Text; its last token isn't part of the state: it is the first step of what follows.
  std::string file;    // Written by export, read by import.
  std::uint32_t generate = 16;  // Tokens to go on with, greedily; 0: none.
  std::uint32_t threads = 1;
  kv::Exactness exactness = kv::Exactness::kLossless;  // Of import.
  bool json = false;
};

// Export computes the prompt but for its last token, writes that state, goes on and prints the tokens. Import
// binds the file's state in a new sequence, which the policy must allow and whose prompt must be the file's
// (by its token chain), goes on with the prompt's last token and prints the tokens. The engine's probe runs
// first; if it fails nothing is written or read.
int run_live(const LiveCommand& command, const MakeEngine& make_engine, const MakeTokenizer& make_tokenizer);

}  // namespace isthmus::cli
