// SPDX-License-Identifier: Apache-2.0
// Options, model facts, compiled model, packing probe and pools, checked against each other in this order.
#include "engine/openvino/openvino.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "engine/openvino/memory_binding.h"
#include "engine/openvino/packing_probe.h"
#include "engine/openvino/paged_engine.h"
#include "engine/openvino/window_probe.h"
#include "engine/probe/model_facts.h"

namespace isthmus::engine::openvino {
namespace {

Status check_options(const Options& options) {
  struct Limit {
    const char* name;
    std::uint64_t value, least, most;
  };
  // Block numbers and context lengths are i32 in the paged model's inputs.
  constexpr std::uint64_t kTokensMax = std::numeric_limits<std::int32_t>::max();
  const Limit limits[] = {{"threads", options.threads, 1, 1024},
                          {"kv_tokens", options.kv_tokens, kBlockTokens, kTokensMax},
                          {"parked_tokens", options.parked_tokens, 0, kTokensMax},
                          {"sequences_max", options.sequences_max, 1, 65536},
                          {"step_tokens_max", options.step_tokens_max, 1, 1 << 20}};
  for (const Limit& limit : limits) {
    if (limit.value < limit.least || limit.value > limit.most) {
      return Error{Code::kInvalidArgument, fmt::format("{} is {}; it must be {} to {}", limit.name,
                                                       limit.value, limit.least, limit.most)};
    }
  }
  if (options.activations == "f32" || options.activations == "int8") return ok_status();
  return Error{Code::kInvalidArgument,
               fmt::format("activations '{}' aren't one of f32, int8", options.activations)};
}

Status check_model(const PagedModelShape& shape, const ModelFacts& facts) {
  const std::uint32_t width = facts.kv_heads * facts.head_dim;
  if (shape.layers == facts.layers && shape.vocabulary == facts.vocabulary && shape.key_width == width &&
      shape.value_width == width) {
    return ok_status();
  }
  return Error{
      Code::kIncompatible,
      fmt::format("the converted model has {} layers, K/V rows of {}/{}, {} tokens; the file says {}, {}, {}",
                  shape.layers, shape.key_width, shape.value_width, shape.vocabulary, facts.layers, width,
                  facts.vocabulary)};
}

}  // namespace

Result<std::unique_ptr<Engine>> make_openvino(const Options& options) {
  ISTHMUS_TRY(check_options(options));
  ISTHMUS_TRY(const ModelFacts facts, read_model_facts(options.gguf_path));
  EngineParts parts{.options = options,
                    .info = {},
                    .descriptor = {},
                    .memory = {},
                    .model = {},
                    .regions = {},
                    .parking = {}};
  ISTHMUS_TRY(parts.model, PagedModel::load({.gguf_path = options.gguf_path,
                                             .window = facts.window,
                                             .kv_type = options.kv_type,
                                             .threads = options.threads,
                                             .instruction_set = options.isa,
                                             .rounds_activations = options.activations == "int8"}));
  const PagedModelShape& shape = parts.model->shape();
  ISTHMUS_TRY(check_model(shape, facts));

  parts.info.storage = "openvino:" + options.kv_type;
  ISTHMUS_TRY(const kv::Storage* storage, kv::find_storage(parts.info.storage));
  ISTHMUS_TRY(parts.descriptor, describe(facts, *storage, options.lineage));
  if (options.activations == "int8") parts.descriptor.weights_recipe += "-a8";
  ISTHMUS_TRY(probe_packing(*parts.model, parts.descriptor));
  ISTHMUS_TRY(probe_window(*parts.model, facts.window));

  // One block more, for padding tokens.
  const auto blocks = static_cast<std::uint32_t>(blocks_of(options.kv_tokens) + 1);
  ISTHMUS_TRY(parts.memory, KvMemory::map({.layers = shape.layers,
                                           .blocks = blocks,
                                           .key_bytes = shape.key_block_bytes,
                                           .value_bytes = shape.value_block_bytes}));
  const auto places = static_cast<std::uint32_t>(blocks_of(options.parked_tokens));
  ISTHMUS_TRY(parts.parking, ParkingLot::make(parts.memory->shape(), places));
  ISTHMUS_TRY(parts.model->attach(*parts.memory));
  ISTHMUS_TRY(parts.regions, bind_memory(parts.descriptor, *parts.memory));

  parts.info.name = "openvino";
  parts.info.version = parts.model->version();
  parts.info.vocabulary = shape.vocabulary;
  parts.info.context_tokens_max = std::min(facts.context_tokens, options.kv_tokens);
  parts.info.sequences_max = options.sequences_max;
  parts.info.step_tokens_max = options.step_tokens_max;
  parts.info.block_tokens = kBlockTokens;
  parts.info.repeats_states = true;  // Whatever the batch, the chunks and what is known: docs/exactness.md.
  parts.info.kv_bytes_per_token = parts.memory->shape().bytes_per_block() / kBlockTokens;
  ISTHMUS_LOG(
      kInfo, "engine ready",
      "engine=openvino version={} storage={} isa={} activations={} blocks={} kv_bytes={} parking_blocks={}",
      parts.info.version, parts.info.storage, options.isa, options.activations, blocks,
      parts.memory->shape().bytes_per_block() * blocks, places);
  return std::unique_ptr<Engine>(std::make_unique<OpenvinoEngine>(std::move(parts)));
}

}  // namespace isthmus::engine::openvino
