// SPDX-License-Identifier: Apache-2.0
// Loops.
#include "engine/reference/model.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace isthmus::engine {
namespace {

constexpr std::uint32_t kWidth = 64;
constexpr double kRopeTheta = 10000;

// Uniform with the variance that keeps a product's scale.
std::vector<float> random_matrix(std::uint64_t seed, std::uint64_t stream, std::uint32_t out,
                                 std::uint32_t in) {
  std::vector<float> matrix(std::size_t{out} * in);
  const double scale = std::sqrt(12.0 / in);
  for (std::size_t i = 0; i < matrix.size(); ++i)
    matrix[i] = static_cast<float>((uniform_at(seed, stream, i) - 0.5) * scale);
  return matrix;
}

float dot(const float* a, const float* b, std::size_t size) {
  float sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<float> times(const std::vector<float>& matrix, std::span<const float> row) {
  std::vector<float> out(matrix.size() / row.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = dot(matrix.data() + i * row.size(), row.data(), row.size());
  return out;
}

std::vector<float> normed(std::span<const float> row) {
  const float scale =
      1.0f / std::sqrt(dot(row.data(), row.data(), row.size()) / static_cast<float>(row.size()) + 1e-6f);
  std::vector<float> out(row.begin(), row.end());
  for (float& value : out) value *= scale;
  return out;
}

// Pairs (2i, 2i + 1), each head's row alike.
void rotate(std::span<float> rows, std::uint32_t dim, std::uint64_t position) {
  for (std::size_t at = 0; at < rows.size(); at += 2) {
    const auto pair = static_cast<double>(at % dim);
    const double angle = static_cast<double>(position) * std::pow(kRopeTheta, -pair / dim);
    const auto cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
    const float first = rows[at], second = rows[at + 1];
    rows[at] = first * cosine - second * sine;
    rows[at + 1] = first * sine + second * cosine;
  }
}

void softmax(std::span<float> scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - top);
  for (float& score : scores) score /= sum;
}

void add_weighted(std::span<float> out, std::span<const float> weights, std::span<const float> rows) {
  for (std::size_t t = 0; t < weights.size(); ++t) {
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weights[t] * rows[t * out.size() + d];
  }
}

}  // namespace

ReferenceModel::ReferenceModel(const ReferenceShape& shape) : shape_(shape), width_(kWidth) {
  std::uint64_t stream = 0;
  const auto matrix = [&](std::uint32_t out, std::uint32_t in) {
    return random_matrix(shape.seed, stream++, out, in);
  };
  embedding_ = matrix(shape.vocabulary, width_);
  head_ = matrix(shape.vocabulary, width_);
  const bool is_mla = shape.attention == ReferenceAttention::kMla;
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    Layer& layer = layers_.emplace_back();
    layer.query = matrix(shape.query_heads * shape.dim, width_);
    layer.key = matrix(shape.kv_heads * shape.dim, width_);
    layer.output = matrix(width_, shape.query_heads * shape.dim);
    layer.up = matrix(2 * width_, width_);
    layer.down = matrix(width_, 2 * width_);
    if (is_mla) {
      layer.query_rope = matrix(shape.query_heads * shape.rope_dim, width_);
      layer.key_rope = matrix(shape.rope_dim, width_);
    } else {
      layer.value = matrix(shape.kv_heads * shape.dim, width_);
    }
  }
}

void ReferenceModel::step(TokenId token, std::uint64_t position, Past& past, std::span<float> logits) const {
  const auto id = static_cast<std::size_t>(token) % shape_.vocabulary;
  Row x(embedding_.begin() + static_cast<std::ptrdiff_t>(id * width_),
        embedding_.begin() + static_cast<std::ptrdiff_t>((id + 1) * width_));
  for (std::uint32_t i = 0; i < shape_.layers; ++i) {
    const Row seen = shape_.attention == ReferenceAttention::kMla ? attend_mla(i, normed(x), position, past)
                                                                  : attend(i, normed(x), position, past);
    const Row attended = times(layers_[i].output, seen);
    for (std::size_t d = 0; d < width_; ++d) x[d] += attended[d];
    Row inner = times(layers_[i].up, normed(x));
    for (float& value : inner) value = value / (1.0f + std::exp(-value));
    const Row fed = times(layers_[i].down, inner);
    for (std::size_t d = 0; d < width_; ++d) x[d] += fed[d];
  }
  const Row out = times(head_, normed(x));
  std::copy(out.begin(), out.end(), logits.begin());
}

