// SPDX-License-Identifier: Apache-2.0
// Finds rows that are split into pairs, turned and joined, and puts one product in their place.
#include "engine/openvino/pair_rotation.h"

#include <memory>
#include <openvino/op/ops.hpp>
#include <string_view>
#include <vector>

namespace isthmus::engine::openvino {
namespace {

using ov::op::v0::Constant;

bool is_a(const ov::Node& node, std::string_view type) {
  return node.get_type_name() == type;
}

// The last axis's length, if it is known.
std::size_t last_length(const ov::PartialShape& shape) {
  if (shape.rank().is_dynamic() || shape.size() == 0 || shape[shape.size() - 1].is_dynamic()) return 0;
  return static_cast<std::size_t>(shape[shape.size() - 1].get_length());
}

bool is_minus_one(const ov::Output<ov::Node>& value) {
  const auto constant = ov::as_type_ptr<Constant>(value.get_node_shared_ptr());
  if (!constant) return false;
  const std::vector<float> values = constant->cast_vector<float>();
  return values.size() == 1 && values.front() == -1.0F;
}

// `node` is -1 times `value`.
bool negates(const ov::Node& node, const ov::Output<ov::Node>& value) {
  if (!is_a(node, "Multiply")) return false;
  return (node.input_value(0) == value && is_minus_one(node.input_value(1))) ||
         (node.input_value(1) == value && is_minus_one(node.input_value(0)));
}

// Rows whose pairs `node` holds turned; an empty output if it isn't that.
ov::Output<ov::Node> turned_by(const ov::Node& node) {
  if (!is_a(node, "Reshape") || !is_a(*node.get_input_node_ptr(0), "Concat")) return {};
  const ov::Node& joined = *node.get_input_node_ptr(0);
  if (joined.get_input_size() != 2 || last_length(joined.get_output_partial_shape(0)) != 2) return {};
  const ov::Output<ov::Node> first = joined.input_value(1);
  if (!is_a(*first.get_node(), "Split") || first.get_index() != 0) return {};
  ov::Node& split = *first.get_node();
  if (split.get_output_size() != 2 || last_length(split.get_output_partial_shape(0)) != 1) return {};
  if (!negates(*joined.get_input_node_ptr(0), split.outputs()[1])) return {};
  const ov::Node& pairs = *split.get_input_node_ptr(0);
  if (!is_a(pairs, "Reshape")) return {};
  const ov::Output<ov::Node> rows = pairs.input_value(0);
  const std::size_t length = last_length(rows.get_partial_shape());
  if (length == 0 || last_length(node.get_output_partial_shape(0)) != length) return {};
  if (last_length(pairs.get_output_partial_shape(0)) != 2) return {};
  return rows.get_element_type() == ov::element::f32 ? rows : ov::Output<ov::Node>();
}

// Row times this is row with its pairs turned.
std::shared_ptr<Constant> turning_matrix(std::size_t length) {
  std::vector<float> matrix(length * length, 0.0F);
  for (std::size_t i = 0; i < length; i += 2) {
    matrix[(i + 1) * length + i] = -1.0F;
    matrix[i * length + i + 1] = 1.0F;
  }
  return Constant::create(ov::element::f32, ov::Shape{length, length}, matrix);
}

}  // namespace

std::size_t rotate_pairs_by_product(ov::Model& model) {
  std::size_t found = 0;
  for (const auto& node : model.get_ordered_ops()) {
    const ov::Output<ov::Node> rows = turned_by(*node);
    if (!rows.get_node()) continue;
    const auto matrix = turning_matrix(last_length(rows.get_partial_shape()));
    node->output(0).replace(std::make_shared<ov::op::v0::MatMul>(rows, matrix)->output(0));
    ++found;
  }
  if (found > 0) model.validate_nodes_and_infer_types();
  return found;
}

}  // namespace isthmus::engine::openvino
