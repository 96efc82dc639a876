// SPDX-License-Identifier: Apache-2.0
// The engines that are built in, by name.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/api/tokenizer.h"
#include "worker/embedded/run_worker.h"

namespace isthmus::worker {

// By engine, kv_type, model_path, threads, kv_tokens, parked_tokens, role, sequences_max and isa. Errors:
// invalid_argument (no such engine), those of the engine.
Result<std::unique_ptr<engine::Engine>> make_engine(const WorkerOptions& options);
// Of the model file, whichever engine runs it.
Result<std::unique_ptr<engine::Tokenizer>> make_tokenizer(const std::string& model_path);

}  // namespace isthmus::worker
