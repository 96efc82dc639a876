// SPDX-License-Identifier: Apache-2.0
// Front end, stateful form, paged attention, and three edits: chosen logit rows, windows, and layer 0's
// attention by itself.
#include "engine/openvino/conversion.h"

#include <fmt/format.h>

#include <exception>
#include <openvino/frontend/extension/decoder_transformation.hpp>
#include <openvino/frontend/gguf/adapt_to_genai.hpp>
#include <openvino/frontend/gguf/make_stateful.hpp>
#include <openvino/frontend/manager.hpp>
#include <openvino/op/ops.hpp>
#include <openvino/pass/manager.hpp>
#include <openvino/pass/sdpa_to_paged_attention.hpp>
#include <string_view>
#include <vector>

#include "engine/openvino/pair_rotation.h"

namespace isthmus::engine::openvino {
namespace {

using ov::op::v0::Constant;
using ov::op::v0::Parameter;
using ov::op::v0::Result;

// The operation's class isn't among the wheel's headers; its type name and the order of its inputs are its
// contract.
constexpr std::string_view kAttentionType = "PagedAttentionExtension";
// Query, key and value rows come first, then the caches.
constexpr std::size_t kRowInputs = 3;
// How many positions a token attends to, itself and those right before it; i32, 0: all.
constexpr std::size_t kWindowInput = 10;

std::shared_ptr<Parameter> named_parameter(const ov::element::Type& type, const ov::PartialShape& shape,
                                           const std::string& name) {
  auto parameter = std::make_shared<Parameter>(type, shape);
  parameter->set_friendly_name(name);
  parameter->output(0).get_tensor().set_names({name});
  return parameter;
}

std::shared_ptr<ov::Model> read_stateful(const std::string& gguf_path) {
  ov::frontend::FrontEndManager manager;
  const auto front_end = manager.load_by_framework("gguf");
  front_end->add_extension(std::make_shared<ov::frontend::DecoderTransformationExtension>(
      ov::frontend::gguf::pass::GGUFMakeStateful()));
  return front_end->convert(front_end->load(gguf_path));
}

// The LM head runs on every hidden row unless told otherwise, which costs 20-65 % of a prefill.
isthmus::Status choose_logit_rows(ov::Model& model) {
  if (model.get_results().size() != 1) {
    return Error{Code::kUnsupported,
                 fmt::format("the graph has {} outputs instead of logits alone", model.get_results().size())};
  }
  ov::Node* node = model.get_results().front()->get_input_node_ptr(0);
  while (std::string_view(node->get_type_name()) == "Reshape") node = node->get_input_node_ptr(0);
  if (std::string_view(node->get_type_name()) != "MatMul") {
    return Error{Code::kUnsupported,
                 fmt::format("logits come from a {} instead of a MatMul", node->get_type_name())};
  }
  // [1, tokens, 1, width] by declaration; the paged form runs it as [tokens, 1, 1, width] or so: the token
  // axis is the one dynamic axis.
  const ov::Output<ov::Node> hidden = node->input_value(0);
  const ov::PartialShape& shape = hidden.get_partial_shape();
  std::vector<std::int64_t> dynamic;
  for (std::size_t axis = 0; shape.rank().is_static() && axis < shape.size(); ++axis) {
    if (shape[axis].is_dynamic()) dynamic.push_back(static_cast<std::int64_t>(axis));
  }
  if (dynamic.size() != 1) {
    return Error{Code::kUnsupported,
                 fmt::format("hidden rows of shape {} have no single token axis", shape.to_string())};
  }
  const auto rows = named_parameter(ov::element::i64, ov::PartialShape{-1}, kRowsInput);
  const auto axis = Constant::create(ov::element::i64, ov::Shape{}, {dynamic.front()});
  node->input(0).replace_source_output(std::make_shared<ov::op::v8::Gather>(hidden, rows, axis)->output(0));
  model.add_parameters({rows});
  model.validate_nodes_and_infer_types();
  return ok_status();
}

std::vector<std::shared_ptr<ov::Node>> attention_operations(const ov::Model& model) {
  std::vector<std::shared_ptr<ov::Node>> found;
  for (const auto& node : model.get_ordered_ops()) {
    if (node->get_type_name() == kAttentionType) found.push_back(node);
  }
  return found;
}

// Each attention depends on the one before, so their order in the graph is the layers' order; the caches'
// numbers are taken for layer indices by everyone.
isthmus::Status check_cache_numbers(const std::vector<std::shared_ptr<ov::Node>>& operations) {
  if (operations.empty()) return Error{Code::kUnsupported, "the graph has no paged attention"};
  for (std::size_t layer = 0; layer < operations.size(); ++layer) {
    const ov::Node& node = *operations[layer];
    if (node.get_input_size() < kRowInputs + 2) {
      return Error{Code::kUnsupported,
                   fmt::format("attention {} has {} inputs", layer, node.get_input_size())};
    }
    const std::string& key = node.get_input_node_ptr(kRowInputs)->get_friendly_name();
    const std::string& value = node.get_input_node_ptr(kRowInputs + 1)->get_friendly_name();
    if (key != fmt::format("key_cache.{}", layer) || value != fmt::format("value_cache.{}", layer)) {
      return Error{Code::kUnsupported, fmt::format("layer {} reads {} and {}", layer, key, value)};
    }
  }
  return ok_status();
}

// The passes leave 0 everywhere, whatever mask a layer had.
isthmus::Status set_windows(const std::vector<std::shared_ptr<ov::Node>>& operations, const Window& window) {
  for (std::uint32_t layer = 0; layer < operations.size(); ++layer) {
    ov::Node& node = *operations[layer];
    const auto* const found = node.get_input_size() > kWindowInput
                                  ? ov::as_type<Constant>(node.get_input_node_ptr(kWindowInput))
                                  : nullptr;
    if (found == nullptr || found->get_element_type() != ov::element::i32 ||
        found->cast_vector<std::int32_t>() != std::vector<std::int32_t>{0}) {
      return Error{Code::kUnsupported, fmt::format("attention {} has no empty window", layer)};
    }
    if (!window.is_local(layer)) continue;
    const auto tokens =
        Constant::create(ov::element::i32, found->get_shape(), {static_cast<std::int32_t>(window.tokens)});
    node.input(kWindowInput).replace_source_output(tokens->output(0));
  }
  return ok_status();
}

// A model of one operation: same attributes and constants, rows from outside.
std::shared_ptr<ov::Model> isolate(const std::shared_ptr<ov::Node>& attention) {
  ov::ParameterVector parameters;
  ov::OutputVector inputs;
  const char* const row_names[kRowInputs] = {kQueryInput, kKeyInput, kValueInput};
  for (std::size_t i = 0; i < attention->get_input_size(); ++i) {
    const ov::Output<ov::Node> input = attention->input_value(i);
    if (i < kRowInputs) {
      parameters.push_back(
          named_parameter(input.get_element_type(), input.get_partial_shape(), row_names[i]));
    } else if (ov::as_type<Parameter>(input.get_node())) {
      parameters.push_back(named_parameter(input.get_element_type(), input.get_partial_shape(),
                                           input.get_node()->get_friendly_name()));
    } else {
      inputs.push_back(input.get_node()->clone_with_new_inputs({})->output(0));
      continue;
    }
    inputs.push_back(parameters.back()->output(0));
  }
  const auto copy = attention->clone_with_new_inputs(inputs);
  copy->get_rt_info() = attention->get_rt_info();
  for (std::size_t i = kRowInputs; i < inputs.size(); ++i) {
    inputs[i].get_node()->get_rt_info() = attention->get_input_node_ptr(i)->get_rt_info();
  }
  return std::make_shared<ov::Model>(ov::ResultVector{std::make_shared<Result>(copy->output(0))}, parameters);
}

isthmus::Result<std::uint32_t> row_width(const ov::Node& attention, std::size_t input) {
  const ov::PartialShape& shape = attention.get_input_partial_shape(input);
  if (shape.rank().is_dynamic() || shape.size() != 2 || shape[1].is_dynamic()) {
    return Error{Code::kUnsupported,
                 fmt::format("attention input {} has shape {}", input, shape.to_string())};
  }
  return static_cast<std::uint32_t>(shape[1].get_length());
}

isthmus::Result<PagedGraphs> convert_unguarded(const std::string& gguf_path, const Window& window) {
  PagedGraphs graphs;
  graphs.decoder = read_stateful(gguf_path);
  rotate_pairs_by_product(*graphs.decoder);
  ov::pass::Manager passes;
  passes.register_pass<ov::frontend::gguf::pass::AdaptToGenAI>();
  passes.register_pass<ov::pass::SDPAToPagedAttention>();
  passes.run_passes(graphs.decoder);
  ISTHMUS_TRY(choose_logit_rows(*graphs.decoder));

  const auto operations = attention_operations(*graphs.decoder);
  graphs.layers = static_cast<std::uint32_t>(operations.size());
  ISTHMUS_TRY(check_cache_numbers(operations));
  ISTHMUS_TRY(set_windows(operations, window));
  const std::shared_ptr<ov::Node>& attention = operations.front();
  ISTHMUS_TRY(graphs.query_width, row_width(*attention, 0));
  ISTHMUS_TRY(graphs.key_width, row_width(*attention, 1));
  ISTHMUS_TRY(graphs.value_width, row_width(*attention, 2));
  graphs.attention = isolate(attention);
  return graphs;
}

}  // namespace

isthmus::Result<PagedGraphs> convert_gguf(const std::string& gguf_path, const Window& window) {
  try {
    return convert_unguarded(gguf_path, window);
  } catch (const std::exception& error) {
    return Error{Code::kUnsupported, fmt::format("OpenVINO can't convert {}: {}", gguf_path, error.what())};
  }
}

}  // namespace isthmus::engine::openvino
