// SPDX-License-Identifier: Apache-2.0
// Embedding, RMS norm, K and V projections and rope, from dequantised weights; sums in f64.
#include "engine/probe/expectation.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/probe/architecture.h"
#include "engine/probe/gguf.h"

namespace isthmus::engine {
namespace {

struct Config {
  const Architecture* architecture = nullptr;
  std::uint64_t width = 0, heads = 0, kv_heads = 0, dim = 0;
  double epsilon = 0, theta = 10'000;  // GGUF's default of rope.freq_base.
  Window window;

  double theta_of(std::uint32_t layer) const { return window.is_local(layer) ? window.rope_theta : theta; }
};

Error unsupported(std::string detail) {
  return {Code::kUnsupported, "probe: " + std::move(detail)};
}
Error malformed(std::string detail) {
  return {Code::kMalformed, "probe: " + std::move(detail)};
}

Result<Config> read_config(const GgufFile& file) {
  Config config;
  ISTHMUS_TRY(config.architecture, find_architecture(file));
  const auto key = [&](std::string_view name) {
    return fmt::format("{}.{}", config.architecture->name, name);
  };
  if (!file.raw(key("rope.scaling.")).empty() || file.tensor("rope_freqs.weight") != nullptr) {
    return unsupported(fmt::format("scaled rope ({} or rope_freqs.weight)", key("rope.scaling.*")));
  }
  ISTHMUS_TRY(config.width, file.count(key("embedding_length")));
  ISTHMUS_TRY(config.heads, file.count(key("attention.head_count")));
  config.kv_heads = config.heads;
  if (file.has(key("attention.head_count_kv"))) {
    ISTHMUS_TRY(config.kv_heads, file.count(key("attention.head_count_kv")));
  }
  if (config.heads == 0 || config.kv_heads == 0 || config.width == 0)
    return malformed("a model without heads or width");
  config.dim = config.width / config.heads;
  if (file.has(key("attention.key_length"))) {
    ISTHMUS_TRY(config.dim, file.count(key("attention.key_length")));
  }
  std::uint64_t rotated = config.dim;
  if (file.has(key("rope.dimension_count"))) {
    ISTHMUS_TRY(rotated, file.count(key("rope.dimension_count")));
  }
  if (rotated != config.dim || config.dim % 2 != 0 || config.dim == 0) {
    return unsupported(fmt::format("rope turns {} of {} elements of a head", rotated, config.dim));
  }
  ISTHMUS_TRY(config.epsilon, file.real(key("attention.layer_norm_rms_epsilon")));
  if (file.has(key("rope.freq_base"))) {
    ISTHMUS_TRY(config.theta, file.real(key("rope.freq_base")));
  }
  ISTHMUS_TRY(config.window, read_window(file, *config.architecture));
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

// Root mean square of a row becomes 1, then each element is multiplied by its gain.
void normalise(std::span<float> row, std::span<const float> gain, double epsilon) {
  double squares = 0;
  for (const float x : row) squares += static_cast<double>(x) * x;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(row.size()) + epsilon);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(row[i] * factor) * gain[i];
}

// Normalised embeddings, [tokens][width].
Result<std::vector<std::vector<float>>> hidden_rows(const GgufFile& file, const Config& config,
                                                    std::span<const TokenId> tokens) {
  ISTHMUS_TRY(const GgufTensor* embedding, find_tensor(file, "token_embd.weight", config.width, 0));
  ISTHMUS_TRY(const GgufTensor* norm, find_tensor(file, "blk.0.attn_norm.weight", config.width, 1));
  ISTHMUS_TRY(const std::vector<float> gain, file.row(*norm, 0));
  // The norm takes it out again, but for its epsilon.
  const float scale =
      config.architecture->scales_embeddings ? std::sqrt(static_cast<float>(config.width)) : 1.0f;
  std::vector<std::vector<float>> hidden;
  for (const TokenId token : tokens) {
    if (token < 0) return Error{Code::kInvalidArgument, fmt::format("probe: token {}", token)};
    ISTHMUS_TRY(std::vector<float> row, file.row(*embedding, static_cast<std::uint64_t>(token)));
    for (float& x : row) x *= scale;
    normalise(row, gain, config.epsilon);
    hidden.push_back(std::move(row));
  }
  return hidden;
}

// hidden x weightᵀ, [tokens][rows of the weight].
Result<std::vector<float>> project(const GgufFile& file, const Config& config, const std::string& stem,
                                   const std::vector<std::vector<float>>& hidden) {
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

// Where the file has one.
Status add_bias(const GgufFile& file, const Config& config, const std::string& name, std::vector<float>& rows,
                std::vector<Omission>& without) {
  if (file.tensor(name) == nullptr) return ok_status();
  ISTHMUS_TRY(const GgufTensor* tensor, find_tensor(file, name, config.kv_heads * config.dim, 1));
  ISTHMUS_TRY(const std::vector<float> bias, file.row(*tensor, 0));
  without.push_back({name, rows});
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += bias[i % bias.size()];
  return ok_status();
}

Status normalise_heads(const GgufFile& file, const Config& config, Layer0& layer) {
  const std::string name = "blk.0.attn_k_norm.weight";
  ISTHMUS_TRY(const GgufTensor* tensor, find_tensor(file, name, config.dim, 1));
  ISTHMUS_TRY(const std::vector<float> gain, file.row(*tensor, 0));
  const std::vector<float> plain = layer.k;
  const auto apply = [&](std::span<float> rows) {
    for (std::size_t at = 0; at < rows.size(); at += config.dim)
      normalise(rows.subspan(at, config.dim), gain, config.epsilon);
  };
  apply(layer.k);
  for (Omission& other : layer.k_without) apply(other.rows);
  layer.k_without.push_back({name, plain});
  return ok_status();
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
  ISTHMUS_TRY(add_bias(file, config, "blk.0.attn_k.bias", layer.k, layer.k_without));
  ISTHMUS_TRY(add_bias(file, config, "blk.0.attn_v.bias", layer.v, layer.v_without));
  if (config.architecture->has_head_norms) ISTHMUS_TRY(normalise_heads(file, config, layer));
  layer.pairs_halves = config.architecture->pairs_halves;
  layer.rope_theta = config.theta_of(0);
  return layer;
}

Result<RopeBases> read_rope_bases(const std::string& gguf_path) {
  ISTHMUS_TRY(const GgufFile file, GgufFile::open(gguf_path));
  ISTHMUS_TRY(const Config config, read_config(file));
  ISTHMUS_TRY(const std::uint64_t layers,
              file.count(fmt::format("{}.block_count", config.architecture->name)));
  RopeBases bases{.stated = config.theta, .of_layer = {}};
  for (std::uint32_t layer = 0; layer < layers; ++layer) bases.of_layer.push_back(config.theta_of(layer));
  return bases;
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

std::vector<float> in_interleaved_order(const RowShape& shape, std::span<const float> rows) {
  std::vector<float> out(rows.size());
  const std::size_t half = shape.dim / 2;
  for (std::size_t row = 0; row < rows.size() / shape.dim; ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      out[row * shape.dim + 2 * i] = rows[row * shape.dim + i];
      out[row * shape.dim + 2 * i + 1] = rows[row * shape.dim + i + half];
    }
  }
  return out;
}

std::vector<float> kept(const Layer0& layer, std::span<const float> rows, const std::string& pairing,
                        double theta, std::int64_t first_position) {
  std::vector<float> rotated =
      rotate(layer.shape, rows,
             {.theta = theta, .pairs_halves = layer.pairs_halves, .first_position = first_position});
  if (pairing == "halves" && !layer.pairs_halves) return in_halves_order(layer.shape, rotated);
  if (pairing == "interleaved" && layer.pairs_halves) return in_interleaved_order(layer.shape, rotated);
  return rotated;
}

Result<LayerRows> expected_layer0(const std::string& gguf_path, std::span<const TokenId> tokens,
                                  const std::string& rope_pairing) {
  if (rope_pairing != "interleaved" && rope_pairing != "halves") {
    return Error{Code::kInvalidArgument,
                 fmt::format("probe: rope pairing \"{}\"; interleaved and halves are known", rope_pairing)};
  }
  ISTHMUS_TRY(Layer0 layer, project_layer0(gguf_path, tokens));
  return LayerRows{.tokens = layer.shape.tokens,
                   .heads = layer.shape.heads,
                   .dim = layer.shape.dim,
                   .k = kept(layer, layer.k, rope_pairing, layer.rope_theta),
                   .v = std::move(layer.v)};
}

}  // namespace isthmus::engine
