// SPDX-License-Identifier: Apache-2.0
// Compiling for the CPU plugin with every setting that changes results named, and running it.
#include "engine/openvino/paged_model.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <openvino/openvino.hpp>
#include <optional>

#include "engine/openvino/conversion.h"

namespace isthmus::engine::openvino {
namespace {

Result<ov::element::Type> cache_type(const std::string& kv_type) {
  if (kv_type == "f32") return ov::element::f32;
  if (kv_type == "f16") return ov::element::f16;
  if (kv_type == "u8") return ov::element::u8;
  if (kv_type == "u8_channel") {
    return Error{
        Code::kUnsupported,
        "KV type u8_channel: appending requantises a partial block, so its state is never stable; use u8"};
  }
  if (kv_type == "bf16") {
    return Error{
        Code::kUnsupported,
        "KV type bf16 needs bf16 arithmetic, which loses accuracy on GGUF graphs; use f32, f16 or u8"};
  }
  return Error{Code::kUnsupported, fmt::format("KV type \"{}\" isn't one of f32, f16, u8", kv_type)};
}

// Every property that changes a bit of KV or logits is set here, none is left to the plugin's choice.
ov::AnyMap properties(const PagedModelOptions& options, const ov::element::Type& cache) {
  ov::AnyMap map{
      ov::hint::inference_precision(ov::element::f32),
      ov::hint::kv_cache_precision(cache),
      // Off: activations of compressed weights would be rounded to 8 bits where the processor has such
      // products.
      ov::hint::dynamic_quantization_group_size(0),
      ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
      ov::num_streams(1),
      ov::inference_num_threads(static_cast<int>(options.threads)),
      // Workers of one host would pin themselves to the same cores.
      ov::hint::enable_cpu_pinning(false),
  };
  if (cache == ov::element::u8) map.emplace("KEY_CACHE_QUANT_MODE", "BY_TOKEN");
  return map;
}

// Elements that one head's row of `dim` values takes in storage: codes, and in u8 an f32 scale and zero
// point.
std::uint64_t stored_row(std::uint64_t dim, const ov::element::Type& cache) {
  return cache == ov::element::u8 ? dim + 2 * sizeof(float) : dim;
}

struct CacheInput {
  ov::element::Type type;
  std::uint64_t heads = 0;
  std::uint64_t row = 0;  // Stored elements.

  std::uint64_t block_elements() const { return heads * kBlockTokens * row; }
  std::uint64_t block_bytes() const { return block_elements() * type.size(); }
  ov::Tensor tensor(std::byte* base, std::uint64_t blocks) const {
    return {type, ov::Shape{blocks, heads, kBlockTokens, row}, base};
  }
};

// What the plugin made of one cache input, against what was asked for.
Result<CacheInput> read_cache_input(const ov::CompiledModel& model, const std::string& name,
                                    std::uint64_t width, const ov::element::Type& cache) {
  const auto& input = model.input(name);
  const ov::PartialShape& shape = input.get_partial_shape();
  const auto surprise = [&](const char* what) {
    return Error{Code::kIncompatible,
                 fmt::format("{} is {} {}: {}", name, input.get_element_type().get_type_name(),
                             shape.to_string(), what)};
  };
  if (input.get_element_type() != cache) return surprise("another element type than asked for");
  if (shape.size() != 4 || shape[1].is_dynamic() || shape[2].is_dynamic() || shape[3].is_dynamic()) {
    return surprise("not [blocks, heads, slots, row]");
  }
  if (shape[2].get_length() != kBlockTokens) return surprise("the block size isn't 32 tokens");
  CacheInput result{cache, static_cast<std::uint64_t>(shape[1].get_length()),
                    static_cast<std::uint64_t>(shape[3].get_length())};
  if (result.heads == 0 || width % result.heads != 0 ||
      stored_row(width / result.heads, cache) != result.row) {
    return surprise(fmt::format("its rows don't hold {} elements of all heads", width).c_str());
  }
  return result;
}

template <typename T>
ov::Tensor over(std::vector<T>& values) {
  return {ov::element::from<T>(), ov::Shape{values.size()}, values.data()};
}

std::string cache_name(const char* kind, std::uint32_t layer) {
  return fmt::format("{}_cache.{}", kind, layer);
}

class OpenvinoModel : public PagedModel {
 public:
  static Result<std::unique_ptr<PagedModel>> create(const PagedModelOptions& options) {
    ISTHMUS_TRY(const ov::element::Type cache, cache_type(options.kv_type));
    ISTHMUS_TRY(PagedGraphs graphs, convert_gguf(options.gguf_path));
    auto model = std::make_unique<OpenvinoModel>();
    model->properties_ = properties(options, cache);
    model->version_ = ov::get_openvino_version().buildNumber;
    model->compiled_ = model->core_.compile_model(graphs.decoder, "CPU", model->properties_);
    model->request_ = model->compiled_.create_infer_request();
    model->attention_ = graphs.attention;
    model->query_width_ = graphs.query_width;

    ISTHMUS_TRY(model->key_, read_cache_input(model->compiled_, "key_cache.0", graphs.key_width, cache));
    ISTHMUS_TRY(model->value_,
                read_cache_input(model->compiled_, "value_cache.0", graphs.value_width, cache));
    const auto& logits = model->compiled_.output().get_partial_shape();
    if (logits.size() == 0 || logits[logits.size() - 1].is_dynamic()) {
      return Error{Code::kIncompatible, fmt::format("logits of shape {}", logits.to_string())};
    }
    model->shape_ = {.layers = graphs.layers,
                     .key_width = graphs.key_width,
                     .value_width = graphs.value_width,
                     .key_block_bytes = model->key_.block_bytes(),
                     .value_block_bytes = model->value_.block_bytes(),
                     .vocabulary = static_cast<std::uint32_t>(logits[logits.size() - 1].get_length())};
    return std::unique_ptr<PagedModel>(std::move(model));
  }

