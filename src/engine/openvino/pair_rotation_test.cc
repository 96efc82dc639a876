// SPDX-License-Identifier: Apache-2.0
// The product makes the bits that cutting, turning and joining made, and nothing else is replaced.
#include "engine/openvino/pair_rotation.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <openvino/op/ops.hpp>
#include <openvino/openvino.hpp>
#include <vector>

namespace isthmus::engine::openvino {
namespace {

namespace op = ov::op;

constexpr std::size_t kRows = 5, kHeads = 3, kWidth = 8;

std::shared_ptr<op::v0::Constant> integers(const std::vector<std::int64_t>& values) {
  return op::v0::Constant::create(ov::element::i64, ov::Shape{values.size()}, values);
}

struct Way {
  float sign = -1.0F;
  bool turns_second = true;  // Else the first of a pair gets the sign.
};

// As the front end writes it.
std::shared_ptr<ov::Model> turned(const Way& way) {
  auto rows = std::make_shared<op::v0::Parameter>(ov::element::f32, ov::PartialShape{-1, 1, kHeads, kWidth});
  auto pairs = std::make_shared<op::v1::Reshape>(rows, integers({0, -1, kHeads, kWidth / 2, 2}), true);
  auto axis = op::v0::Constant::create(ov::element::i64, ov::Shape{}, {-1});
  auto split = std::make_shared<op::v1::Split>(pairs, axis, 2);
  auto sign = op::v0::Constant::create(ov::element::f32, ov::Shape{}, {way.sign});
  const ov::Output<ov::Node> first = split->output(0), second = split->output(1);
  auto changed = std::make_shared<op::v1::Multiply>(way.turns_second ? second : first, sign);
  const ov::OutputVector parts{changed, way.turns_second ? first : second};
  auto joined = std::make_shared<op::v0::Concat>(parts, -1);
  auto back = std::make_shared<op::v1::Reshape>(joined, integers({0, -1, kHeads, kWidth}), true);
  return std::make_shared<ov::Model>(ov::OutputVector{back}, ov::ParameterVector{rows});
}

std::vector<float> run(const std::shared_ptr<ov::Model>& model) {
  ov::Core core;
  auto request = core.compile_model(model, "CPU", ov::hint::inference_precision(ov::element::f32))
                     .create_infer_request();
  std::vector<float> rows(kRows * kHeads * kWidth);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i + 1) / 7.0F;
  request.set_input_tensor(ov::Tensor(ov::element::f32, ov::Shape{kRows, 1, kHeads, kWidth}, rows.data()));
  request.infer();
  const ov::Tensor out = request.get_output_tensor();
  return {out.data<float>(), out.data<float>() + out.get_size()};
}

TEST(PairRotation, MakesTheSameBits) {
  const auto model = turned({});
  const std::vector<float> before = run(model);
  EXPECT_EQ(rotate_pairs_by_product(*model), 1U);
  const std::vector<float> after = run(model);
  ASSERT_EQ(before.size(), after.size());
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
  EXPECT_EQ(before[0], -2.0F / 7.0F);  // (a, b) became (-b, a).
  EXPECT_EQ(before[1], 1.0F / 7.0F);
  for (const auto& node : model->get_ops()) EXPECT_STRNE(node->get_type_name(), "Split");
}

TEST(PairRotation, LeavesOtherTurnsAlone) {
  EXPECT_EQ(rotate_pairs_by_product(*turned({.sign = -2.0F})), 0U);
  EXPECT_EQ(rotate_pairs_by_product(*turned({.turns_second = false})), 0U);
}

}  // namespace
}  // namespace isthmus::engine::openvino
