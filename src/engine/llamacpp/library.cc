// SPDX-License-Identifier: Apache-2.0
// One-time start of llama.cpp and the route of its log.
#include "engine/llamacpp/library.h"

#include <fmt/format.h>

#include <cstdlib>
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

// Put into the environment once and changed in place: the list of variables itself, which other threads may
// be reading, stays as it is. Only llama.cpp looks at the value, within make_context().
char rotation_setting[] = "LLAMA_ATTN_ROT_DISABLE=0";
char& rotation_disabled = rotation_setting[sizeof(rotation_setting) - 2];
std::mutex rotation_mutex;

}  // namespace

void start_library() {
  static std::once_flag started;
  std::call_once(started, [] {
    putenv(rotation_setting);
    llama_log_set(forward_log, nullptr);
    llama_backend_init();
  });
}

Result<ModelPointer> load_model(const std::string& path, bool vocabulary_only, bool repack) {
  start_library();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocabulary_only;
  params.n_gpu_layers = 0;
  params.use_extra_bufts = repack;
  try {
    ModelPointer model(llama_model_load_from_file(path.c_str(), params));
    if (model != nullptr) return model;
    return Error{Code::kMalformed,
                 fmt::format("llama.cpp cannot load {}; its log lines above say why", path)};
  } catch (const std::exception& error) {
    return Error{Code::kMalformed, fmt::format("llama.cpp cannot load {}: {}", path, error.what())};
  }
}

Result<ContextPointer> make_context(llama_model* model, const llama_context_params& params, bool rotate) {
  const std::scoped_lock lock(rotation_mutex);
  rotation_disabled = rotate ? '0' : '1';
  try {
    ContextPointer context(llama_init_from_model(model, params));
    if (context != nullptr) return context;
  } catch (const std::exception& error) {
    return Error{Code::kExhausted, fmt::format("llamacpp: no context: {}", error.what())};
  }
  return Error{
      Code::kExhausted,
      fmt::format("llamacpp: no context for {} tokens; llama.cpp's log lines say why", params.n_ctx)};
}

}  // namespace isthmus::engine::llamacpp
