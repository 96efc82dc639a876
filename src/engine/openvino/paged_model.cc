// SPDX-License-Identifier: Apache-2.0
// Compiling for the CPU plugin with every setting that changes results named, and running it.
#include "engine/openvino/paged_model.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <openvino/openvino.hpp>
#include <utility>

#include "engine/openvino/cache_input.h"
#include "engine/openvino/conversion.h"
#include "engine/openvino/instruction_set.h"

namespace isthmus::engine::openvino {
namespace {

// Activations that share a scale where they are rounded; the plugin's own choice.
constexpr std::uint64_t kActivationGroup = 32;

std::uint64_t activation_group(const PagedModelOptions& options) {
  return options.rounds_activations ? kActivationGroup : 0;
}

// Every property that changes a bit of KV or logits is set here, none is left to the plugin's choice.
ov::AnyMap properties(const PagedModelOptions& options, const KvType& type) {
  ov::AnyMap map{
      ov::hint::inference_precision(ov::element::f32),
      ov::hint::kv_cache_precision(type.element),
      // 0: off. Else activations of compressed weights are rounded to 8 bits where the processor has such
      // products.
      ov::hint::dynamic_quantization_group_size(activation_group(options)),
      ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
      ov::num_streams(1),
      ov::inference_num_threads(static_cast<int>(options.threads)),
      // Workers of one host would pin themselves to the same cores.
      ov::hint::enable_cpu_pinning(false),
  };
  if (type.is_quantised) map.emplace("KEY_CACHE_QUANT_MODE", type.key_by_channel ? "BY_CHANNEL" : "BY_TOKEN");
  return map;
}

// The settings that results depend on, as the plugin understood them.
Status check_properties(const ov::CompiledModel& model, const PagedModelOptions& options,
                        const KvType& type) {
  const std::pair<const char*, std::string> expected[] = {
      {ov::hint::inference_precision.name(), ov::element::Type(ov::element::f32).to_string()},
      {ov::hint::dynamic_quantization_group_size.name(), fmt::format("{}", activation_group(options))},
      {ov::key_cache_precision.name(), type.element.to_string()},
      {ov::value_cache_precision.name(), type.element.to_string()},
      {ov::key_cache_group_size.name(), "0"},  // 0: a scale for the whole row.
      {ov::value_cache_group_size.name(), "0"}};
  for (const auto& [name, value] : expected) {
    const auto found = model.get_property(name).as<std::string>();
    if (found == value) continue;
    return Error{Code::kIncompatible,
                 fmt::format("the compiled model has {} = {}; {} was asked for", name, found, value)};
  }
  return ok_status();
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
    ISTHMUS_TRY(const KvType type, find_kv_type(options.kv_type));
    ISTHMUS_TRY(choose_instruction_set(options.instruction_set));
    ISTHMUS_TRY(PagedGraphs graphs, convert_gguf(options.gguf_path, options.window));
    auto model = std::make_unique<OpenvinoModel>();
    model->properties_ = properties(options, type);
    model->version_ = ov::get_openvino_version().buildNumber;
    model->compiled_ = model->core_.compile_model(graphs.decoder, "CPU", model->properties_);
    ISTHMUS_TRY(check_properties(model->compiled_, options, type));
    ISTHMUS_TRY(check_instruction_set(options.instruction_set, *model->compiled_.get_runtime_model()));
    model->request_ = model->compiled_.create_infer_request();
    model->attention_ = graphs.attention;
    model->query_width_ = graphs.query_width;

    ISTHMUS_TRY(model->key_, read_cache_input(model->compiled_, "key_cache.0", graphs.key_width, type,
                                              type.key_by_channel));
    ISTHMUS_TRY(model->value_,
                read_cache_input(model->compiled_, "value_cache.0", graphs.value_width, type, false));
    const auto& logits = model->compiled_.output().get_partial_shape();
    if (logits.size() == 0 || logits[logits.size() - 1].is_dynamic()) {
      return Error{Code::kIncompatible, fmt::format("logits of shape {}", logits.to_string())};
    }
    model->shape_ = {.layers = graphs.layers,
                     .key_width = graphs.key_width,
                     .value_width = graphs.value_width,
                     .key_block_bytes = model->key_.block_bytes(),
                     .value_block_bytes = model->value_.block_bytes(),
                     .vocabulary = static_cast<std::uint32_t>(logits[logits.size() - 1].get_length()),
                     .rewrites_partial_blocks = type.key_by_channel};
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

  Result<std::vector<float>> write_attention(const AttentionInput& input) const override {
    try {
      return run_attention(input);
    } catch (const std::exception& error) {
      return Error{Code::kInternal,
                   fmt::format("OpenVINO failed in the attention operation: {}", error.what())};
    }
  }

 private:
  Result<std::vector<float>> run_attention(const AttentionInput& input) const {
    ISTHMUS_CHECK(input.key.size() == input.tokens * shape_.key_width);
    ISTHMUS_CHECK(input.value.size() == input.tokens * shape_.value_width);
    ov::Core core = core_;
    ov::CompiledModel compiled = core.compile_model(attention_, "CPU", properties_);
    ov::InferRequest request = compiled.create_infer_request();
    const std::vector<float> query(input.tokens * query_width_, 0.0f);
    set_rows(request, kQueryInput, input.tokens, query);
    set_rows(request, kKeyInput, input.tokens, input.key);
    set_rows(request, kValueInput, input.tokens, input.value);

    std::vector<std::int32_t> past{static_cast<std::int32_t>(input.past)},
        begins{0, static_cast<std::int32_t>(input.tokens)};
    std::vector<std::int32_t> block_begins{0, static_cast<std::int32_t>(input.blocks.size())},
        blocks = input.blocks;
    std::int32_t context = static_cast<std::int32_t>(input.past + input.tokens);
    request.set_tensor("past_lens", over(past));
    request.set_tensor("subsequence_begins", over(begins));
    request.set_tensor("block_indices_begins", over(block_begins));
    request.set_tensor("block_indices", over(blocks));
    request.set_tensor("max_context_len", ov::Tensor(ov::element::i32, ov::Shape{}, &context));
    request.set_tensor(cache_name("key", 0), key_.tensor(input.memory->key(0), input.memory->shape().blocks));
    request.set_tensor(cache_name("value", 0),
                       value_.tensor(input.memory->value(0), input.memory->shape().blocks));
    request.infer();
    return numbers_of(request.get_output_tensor());
  }

  static std::vector<float> numbers_of(const ov::Tensor& tensor) {
    std::vector<float> out(tensor.get_size());
    if (tensor.get_element_type() == ov::element::f32) {
      std::copy_n(tensor.data<const float>(), out.size(), out.begin());
    } else {
      std::copy_n(tensor.data<const ov::float16>(), out.size(), out.begin());
    }
    return out;
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