kv::TokenRange ReferenceModel::seen(std::uint32_t layer, std::uint64_t position) const {
  const bool is_sliding = shape_.attention == ReferenceAttention::kSlidingMix && layer % 2 == 1;
  const std::uint64_t end = position + 1;
  return {is_sliding && end > shape_.window ? end - shape_.window : 0, end};
}

ReferenceModel::Row ReferenceModel::attend(std::uint32_t layer, const Row& normed, std::uint64_t position,
                                           Past& past) const {
  const std::uint32_t dim = shape_.dim;
  Row query = times(layers_[layer].query, normed);
  Row key = times(layers_[layer].key, normed);
  const Row value = times(layers_[layer].value, normed);
  rotate(query, dim, position);
  rotate(key, dim, position);
  for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
    past.put({layer, 0, head}, position, std::span(key).subspan(std::size_t{head} * dim, dim));
    past.put({layer, 1, head}, position, std::span(value).subspan(std::size_t{head} * dim, dim));
  }
  const kv::TokenRange range = seen(layer, position);
  const std::uint32_t sharing = shape_.query_heads / shape_.kv_heads;
  Row out(std::size_t{shape_.query_heads} * dim);
  Row scores(range.size());
  for (std::uint32_t q = 0; q < shape_.query_heads; ++q) {
    const float* own = query.data() + std::size_t{q} * dim;
    const auto keys = past.rows({layer, 0, q / sharing}, range, q % sharing);
    for (std::size_t t = 0; t < scores.size(); ++t)
      scores[t] = dot(own, keys.data() + t * dim, dim) / std::sqrt(static_cast<float>(dim));
    softmax(scores);
    add_weighted(std::span(out).subspan(std::size_t{q} * dim, dim), scores,
                 past.rows({layer, 1, q / sharing}, range, q % sharing));
  }
  return out;
}

ReferenceModel::Row ReferenceModel::attend_mla(std::uint32_t layer, const Row& normed, std::uint64_t position,
                                               Past& past) const {
  const std::uint32_t dim = shape_.dim, rope_dim = shape_.rope_dim;
  const Row query = times(layers_[layer].query, normed);
  Row query_rope = times(layers_[layer].query_rope, normed);
  const Row latent = times(layers_[layer].key, normed);
  Row rope = times(layers_[layer].key_rope, normed);
  rotate(query_rope, rope_dim, position);
  rotate(rope, rope_dim, position);
  past.put({layer, 0, 0}, position, latent);
  past.put({layer, 1, 0}, position, rope);
  const kv::TokenRange range{0, position + 1};
  Row out(std::size_t{shape_.query_heads} * dim);
  Row scores(range.size());
  for (std::uint32_t q = 0; q < shape_.query_heads; ++q) {
    const auto ropes = past.rows({layer, 1, 0}, range, q);
    for (std::size_t t = 0; t < scores.size(); ++t)
      scores[t] = dot(query_rope.data() + std::size_t{q} * rope_dim, ropes.data() + t * rope_dim, rope_dim);
    const auto latents = past.rows({layer, 0, 0}, range, q);
    for (std::size_t t = 0; t < scores.size(); ++t) {
      scores[t] += dot(query.data() + std::size_t{q} * dim, latents.data() + t * dim, dim);
      scores[t] /= std::sqrt(static_cast<float>(dim + rope_dim));
    }
    softmax(scores);
    add_weighted(std::span(out).subspan(std::size_t{q} * dim, dim), scores, latents);
  }
  return out;
}

}  // namespace isthmus::engine
