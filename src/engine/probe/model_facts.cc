// SPDX-License-Identifier: Apache-2.0
// Model facts from GGUF metadata, and the descriptor that follows from them.
#include "engine/probe/model_facts.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <numeric>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/mac.h"
#include "engine/probe/gguf.h"

namespace isthmus::engine {
namespace {

// general.file_type (llama.h's enum llama_ftype) of the recipes whose tensors gguf.h can read.
std::string recipe_name(std::uint64_t file_type) {
  switch (file_type) {
    case 0:
      return "gguf-f32";
    case 1:
      return "gguf-f16";
    case 2:
      return "gguf-q4_0";
    case 3:
      return "gguf-q4_1";
    case 7:
      return "gguf-q8_0";
    case 18:
      return "gguf-q6_k";
    case 32:
      return "gguf-bf16";
    default:
      return fmt::format("gguf-file_type_{}", file_type);
  }
}

std::string digest_of_entries(const GgufFile& file, std::string_view prefix) {
  DigestStream stream;
  for (const auto& [key, bytes] : file.raw(prefix)) {
    const std::array<std::uint64_t, 2> sizes{key.size(), bytes.size()};
    stream.add(bytes_of(std::span<const std::uint64_t>(sizes)));
    stream.add(bytes_of(std::string_view(key)));
    stream.add(bytes);
  }
  return stream.finish().hex();
}

Result<std::uint32_t> count32(const GgufFile& file, const std::string& key) {
  ISTHMUS_TRY(const std::uint64_t value, file.count(key));
  if (value == 0 || value > 1u << 24)
    return Error{Code::kMalformed, fmt::format("gguf: {} is {}", key, value)};
  return static_cast<std::uint32_t>(value);
}

Status read_shapes(const GgufFile& file, ModelFacts& facts) {
  const std::string arch = facts.architecture + ".";
  ISTHMUS_TRY(facts.layers, count32(file, arch + "block_count"));
  ISTHMUS_TRY(facts.width, count32(file, arch + "embedding_length"));
  ISTHMUS_TRY(facts.heads, count32(file, arch + "attention.head_count"));
  facts.kv_heads = facts.heads;
  if (file.has(arch + "attention.head_count_kv")) {
    ISTHMUS_TRY(facts.kv_heads, count32(file, arch + "attention.head_count_kv"));
  }
  facts.head_dim = facts.width / facts.heads;
  if (file.has(arch + "attention.key_length")) {
    ISTHMUS_TRY(facts.head_dim, count32(file, arch + "attention.key_length"));
    ISTHMUS_TRY(const auto value_dim, count32(file, arch + "attention.value_length"));
    if (value_dim != facts.head_dim) {
      return Error{Code::kUnsupported,
                   fmt::format("model: key_length {} and value_length {} differ", facts.head_dim, value_dim)};
    }
  }
  ISTHMUS_TRY(facts.context_tokens, file.count(arch + "context_length"));
  ISTHMUS_TRY(facts.norm_epsilon, file.real(arch + "attention.layer_norm_rms_epsilon"));
  ISTHMUS_TRY(const std::uint64_t vocabulary, file.array_length("tokenizer.ggml.tokens"));
  facts.vocabulary = static_cast<std::uint32_t>(vocabulary);
  return ok_status();
}

Status read_rope(const GgufFile& file, const Architecture& architecture, ModelFacts& facts) {
  const std::string rope = facts.architecture + ".rope.";
  facts.rope_theta = 10'000;  // What GGUF means by a missing freq_base.
  if (file.has(rope + "freq_base")) {
    ISTHMUS_TRY(facts.rope_theta, file.real(rope + "freq_base"));
  }
  std::uint32_t rotated = facts.head_dim;
  if (file.has(rope + "dimension_count")) {
    ISTHMUS_TRY(rotated, count32(file, rope + "dimension_count"));
  }
  if (rotated != facts.head_dim || rotated % 2 != 0) {
    return Error{Code::kUnsupported,
                 fmt::format("model: rope turns {} of {} elements of a head", rotated, facts.head_dim)};
  }
  facts.rope_scaling = "none";
  if (!file.raw(rope + "scaling.").empty()) facts.rope_scaling = digest_of_entries(file, rope + "scaling.");
  if (file.tensor("rope_freqs.weight") != nullptr) facts.rope_scaling += "+rope_freqs";
  facts.rope_pairing = architecture.pairs_halves ? "halves" : "interleaved";
  return ok_status();
}

std::string window_text(const Window& window) {
  if (window.tokens == 0) return "none";
  return fmt::format("{} but_every={} theta={:016x}", window.tokens, window.period,
                     std::bit_cast<std::uint64_t>(window.rope_theta));
}

// llama.cpp takes so many layers of Gemma 3 for the 27B, and scales its queries otherwise than by the head.
Status check_query_scale(const ModelFacts& facts) {
  if (facts.architecture != "gemma3" || facts.layers != 62 || facts.head_dim * facts.heads == facts.width)
    return ok_status();
  return Error{Code::kUnsupported,
               "model: gemma3 of 62 layers isn't served: engines differ in its query scale"};
}

// What most models don't have is only said of those that have it.
std::string config_digest(const ModelFacts& facts) {
  std::string text = fmt::format(
      "{} layers={} width={} heads={} kv_heads={} head_dim={} vocabulary={} epsilon={:016x} "
      "theta={:016x} scaling={} window={}",
      facts.architecture, facts.layers, facts.width, facts.heads, facts.kv_heads, facts.head_dim,
      facts.vocabulary, std::bit_cast<std::uint64_t>(facts.norm_epsilon),
      std::bit_cast<std::uint64_t>(facts.rope_theta), facts.rope_scaling, window_text(facts.window));
  if (!facts.biases.empty()) text += " biases=" + facts.biases;
  if (!facts.head_norms.empty()) text += " head_norms=" + facts.head_norms;
  return digest128(text).hex();
}

}  // namespace

Result<ModelFacts> read_model_facts(const std::string& gguf_path) {
  ISTHMUS_TRY(const GgufFile file, GgufFile::open(gguf_path));
  ModelFacts facts;
  if (file.has("general.name")) {
    ISTHMUS_TRY(facts.name, file.text("general.name"));
  }
  const Result<const Architecture*> found = find_architecture(file);
  if (!found.ok()) return Error{found.code(), fmt::format("{}: {}", gguf_path, found.error().detail)};
  const Architecture& architecture = **found;
  facts.architecture = architecture.name;
  facts.biases = biased_projections(file);
  facts.head_norms = architecture.has_head_norms ? "qk" : "";
  ISTHMUS_TRY(read_shapes(file, facts));
  ISTHMUS_TRY(check_query_scale(facts));
  ISTHMUS_TRY(read_rope(file, architecture, facts));
  ISTHMUS_TRY(facts.window, read_window(file, architecture));
  facts.weights_recipe = "gguf-unknown";
  if (file.has("general.file_type")) {
    ISTHMUS_TRY(const auto file_type, file.count("general.file_type"));
    facts.weights_recipe = recipe_name(file_type);
  }
  ISTHMUS_TRY(facts.file_sha256, sha256_file(gguf_path));
  facts.config_digest = config_digest(facts);
  facts.tokenizer_digest = digest_of_entries(file, "tokenizer.");
  return facts;
}

Result<std::string> read_tokenizer_digest(const std::string& gguf_path) {
  ISTHMUS_TRY(const GgufFile file, GgufFile::open(gguf_path));
  return digest_of_entries(file, "tokenizer.");
}

Result<kv::Descriptor> describe(const ModelFacts& facts, const kv::Storage& storage,
                                const std::string& lineage) {
  kv::Descriptor descriptor;
  descriptor.identity = {.architecture = facts.architecture,
                         .lineage = lineage.empty() ? facts.file_sha256 : lineage,
                         .config_digest = facts.config_digest,
                         .tokenizer_digest = facts.tokenizer_digest,
                         .adapters = {},
                         .position_scheme = "rope",
                         .rope_theta = facts.rope_theta,
                         .rope_scaling = facts.rope_scaling,
                         .key_after_rotation = true,
                         .first_position = 0};
  // How the weights are executed counts too: one file gives other states in other engines.
  descriptor.weights_recipe = storage.engine + "/" + facts.weights_recipe;
  descriptor.weights_digest = facts.file_sha256;
  kv::LayerGroup group;
  group.layers.resize(facts.layers);
  std::iota(group.layers.begin(), group.layers.end(), 0u);
  group.components = {{.name = "k",
                       .heads = facts.kv_heads,
                       .dim = facts.head_dim,
                       .has_token_axis = true,
                       .value_transforms = {"rope:" + facts.rope_pairing}},
                      {.name = "v",
                       .heads = facts.kv_heads,
                       .dim = facts.head_dim,
                       .has_token_axis = true,
                       .value_transforms = {}}};
  ISTHMUS_TRY(kv::StoredGroup stored, kv::represent(storage, std::move(group)));
  descriptor.groups.push_back(std::move(stored.group));
  descriptor.representation.push_back(std::move(stored.representation));
  descriptor.partition.push_back({.rank = 0,
                                  .group = 0,
                                  .layer_begin = 0,
                                  .layer_end = facts.layers,
                                  .head_begin = 0,
                                  .head_end = facts.kv_heads});
  ISTHMUS_TRY(descriptor.validate());
  return descriptor;
}

}  // namespace isthmus::engine
