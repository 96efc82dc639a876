// SPDX-License-Identifier: Apache-2.0
// See engines.h.
#include "worker/embedded/engines.h"

#include <fmt/format.h>

#include "engine/llamacpp/llamacpp.h"
#include "engine/llamacpp/tokenizer.h"
#include "engine/openvino/openvino.h"

namespace isthmus::worker {
namespace {

// Only what decodes may wait: a prefill's blocks are read by peers.
std::uint64_t parked_tokens_of(const WorkerOptions& options) {
  return options.parked_tokens.value_or(options.role == "prefill" ? 0 : options.kv_tokens / 2);
}

}  // namespace

Result<std::unique_ptr<engine::Engine>> make_engine(const WorkerOptions& options) {
  if (options.engine == "llamacpp") {
    if (options.activations != "f32") {
      return Error{
          Code::kInvalidArgument,
          "llamacpp has no choice of activations: it rounds them to 8 bits where weights are quantised"};
    }
    if (options.parked_tokens.value_or(0) > 0) {
      return Error{
          Code::kUnsupported,
          "llamacpp reserves a sequence's memory in full and parks nothing; leave --parked-tokens out"};
    }
    return engine::llamacpp::make_llamacpp({.model_path = options.model_path,
                                            .lineage = options.lineage,
                                            .kv_type = options.kv_type.empty() ? "f16" : options.kv_type,
                                            .threads = options.threads,
                                            .context_tokens = options.kv_tokens,
                                            .sequences_max = options.sequences_max,
                                            .isa = options.isa});
  }
  if (options.engine == "openvino") {
    return engine::openvino::make_openvino({.gguf_path = options.model_path,
                                            .lineage = options.lineage,
                                            .kv_type = options.kv_type.empty() ? "u8" : options.kv_type,
                                            .threads = options.threads,
                                            .kv_tokens = options.kv_tokens,
                                            .parked_tokens = parked_tokens_of(options),
                                            .sequences_max = options.sequences_max,
                                            .isa = options.isa,
                                            .activations = options.activations});
  }
  return Error{Code::kInvalidArgument,
               fmt::format("engine '{}' isn't one of llamacpp, openvino", options.engine)};
}

Result<std::unique_ptr<engine::Tokenizer>> make_tokenizer(const std::string& model_path) {
  ISTHMUS_TRY(std::unique_ptr<engine::Tokenizer> made, engine::llamacpp::make_tokenizer(model_path));
  return made;
}

}  // namespace isthmus::worker
