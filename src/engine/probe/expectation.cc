// SPDX-License-Identifier: Apache-2.0
// Embedding, RMS norm, K and V projections and rope, from dequantised weights; sums in f64.
#include "engine/probe/expectation.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/probe/gguf.h"

namespace isthmus::engine {
namespace {

struct Config {
  std::uint64_t width = 0, heads = 0, kv_heads = 0, dim = 0;
  double epsilon = 0, theta = 10'000;  // GGUF's default of rope.freq_base.
};

Error unsupported(std::string detail) {
  return {Code::kUnsupported, "probe: " + std::move(detail)};
}
Error malformed(std::string detail) {
  return {Code::kMalformed, "probe: " + std::move(detail)};
}

Result<Config> read_config(const GgufFile& file) {
  ISTHMUS_TRY(const std::string architecture, file.text("general.architecture"));
  if (architecture != "llama")
    return unsupported(fmt::format("architecture \"{}\"; \"llama\" is known", architecture));
  if (!file.raw("llama.rope.scaling.").empty() || file.tensor("rope_freqs.weight") != nullptr) {
    return unsupported("scaled rope (llama.rope.scaling.* or rope_freqs.weight)");
  }
  Config config;
  ISTHMUS_TRY(config.width, file.count("llama.embedding_length"));
  ISTHMUS_TRY(config.heads, file.count("llama.attention.head_count"));
  config.kv_heads = config.heads;
  if (file.has("llama.attention.head_count_kv")) {
    ISTHMUS_TRY(config.kv_heads, file.count("llama.attention.head_count_kv"));
  }
  if (config.heads == 0 || config.kv_heads == 0 || config.width == 0)
    return malformed("a model without heads or width");
  config.dim = config.width / config.heads;
  if (file.has("llama.attention.key_length")) {
    ISTHMUS_TRY(config.dim, file.count("llama.attention.key_length"));
  }
  std::uint64_t rotated = config.dim;
  if (file.has("llama.rope.dimension_count")) {
    ISTHMUS_TRY(rotated, file.count("llama.rope.dimension_count"));
  }
  if (rotated != config.dim || config.dim % 2 != 0 || config.dim == 0) {
    return unsupported(fmt::format("rope turns {} of {} elements of a head", rotated, config.dim));
  }
  ISTHMUS_TRY(config.epsilon, file.real("llama.attention.layer_norm_rms_epsilon"));
  if (file.has("llama.rope.freq_base")) {
    ISTHMUS_TRY(config.theta, file.real("llama.rope.freq_base"));
  }
  return config;
}

Result<const GgufTensor*> find_tensor(const GgufFile& file, const std::string& name, std::uint64_t columns,
                                      std::uint64_t rows) {
  const GgufTensor* tensor = file.tensor(name);
  if (tensor == nullptr) return malformed(fmt::format("no tensor {}", name));
  if (tensor->columns() != columns || (rows != 0 && tensor->rows() != rows)) {
    return malformed(fmt::format("{} is {} x {}, expected {} x {}", name, tensor->columns(), tensor->rows(),
                                 columns, rows));
  }
  return tensor;
}

// Normalised embeddings, [tokens][width].
Result<std::vector<std::vector<float>>> hidden_rows(const GgufFile& file, const Config& config,
                                                    std::span<const TokenId> tokens) {
  ISTHMUS_TRY(const GgufTensor* embedding, find_tensor(file, "token_embd.weight", config.width, 0));
  ISTHMUS_TRY(const GgufTensor* norm, find_tensor(file, "blk.0.attn_norm.weight", config.width, 1));
  ISTHMUS_TRY(const std::vector<float> gain, file.row(*norm, 0));
  std::vector<std::vector<float>> hidden;
  for (const TokenId token : tokens) {
    if (token < 0) return Error{Code::kInvalidArgument, fmt::format("probe: token {}", token)};
    ISTHMUS_TRY(std::vector<float> row, file.row(*embedding, static_cast<std::uint64_t>(token)));
    double squares = 0;
    for (const float x : row) squares += static_cast<double>(x) * x;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(config.width) + config.epsilon);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(row[i] * factor) * gain[i];
    hidden.push_back(std::move(row));
  }
  return hidden;
}

// hidden x weightᵀ, [tokens][rows of the weight].
Result<std::vector<float>> project(const GgufFile& file, const Config& config, const std::string& stem,
                                   const std::vector<std::vector<float>>& hidden) {
  if (file.tensor(stem + ".bias") != nullptr) return unsupported(stem + ".bias");
  const std::uint64_t rows = config.kv_heads * config.dim;
  ISTHMUS_TRY(const GgufTensor* weight, find_tensor(file, stem + ".weight", config.width, rows));
  std::vector<float> out(hidden.size() * rows);
  for (std::uint64_t r = 0; r < rows; ++r) {
    ISTHMUS_TRY(const std::vector<float> column, file.row(*weight, r));
    for (std::size_t t = 0; t < hidden.size(); ++t) {
      double sum = 0;
      for (std::size_t i = 0; i < column.size(); ++i) sum += static_cast<double>(hidden[t][i]) * column[i];
      out[t * rows + r] = static_cast<float>(sum);
    }
  }
  return out;
}

}  // namespace