  const PagedModelShape& shape() const override { return shape_; }
  const std::string& version() const override { return version_; }

  Status attach(const KvMemory& memory) override {
    const KvMemoryShape& given = memory.shape();
    ISTHMUS_CHECK(given.layers == shape_.layers && given.key_bytes == shape_.key_block_bytes &&
                  given.value_bytes == shape_.value_block_bytes);
    try {
      for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
        request_.set_tensor(cache_name("key", layer), key_.tensor(memory.key(layer), given.blocks));
        request_.set_tensor(cache_name("value", layer), value_.tensor(memory.value(layer), given.blocks));
      }
    } catch (const std::exception& error) {
      // One layer of another shape than layer 0 ends here too.
      return Error{Code::kIncompatible, fmt::format("OpenVINO refuses the KV memory: {}", error.what())};
    }
    return ok_status();
  }

  Result<std::span<const float>> forward(ForwardInput& input) override {
    try {
      request_.set_tensor("input_ids", over(input.input_ids));
      request_.set_tensor("position_ids", over(input.position_ids));
      request_.set_tensor("past_lens", over(input.past_lens));
      request_.set_tensor("subsequence_begins", over(input.subsequence_begins));
      request_.set_tensor("block_indices_begins", over(input.block_indices_begins));
      request_.set_tensor("block_indices", over(input.block_indices));
      request_.set_tensor("max_context_len",
                          ov::Tensor(ov::element::i32, ov::Shape{}, &input.max_context_len));
      request_.set_tensor(kRowsInput, over(input.rows));
      request_.infer();
      const ov::Tensor logits = request_.get_output_tensor();
      if (logits.get_size() != input.rows.size() * shape_.vocabulary) {
        return Error{Code::kInternal, fmt::format("{} logits instead of {} rows of {}", logits.get_size(),
                                                  input.rows.size(), shape_.vocabulary)};
      }
      return std::span<const float>(logits.data<const float>(), logits.get_size());
    } catch (const std::exception& error) {
      return Error{Code::kInternal, fmt::format("OpenVINO failed in a forward: {}", error.what())};
    }
  }

  Status write_attention(const AttentionInput& input) const override {
    try {
      return run_attention(input);
    } catch (const std::exception& error) {
      return Error{Code::kInternal,
                   fmt::format("OpenVINO failed in the attention operation: {}", error.what())};
    }
  }

 private:
  Status run_attention(const AttentionInput& input) const {
    ISTHMUS_CHECK(input.key.size() == input.tokens * shape_.key_width);
    ISTHMUS_CHECK(input.value.size() == input.tokens * shape_.value_width);
    ov::Core core = core_;
    ov::CompiledModel compiled = core.compile_model(attention_, "CPU", properties_);
    ov::InferRequest request = compiled.create_infer_request();
    const std::vector<float> query(input.tokens * query_width_, 0.0f);
    set_rows(request, kQueryInput, input.tokens, query);
    set_rows(request, kKeyInput, input.tokens, input.key);
    set_rows(request, kValueInput, input.tokens, input.value);

    std::vector<std::int32_t> past{0}, begins{0, static_cast<std::int32_t>(input.tokens)};
    std::vector<std::int32_t> block_begins{0, static_cast<std::int32_t>(input.blocks.size())},
        blocks = input.blocks;
    std::int32_t context = static_cast<std::int32_t>(input.tokens);
    request.set_tensor("past_lens", over(past));
    request.set_tensor("subsequence_begins", over(begins));
    request.set_tensor("block_indices_begins", over(block_begins));
    request.set_tensor("block_indices", over(blocks));
    request.set_tensor("max_context_len", ov::Tensor(ov::element::i32, ov::Shape{}, &context));
    request.set_tensor(cache_name("key", 0), key_.tensor(input.memory->key(0), input.memory->shape().blocks));
    request.set_tensor(cache_name("value", 0),
                       value_.tensor(input.memory->value(0), input.memory->shape().blocks));
    request.infer();
    return ok_status();
  }

  // Rows in the element type that the graph has at that place.
  static void set_rows(ov::InferRequest& request, const char* name, std::uint32_t tokens,
                       std::span<const float> values) {
    const ov::element::Type type = request.get_compiled_model().input(name).get_element_type();
    ov::Tensor tensor(type, ov::Shape{tokens, values.size() / tokens});
    if (type == ov::element::f32) {
      std::copy(values.begin(), values.end(), tensor.data<float>());
    } else {
      ov::float16* out = tensor.data<ov::float16>();
      for (const float value : values) *out++ = ov::float16(value);
    }
    request.set_tensor(name, tensor);
  }

  ov::Core core_;
  ov::AnyMap properties_;
  std::string version_;
  ov::CompiledModel compiled_;
  ov::InferRequest request_;
  std::shared_ptr<ov::Model> attention_;
  std::uint32_t query_width_ = 0;
  CacheInput key_, value_;
  PagedModelShape shape_;
};

}  // namespace

Result<std::unique_ptr<PagedModel>> PagedModel::load(const PagedModelOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(options.gguf_path, ignored)) {
    return Error{Code::kNotFound, fmt::format("no model file {}", options.gguf_path)};
  }
  try {
    return OpenvinoModel::create(options);
  } catch (const std::exception& error) {
    return Error{Code::kUnsupported,
                 fmt::format("OpenVINO can't compile {}: {}", options.gguf_path, error.what())};
  }
}

}  // namespace isthmus::engine::openvino
