// SPDX-License-Identifier: Apache-2.0
// Options into an engine: checks, model, context, descriptor.
#include "engine/llamacpp/llamacpp.h"

#include <fmt/format.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <utility>

#include "engine/llamacpp/instruction_set.h"
#include "engine/llamacpp/kv_type.h"
#include "engine/llamacpp/library.h"
#include "engine/llamacpp/llama_engine.h"
#include "engine/llamacpp/sequence_state.h"
#include "engine/probe/model_facts.h"
#include "kv/catalogue.h"

namespace isthmus::engine::llamacpp {
namespace {

constexpr std::uint32_t kSequencesMax = 255;  // LLAMA_MAX_SEQ is 256; one is the scratch sequence of exports.
constexpr std::uint32_t kSlotsMax = 256;
constexpr std::uint64_t kContextTokensMax = 1u << 24;

Error bad(std::string detail) {
  return {Code::kInvalidArgument, "llamacpp: " + std::move(detail)};
}

Status check_options(const Options& options) {
  if (options.threads == 0 || options.threads > 512) {
    return bad(fmt::format("threads is {}; it must be from 1 to 512", options.threads));
  }
  if (options.sequences_max == 0 || options.sequences_max > kSequencesMax) {
    return bad(
        fmt::format("sequences_max is {}; it must be from 1 to {}", options.sequences_max, kSequencesMax));
  }
  if (options.context_tokens == 0 || options.context_tokens > kContextTokensMax) {
    return bad(fmt::format("context_tokens is {}; it must be from 1 to {}", options.context_tokens,
                           kContextTokensMax));
  }
  if (options.step_tokens_max < 2 || options.step_tokens_max > 8192) {
    return bad(fmt::format("step_tokens_max is {}; it must be from 2 to 8192", options.step_tokens_max));
  }
  return ok_status();
}

llama_context_params context_params(const Options& options, const KvType& kv_type, const Window& window) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>((options.context_tokens + 255) / 256 * 256);
  params.n_batch = params.n_ubatch = options.step_tokens_max;
  params.n_seq_max = LlamaEngine::slots(options.sequences_max, window);
  params.swa_full = true;  // As many cells for local layers as for the others.
  params.n_outputs_max = std::max(LlamaEngine::logits_max(options.sequences_max), params.n_seq_max);
  params.n_outputs_max_per_seq = params.n_outputs_max;
  params.n_threads = params.n_threads_batch = static_cast<std::int32_t>(options.threads);
  params.flash_attn_type =
      kv_type.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = kv_type.k;
  params.type_v = kv_type.v;
  params.kv_unified = true;  // Exports share cells between two sequences, which needs one pool.
  params.no_perf = true;
  return params;
}

Result<StateShape> state_shape(const ModelFacts& facts, const KvType& kv_type) {
  const std::uint32_t elements = facts.kv_heads * facts.head_dim;
  for (const ggml_type type : {kv_type.k, kv_type.v}) {
    if (facts.head_dim % ggml_blck_size(type) == 0) continue;
    return Error{Code::kUnsupported,
                 fmt::format("llamacpp: KV type {}: {} elements of a head are no whole blocks of {}",
                             kv_type.name, facts.head_dim, ggml_blck_size(type))};
  }
  return StateShape{.sequence = 0,
                    .layers = facts.layers,
                    .k_type = kv_type.k,
                    .v_type = kv_type.v,
                    .k_row_bytes = ggml_row_size(kv_type.k, elements),
                    .v_row_bytes = ggml_row_size(kv_type.v, elements),
                    .v_columns = kv_type.flash_attention ? 0 : elements,
                    .position_begin = 0,
                    .position_end = 0,
                    .window = facts.window};
}

// Facts read by independent code against the engine's own answers.
Status check_model(const llama_model* model, const ModelFacts& facts) {
  const auto same = [](std::string_view what, std::int64_t engine, std::int64_t file) -> Status {
    if (engine == file) return ok_status();
    return Error{Code::kIncompatible,
                 fmt::format("llamacpp: {}: {} in the engine, {} in the file", what, engine, file)};
  };
  ISTHMUS_TRY(same("layers", llama_model_n_layer(model), facts.layers));
  ISTHMUS_TRY(same("width", llama_model_n_embd(model), facts.width));
  ISTHMUS_TRY(same("heads", llama_model_n_head(model), facts.heads));
  ISTHMUS_TRY(same("KV heads", llama_model_n_head_kv(model), facts.kv_heads));
  ISTHMUS_TRY(same("vocabulary", llama_vocab_n_tokens(llama_model_get_vocab(model)), facts.vocabulary));
  ISTHMUS_TRY(same("rope pairing", llama_model_rope_type(model),
                   facts.rope_pairing == "halves" ? LLAMA_ROPE_TYPE_NEOX : LLAMA_ROPE_TYPE_NORM));
  return same("sliding window", llama_model_n_swa(model), static_cast<std::int64_t>(facts.window.tokens));
}

}  // namespace

Result<std::unique_ptr<Engine>> make_llamacpp(const Options& options) {
  ISTHMUS_TRY(check_options(options));
  ISTHMUS_TRY(const KvType kv_type, find_kv_type(options.kv_type));
  ISTHMUS_TRY(const InstructionSet instructions, find_instruction_set(options.isa));
  ISTHMUS_TRY(const ModelFacts facts, read_model_facts(options.model_path));
  if (LlamaEngine::slots(options.sequences_max, facts.window) > kSlotsMax) {
    return bad(fmt::format("sequences_max is {}; a model with a sliding window has at most {}",
                           options.sequences_max, (kSlotsMax - 1) / 2));
  }
  ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage("llamacpp:" + options.kv_type));
  LlamaEngine::Parts parts;
  ISTHMUS_TRY(parts.descriptor, describe(facts, *storage, options.lineage));
  parts.descriptor.weights_recipe = fmt::format("llamacpp.{}/{}", instructions.name, facts.weights_recipe);
  ISTHMUS_TRY(parts.shape, state_shape(facts, kv_type));
  ISTHMUS_TRY(parts.model, load_model(options.model_path, false, instructions.repack));
  ISTHMUS_TRY(check_model(parts.model.get(), facts));
  ISTHMUS_TRY(parts.context, make_context(parts.model.get(), context_params(options, kv_type, facts.window),
                                          kv_type.rotate));
  parts.info = {
      .name = "llamacpp",
      .version = llama_version(),
      .storage = storage->name,
      .vocabulary = facts.vocabulary,
      .context_tokens_max = std::min<std::uint64_t>(facts.context_tokens, llama_n_ctx(parts.context.get())),
      .sequences_max = options.sequences_max,
      .step_tokens_max = options.step_tokens_max,
      .block_tokens = 0,
      .kv_bytes_per_token = (parts.shape.k_row_bytes + parts.shape.v_row_bytes) * facts.layers};
  auto engine = std::make_unique<LlamaEngine>(std::move(parts));
  ISTHMUS_TRY(engine->check_state_format());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace isthmus::engine::llamacpp
