// SPDX-License-Identifier: Apache-2.0
// The rows. Adding a storage is adding a row; no other code knows an engine's name.
#include "kv/catalogue.h"

#include <utility>

#include <fmt/format.h>

namespace isthmus::kv {
namespace {

constexpr const char* kLlamaVersion = "0.5.0-dev 0c1e57098bba";
constexpr const char* kLlamaSource =
    "src/llama-kv-cache.cpp, state_write_data: rows as llama_state_seq_get_data gives";
constexpr const char* kOpenvinoVersion = "2026.4.1";
constexpr const char* kOpenvinoFloatSource = "CPU plugin, PagedAttention inputs key_cache.N, value_cache.N";
constexpr const char* kOpenvinoTokenSource = "CPU plugin, PagedAttention with KEY_CACHE_QUANT_MODE=BY_TOKEN";
constexpr const char* kOpenvinoChannelSource =
    "CPU plugin, PagedAttention with KEY_CACHE_QUANT_MODE=BY_CHANNEL";

DecodeForm plain(const char* component, Format codes) {
  return {.component = component,
          .codes = codes,
          .granule_dim = 0,
          .granule_tokens = 1,
          .recipe = "nearest_even"};
}

DecodeForm scaled(const char* component, Format codes, Format scale, std::uint32_t granule_dim,
                  const char* recipe) {
  return {.component = component,
          .codes = codes,
          .operation = DecodeOperation::kScaled,
          .scale = scale,
          .granule_dim = granule_dim,
          .recipe = recipe};
}

// OpenVINO's x = (q − z) · s with s and z in f32; granule_dim 0 is the whole row.
DecodeForm zero_point(const char* component, Format codes, const char* recipe) {
  return {.component = component,
          .codes = codes,
          .operation = DecodeOperation::kScaledZeroPoint,
          .scale = Format::kF32,
          .zero = Format::kF32,
          .granule_dim = 0,
          .granule_tokens = 1,
          .high_nibble_first = bits(codes) == 4,
          .recipe = recipe};
}

DecodeForm by_channel(const char* component, std::uint32_t block_tokens) {
  DecodeForm form = zero_point(component, Format::kU8, "openvino.u8.by_channel");
  form.granule_dim = 1;
  form.granule_tokens = block_tokens;
  return form;
}

std::vector<DecodeForm> plain_kv(Format codes) {
  return {plain("k", codes), plain("v", codes)};
}

// Codes that the checkpoint's scales give their size; represent() fills them in.
DecodeForm static_scaled(const char* component, Format codes, const char* recipe) {
  return {.component = component,
          .codes = codes,
          .operation = DecodeOperation::kStaticScaled,
          .granule_dim = 0,
          .granule_tokens = 1,
          .recipe = recipe};
}

// `node` with k:F and v:F in a region each.
std::string two_regions(std::string_view node, Format codes) {
  return fmt::format("region K per layer = {0} k:{1}\nregion V per layer = {0} v:{1}", node, name(codes));
}

DecodeForm q8_0(const char* component) {
  return scaled(component, Format::kI8, Format::kF16, 32, "ggml.q8_0.x86");
}

DecodeForm q4_0(const char* component) {
  DecodeForm form = scaled(component, Format::kU4, Format::kF16, 32, "ggml.q4_0");
  form.operation = DecodeOperation::kScaledConstantZero;
  form.zero_constant = 8;
  return form;
}

// ggml's blocks of 32 elements. Quantised caches are rotated, unless LLAMA_ATTN_ROT_DISABLE is set.
void add_llamacpp_blocks(std::vector<Storage>& rows) {
  const std::string k8 = "region K per layer = tok head dim/32 { k.s:f16 ; dim%32 k:i8 }\n";
  const std::string v8 = "region V per layer = tok head dim/32 { v.s:f16 ; dim%32 v:i8 }";
  const std::string v4 = "region V per layer = tok head dim/32 { v.s:f16 ; dim%16 dim/16%2 v:u4 }";
  const std::vector<StoredTransform> rotated{{.component = "k", .block = 64, .grows = true},
                                             {.component = "v", .block = 64}};
  rows.push_back({.name = "llamacpp:q8_0",
                  .engine = "llamacpp",
                  .version = kLlamaVersion,
                  .source = "ggml/src/ggml-common.h, block_q8_0; src/llama-kv-cache.cpp, build_input_k_rot",
                  .layout_text = k8 + v8,
                  .forms = {q8_0("k"), q8_0("v")},
                  .transforms = rotated});
  rows.push_back({.name = "llamacpp:q8_0_unrotated",
                  .engine = "llamacpp",
                  .version = kLlamaVersion,
                  .source = "ggml/src/ggml-common.h, block_q8_0; run with LLAMA_ATTN_ROT_DISABLE=1",
                  .layout_text = k8 + v8,
                  .forms = {q8_0("k"), q8_0("v")}});
  rows.push_back({.name = "llamacpp:q8_0_v_q4_0",
                  .engine = "llamacpp",
                  .version = kLlamaVersion,
                  .source = "ggml/src/ggml-common.h, block_q8_0 and block_q4_0; rotated as q8_0",
                  .layout_text = k8 + v4,
                  .forms = {q8_0("k"), q4_0("v")},
                  .transforms = rotated});
}

void add_llamacpp(std::vector<Storage>& rows) {
  for (const Format codes : {Format::kF16, Format::kF32, Format::kBf16}) {
    rows.push_back({.name = fmt::format("llamacpp:{}", name(codes)),
                    .engine = "llamacpp",
                    .version = kLlamaVersion,
                    .source = fmt::format("{} (flash attention on: V not transposed)", kLlamaSource),
                    .layout_text = two_regions("tok head dim", codes),
                    .forms = plain_kv(codes)});
    rows.push_back({.name = fmt::format("llamacpp:{}_v_transposed", name(codes)),
                    .engine = "llamacpp",
                    .version = kLlamaVersion,
                    .source = fmt::format("{} (flash attention off: V transposed)", kLlamaSource),
                    .layout_text = fmt::format("region K per layer = tok head dim k:{0}\n"
                                               "region V per layer = head dim tok v:{0}",
                                               name(codes)),
                    .forms = plain_kv(codes)});
  }
  add_llamacpp_blocks(rows);
}

void add_openvino(std::vector<Storage>& rows) {
  for (const Format codes : {Format::kF32, Format::kF16, Format::kBf16}) {
    rows.push_back({.name = fmt::format("openvino:{}", name(codes)),
                    .engine = "openvino",
                    .version = kOpenvinoVersion,
                    .source = kOpenvinoFloatSource,
                    .layout_text = two_regions("blk head slot dim", codes),
                    .block_tokens = 32,
                    .forms = plain_kv(codes)});
  }
  rows.push_back({.name = "openvino:stateful_f32",
                  .engine = "openvino",
                  .version = kOpenvinoVersion,
                  .source = "CPU plugin, stateful model's ReadValue state [1, H, T, D]",
                  .layout_text = two_regions("head tok dim", Format::kF32),
                  .forms = plain_kv(Format::kF32)});
  rows.push_back({.name = "openvino:u8",
                  .engine = "openvino",
                  .version = kOpenvinoVersion,
                  .source = kOpenvinoTokenSource,
                  .layout_text = "region K per layer = blk head slot { k.s:f32 ; k.z:f32 ; dim k:u8 }\n"
                                 "region V per layer = blk head slot { v.s:f32 ; v.z:f32 ; dim v:u8 }",
                  .block_tokens = 32,
                  .forms = {zero_point("k", Format::kU8, "openvino.u8.by_token"),
                            zero_point("v", Format::kU8, "openvino.u8.by_token")}});
  rows.push_back({.name = "openvino:u8_channel",
                  .engine = "openvino",
                  .version = kOpenvinoVersion,
                  .source = kOpenvinoChannelSource,
                  .layout_text =
                      "region K per layer = blk head { dim k.s:f32 ; dim k.z:f32 ; slot dim k:u8 }\n"
                      "region V per layer = blk head slot { v.s:f32 ; v.z:f32 ; dim v:u8 }",
                  .block_tokens = 32,
                  .forms = {by_channel("k", 32), zero_point("v", Format::kU8, "openvino.u8.by_token")}});
  rows.push_back({.name = "openvino:u4",
                  .engine = "openvino",
                  .version = kOpenvinoVersion,
                  .source = kOpenvinoTokenSource,
                  .layout_text =
                      "region K per layer = blk head slot { k.s:f32 ; k.z:f32 ; dim/2 ~dim%2 k:u4 }\n"
                      "region V per layer = blk head slot { v.s:f32 ; v.z:f32 ; dim/2 ~dim%2 v:u4 }",
                  .block_tokens = 32,
                  .forms = {zero_point("k", Format::kU4, "openvino.u4.by_token"),
                            zero_point("v", Format::kU4, "openvino.u4.by_token")}});
}

// Storages with plain k and v of other serving engines, as one row of data each. Taken from their sources and
// documentation; no adapter here has probed them yet.
struct PlainRow {
  const char* name;
  const char* engine;
  const char* version;
  const char* source;
  const char* layout_text;
  std::uint32_t block_tokens;
  Format codes;
};

constexpr PlainRow kPlainRows[] = {
    {"vllm:flash_nhd", "vllm", "0.32.0",
     "vllm/v1/attention/backends/flash_attn.py, get_kv_cache_stride_order NHD",
     "region K per layer = blk slot head dim k:bf16\nregion V per layer = blk slot head dim v:bf16", 16,
     Format::kBf16},
    {"vllm:flash_hnd", "vllm", "0.32.0",
     "vllm/v1/attention/backends/flash_attn.py, get_kv_cache_stride_order HND",
     "region K per layer = blk head slot dim k:bf16\nregion V per layer = blk head slot dim v:bf16", 16,
     Format::kBf16},
    {"vllm:packed_k_then_v", "vllm", "0.32.0", "packed content dimension, K region then V region of a head",
     "region KV per layer = blk head { slot dim k:bf16 ; slot dim v:bf16 }", 16, Format::kBf16},
    {"vllm:packed_per_token", "vllm", "0.32.0", "packed content dimension, K then V of each token",
     "region KV per layer = blk head slot { dim k:bf16 ; dim v:bf16 }", 16, Format::kBf16},
    {"vllm:cpu_vec", "vllm", "0.32.0", "csrc/cpu/cpu_attn_vec.hpp",
     "region KV per layer = blk head { dim slot k:bf16 ; slot dim v:bf16 }", 16, Format::kBf16},
    {"vllm:cpu_amx", "vllm", "0.32.0", "csrc/cpu/cpu_attn_amx.hpp",
     "region KV per layer = blk head { slot/16 dim/2 slot%16 dim%2 k:bf16 ; dim/16 slot/2 dim%16 slot%2 "
     "v:bf16 }",
     32, Format::kBf16},
    {"vllm:paged_x", "vllm", "0.2",
     "csrc/attention, key cache [blocks, heads, dim/x, slots, x] with x = 16 bytes",
     "region K per layer = blk head dim/8 slot dim%8 k:f16\nregion V per layer = blk head dim slot v:f16", 16,
     Format::kF16},
    {"vllm:paged_x_f32", "vllm", "0.2", "csrc/attention, as paged_x with 4 elements of 4 bytes",
     "region K per layer = blk head dim/4 slot dim%4 k:f32\nregion V per layer = blk head dim slot v:f32", 16,
     Format::kF32},
    {"vllm:padded_page", "vllm", "0.32.0", "page of fixed size, as hybrid models need",
     "region KV per layer = blk@32768 { slot head dim k:bf16 ; slot head dim v:bf16 }", 16, Format::kBf16},
    {"flashinfer:nhd", "flashinfer", "0.2", "docs, KV layout NHD: paged cache [pages, 2, slots, heads, dim]",
     "region KV per layer = blk { slot head dim k:bf16 ; slot head dim v:bf16 }", 16, Format::kBf16},
    {"flashinfer:hnd", "flashinfer", "0.2", "docs, KV layout HND: paged cache [pages, 2, heads, slots, dim]",
     "region KV per layer = blk { head slot dim k:bf16 ; head slot dim v:bf16 }", 16, Format::kBf16},
    {"tensorrt_llm:paged", "tensorrt_llm", "1.0", "primary pool [blocks, layers, 2, heads, slots, dim]",
     "region KV = blk layer { head slot dim k:bf16 ; head slot dim v:bf16 }", 32, Format::kBf16},
    {"sglang:page", "sglang", "0.5.23", "python/sglang/srt/mem_cache/memory_pool.py, MHATokenToKVPool",
     "region K per layer = blk slot head dim k:bf16\nregion V per layer = blk slot head dim v:bf16", 64,
     Format::kBf16},
    {"ascend:nz", "ascend", "CANN 8", "FRACTAL_NZ with c0 = 32 bytes",
     "region K per layer = blk hd/16 slot hd%16 k:bf16\nregion V per layer = blk hd/16 slot hd%16 v:bf16",
     128, Format::kBf16},
};

// FP8 caches whose scales are the checkpoint's, one a layer. The CPU backend truncates, CUDA rounds.
constexpr PlainRow kStaticRows[] = {
    {"vllm:cpu_vec_fp8", "vllm", "0.32.0", "csrc/cpu/cpu_attn_vec.hpp with kv_cache_dtype fp8_e4m3",
     "region KV per layer = blk head { dim slot k:e4m3fn ; slot dim v:e4m3fn }", 128, Format::kE4m3fn},
    {"vllm:cpu_amx_fp8", "vllm", "0.32.0", "csrc/cpu/cpu_attn_amx.hpp with kv_cache_dtype fp8_e4m3",
     "region KV per layer = blk head { slot/16 dim/2 slot%16 dim%2 k:e4m3fn ; "
     "dim/16 slot/2 dim%16 slot%2 v:e4m3fn }",
     128, Format::kE4m3fn},
    {"vllm:flash_nhd_fp8", "vllm", "0.32.0", "flash_nhd with kv_cache_dtype fp8_e4m3 on CUDA",
     "region K per layer = blk slot head dim k:e4m3fn\nregion V per layer = blk slot head dim v:e4m3fn", 16,
     Format::kE4m3fn},
    {"vllm:flash_nhd_fp8_fnuz", "vllm", "0.32.0", "flash_nhd with kv_cache_dtype fp8_e4m3 on gfx942",
     "region K per layer = blk slot head dim k:e4m3fnuz\nregion V per layer = blk slot head dim v:e4m3fnuz",
     16, Format::kE4m3fnuz},
    {"vllm:paged_x_fp8", "vllm", "0.2", "csrc/attention, as paged_x with 16 elements of one byte",
     "region K per layer = blk head dim/16 slot dim%16 k:e4m3fn\n"
     "region V per layer = blk head dim slot v:e4m3fn",
     16, Format::kE4m3fn},
};

Storage storage_of(const PlainRow& row, std::vector<DecodeForm> forms) {
  return {.name = row.name,
          .engine = row.engine,
          .version = row.version,
          .source = row.source,
          .layout_text = row.layout_text,
          .block_tokens = row.block_tokens,
          .forms = std::move(forms)};
}

void add_others(std::vector<Storage>& rows) {
  for (const PlainRow& row : kPlainRows) rows.push_back(storage_of(row, plain_kv(row.codes)));
  for (const PlainRow& row : kStaticRows) {
    const bool truncates = std::string_view(row.name).starts_with("vllm:cpu_");
    const char* recipe = truncates ? "vllm.cpu.fp8" : "nearest_even";
    rows.push_back(
        storage_of(row, {static_scaled("k", row.codes, recipe), static_scaled("v", row.codes, recipe)}));
  }
  rows.push_back({.name = "vllm:i8_scales_apart",
                  .engine = "vllm",
                  .version = "0.32.0",
                  .source = "int8 cache with a scale a token and head",
                  .layout_text = "region K per layer = blk slot head dim k:i8\n"
                                 "region V per layer = blk slot head dim v:i8\n"
                                 "region KS per layer = blk slot head k.s:f32\n"
                                 "region VS per layer = blk slot head v.s:f32",
                  .block_tokens = 16,
                  .forms = {scaled("k", Format::kI8, Format::kF32, 0, "amax"),
                            scaled("v", Format::kI8, Format::kF32, 0, "amax")}});
}

void add_mla(std::vector<Storage>& rows) {
  rows.push_back({.name = "vllm:mla_bf16",
                  .engine = "vllm",
                  .version = "0.32.0",
                  .source = "vllm/v1/attention/backends/mla, cache [blocks, slots, 576]",
                  .layout_text = "region C per layer = blk slot { dim latent:bf16 ; dim rope:bf16 }",
                  .block_tokens = 64,
                  .forms = {plain("latent", Format::kBf16), plain("rope", Format::kBf16)}});
  rows.push_back(
      {.name = "vllm:mla_fp8_656",
       .engine = "vllm",
       .version = "0.32.0",
       .source = "kv_cache_dtype fp8_ds_mla: csrc/cache_kernels.cu, concat_and_cache_ds_mla; a record of "
                 "656 bytes",
       .layout_text =
           "region C per layer = blk slot { dim latent:e4m3fn ; dim/128 latent.s:f32 ; dim rope:bf16 }",
       .block_tokens = 64,
       .forms = {scaled("latent", Format::kE4m3fn, Format::kF32, 128, "vllm.fp8_ds_mla"),
                 plain("rope", Format::kBf16)}});
  rows.push_back({.name = "vllm:mla_fp8_584",
                  .engine = "vllm",
                  .version = "0.32.0",
                  .source =
                      "kv_cache_dtype fp8_ds_mla of DeepSeek V4, latent 448, rope 64: 584 bytes a token, "
                      "scales behind a block's codes, blocks aligned to 576 bytes",
                  .layout_text = "region C per layer = blk { slot { dim latent:e4m3fn ; dim rope:bf16 } ; "
                                 "slot { dim/64 latent.s:e8m0 ; pad 1 } ; align 576 }",
                  .block_tokens = 64,
                  .forms = {scaled("latent", Format::kE4m3fn, Format::kE8m0, 64, "vllm.fp8.ue8m0"),
                            plain("rope", Format::kBf16)}});
  rows.push_back({.name = "vllm:index_k_fp8",
                  .engine = "vllm",
                  .version = "0.32.0",
                  .source =
                      "csrc/cache_kernels.cu, indexer_k_quant_and_cache with ue8m0: a block's codes, then "
                      "its scales",
                  .layout_text = "region I per layer = blk { slot dim index_k:e4m3fn ; slot index_k.s:f32 }",
                  .block_tokens = 64,
                  .forms = {scaled("index_k", Format::kE4m3fn, Format::kF32, 0, "vllm.fp8.ue8m0")}});
  rows.push_back({.name = "ascend:mla_nz",
                  .engine = "ascend",
                  .version = "CANN 8",
                  .source = "FRACTAL_NZ with c0 = 32 bytes, latent and rope apart",
                  .layout_text = "region N per layer = blk dim/16 slot dim%16 latent:bf16\n"
                                 "region R per layer = blk dim/16 slot dim%16 rope:bf16",
                  .block_tokens = 128,
                  .forms = {plain("latent", Format::kBf16), plain("rope", Format::kBf16)}});
}

void append_transforms(const Storage& storage, Component& component) {
  for (const StoredTransform& transform : storage.transforms) {
    std::uint32_t block = transform.block;
    if (transform.component != component.name || component.dim % block != 0) continue;
    while (transform.grows && component.dim % (block * 2) == 0) block *= 2;
    component.value_transforms.push_back(fmt::format("hadamard:{}", block));
  }
}

std::vector<Storage> make_rows() {
  std::vector<Storage> rows;
  add_llamacpp(rows);
  add_openvino(rows);
  add_others(rows);
  add_mla(rows);
  return rows;
}

}  // namespace

const std::vector<Storage>& catalogue() {
  static const std::vector<Storage> kRows = make_rows();
  return kRows;
}

Result<const Storage*> find_storage(std::string_view name) {
  std::string known;
  for (const Storage& storage : catalogue()) {
    if (storage.name == name) return &storage;
    known += fmt::format("{}{}", known.empty() ? "" : " ", storage.name);
  }
  return Error{Code::kNotFound, fmt::format("no KV storage is named \"{:.64}\"; known: {}", name, known)};
}

Result<StoredGroup> represent(const Storage& storage, LayerGroup group, const StaticScales& scales) {
  GroupRepresentation representation{
      .layout_text = storage.layout_text, .block_tokens = storage.block_tokens, .forms = {}};
  if (storage.forms.size() != group.components.size()) {
    return Error{Code::kIncompatible,
                 fmt::format("storage {} holds {} components, the layer group has {}", storage.name,
                             storage.forms.size(), group.components.size())};
  }
  for (Component& component : group.components) {
    const DecodeForm* found = nullptr;
    for (const DecodeForm& form : storage.forms) {
      if (form.component == component.name) found = &form;
    }
    if (found == nullptr) {
      return Error{Code::kIncompatible,
                   fmt::format("storage {} has no component {}", storage.name, component.name)};
    }
    DecodeForm form = *found;
    if (has_stored_scale(form.operation) && form.granule_dim == 0) form.granule_dim = component.dim;
    if (form.operation == DecodeOperation::kStaticScaled) {
      const auto given = scales.find(component.name);
      if (given == scales.end()) {
        return Error{Code::kNotFound, fmt::format("storage {} needs static scales of {}, and there are none",
                                                  storage.name, component.name)};
      }
      form.static_scales = given->second;
    }
    representation.forms.push_back(std::move(form));
    append_transforms(storage, component);
  }
  return StoredGroup{std::move(group), std::move(representation)};
}

Result<Descriptor> plain_descriptor(const Storage& storage, const PlainShape& shape) {
  Descriptor descriptor;
  descriptor.identity.architecture = "any";
  descriptor.identity.lineage = "any";
  descriptor.identity.config_digest = "any";
  descriptor.identity.tokenizer_digest = "any";
  descriptor.identity.position_scheme = "rope";
  descriptor.identity.rope_theta = 10000;
  descriptor.identity.rope_scaling = "none";
  descriptor.weights_recipe = "any";
  LayerGroup group;
  StaticScales scales;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) group.layers.push_back(layer);
  for (const DecodeForm& form : storage.forms) {
    scales[form.component] = {1};
    Component component;
    component.name = form.component;
    component.heads = shape.heads;
    component.dim = shape.dim;
    if (form.component == "k") component.value_transforms = {"rope:interleaved"};
    group.components.push_back(std::move(component));
  }
  ISTHMUS_TRY(StoredGroup stored, represent(storage, std::move(group), scales));
  descriptor.groups.push_back(std::move(stored.group));
  descriptor.representation.push_back(std::move(stored.representation));
  RankBox box;
  box.layer_end = shape.layers;
  box.head_end = shape.heads;
  descriptor.partition.push_back(box);
  descriptor.schema_minor = descriptor.minimum_minor();
  ISTHMUS_TRY(descriptor.validate());
  return descriptor;
}

}  // namespace isthmus::kv
