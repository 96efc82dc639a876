// SPDX-License-Identifier: Apache-2.0
// One-time start of llama.cpp and the route of its log.
#include "engine/llamacpp/library.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <string_view>

#include "base/log.h"

namespace isthmus::engine::llamacpp {
namespace {

// llama.cpp writes some lines in pieces and its progress as dots; pieces are kept out, whole lines go
// through.
void forward_log(ggml_log_level level, const char* text, void* /*context*/) {
  std::string_view line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.remove_suffix(1);
  if (line.empty() || level == GGML_LOG_LEVEL_CONT) return;
  if (level == GGML_LOG_LEVEL_ERROR) {
    ISTHMUS_LOG(kWarn, "llama.cpp", "text=\"{}\"", line);
  } else {
    ISTHMUS_LOG(kDebug, "llama.cpp", "text=\"{}\"", line);
  }
}

void start_once() {
  static std::once_flag started;
  std::call_once(started, [] {
    llama_log_set(forward_log, nullptr);
    llama_backend_init();
  });
}

}  // namespace

Result<ModelPointer> load_model(const std::string& path, bool vocabulary_only) {
  start_once();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocabulary_only;
  params.n_gpu_layers = 0;
  try {
    ModelPointer model(llama_model_load_from_file(path.c_str(), params));
    if (model != nullptr) return model;
    return Error{Code::kMalformed,
                 fmt::format("llama.cpp cannot load {}; its log lines above say why", path)};
  } catch (const std::exception& error) {
    return Error{Code::kMalformed, fmt::format("llama.cpp cannot load {}: {}", path, error.what())};
  }
}

}  // namespace isthmus::engine::llamacpp