Result<Layer0> project_layer0(const std::string& gguf_path, std::span<const TokenId> tokens) {
  ISTHMUS_TRY(const GgufFile file, GgufFile::open(gguf_path));
  ISTHMUS_TRY(const Config config, read_config(file));
  ISTHMUS_TRY(const auto hidden, hidden_rows(file, config, tokens));
  Layer0 layer;
  layer.shape = {.tokens = static_cast<std::uint32_t>(tokens.size()),
                 .heads = static_cast<std::uint32_t>(config.kv_heads),
                 .dim = static_cast<std::uint32_t>(config.dim)};
  ISTHMUS_TRY(layer.k, project(file, config, "blk.0.attn_k", hidden));
  ISTHMUS_TRY(layer.v, project(file, config, "blk.0.attn_v", hidden));
  layer.rope_theta = config.theta;
  return layer;
}

std::vector<float> rotate(const RowShape& shape, std::span<const float> rows, const Rotation& rotation) {
  std::vector<float> out(rows.size());
  const std::size_t half = shape.dim / 2;
  for (std::size_t row = 0; row < rows.size() / shape.dim; ++row) {
    const double position =
        static_cast<double>(rotation.first_position + static_cast<std::int64_t>(row / shape.heads));
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(rotation.theta, -2.0 * static_cast<double>(i) / shape.dim);
      const std::size_t first = row * shape.dim + (rotation.pairs_halves ? i : 2 * i);
      const std::size_t second = row * shape.dim + (rotation.pairs_halves ? i + half : 2 * i + 1);
      const double x = rows[first], y = rows[second];
      out[first] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
      out[second] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
    }
  }
  return out;
}

std::vector<float> in_halves_order(const RowShape& shape, std::span<const float> rows) {
  std::vector<float> out(rows.size());
  const std::size_t half = shape.dim / 2;
  for (std::size_t row = 0; row < rows.size() / shape.dim; ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      out[row * shape.dim + i] = rows[row * shape.dim + 2 * i];
      out[row * shape.dim + i + half] = rows[row * shape.dim + 2 * i + 1];
    }
  }
  return out;
}

Result<LayerRows> expected_layer0(const std::string& gguf_path, std::span<const TokenId> tokens,
                                  const std::string& rope_pairing) {
  if (rope_pairing != "interleaved" && rope_pairing != "halves") {
    return Error{Code::kInvalidArgument,
                 fmt::format("probe: rope pairing \"{}\"; interleaved and halves are known", rope_pairing)};
  }
  ISTHMUS_TRY(Layer0 layer, project_layer0(gguf_path, tokens));
  LayerRows rows{.tokens = layer.shape.tokens,
                 .heads = layer.shape.heads,
                 .dim = layer.shape.dim,
                 .k = rotate(layer.shape, layer.k, {.theta = layer.rope_theta}),
                 .v = std::move(layer.v)};
  if (rope_pairing == "halves") rows.k = in_halves_order(layer.shape, rows.k);
  return rows;
}

}  // namespace isthmus::engine
