// SPDX-License-Identifier: Apache-2.0
// Each known row is unlike every other, so that a row read in a wrong place says where it came from.
#include "engine/openvino/packing_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/openvino/memory_binding.h"
#include "engine/probe/probe.h"

namespace isthmus::engine::openvino {
namespace {

constexpr std::uint32_t kTokens = kBlockTokens + 8;
constexpr std::uint32_t kBlocks = 3;

struct Shape {
  std::uint32_t heads = 0, dim = 0;
};

// Eighths between -16 and 16: exact in every float format that the engine stores, and in no order that a
// wrong layout could keep.
std::vector<float> known_rows(std::uint64_t stream, const Shape& shape) {
  std::vector<float> rows(std::size_t{kTokens} * shape.heads * shape.dim);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(std::floor(uniform_at(1, stream, i) * 257) / 8 - 16);
  }
  return rows;
}

struct Known {
  const char* part;
  Shape shape;
  std::vector<float> rows;
  std::vector<float> limits;  // What each element may differ by when it's read.

  std::span<const float> row(std::uint32_t token, std::uint32_t head) const {
    return slice(rows, token, head);
  }
  std::span<const float> limit(std::uint32_t token, std::uint32_t head) const {
    return slice(limits, token, head);
  }
  std::span<const float> slice(std::span<const float> of, std::uint32_t token, std::uint32_t head) const {
    return of.subspan((std::size_t{token} * shape.heads + head) * shape.dim, shape.dim);
  }
};

// Calls `visit` with the index of each element that shares a scale with those at (token, head, dim) and
// after.
template <typename Visit>
void visit_granule(const Shape& shape, const kv::DecodeForm& form, std::uint32_t token, std::uint32_t head,
                   std::uint32_t dim, const Visit& visit) {
  const std::uint32_t token_end = std::min(kTokens, token + form.granule_tokens);
  for (std::uint32_t t = token; t < token_end; ++t) {
    const std::size_t begin = (std::size_t{t} * shape.heads + head) * shape.dim + dim;
    for (std::size_t i = begin; i < begin + form.granule_dim; ++i) visit(i);
  }
}

// Nothing in a float format; else half a step of the scale that an element shares with others, and the f32
// rounding of (q - z) * s.
std::vector<float> limits_of(std::span<const float> rows, const Shape& shape, const kv::DecodeForm& form) {
  std::vector<float> limits(rows.size(), 0.0f);
  if (form.operation == kv::DecodeOperation::kPlain || form.granule_dim == 0 || form.granule_tokens == 0) {
    return limits;
  }
  const float levels = static_cast<float>((1u << kv::bits(form.codes)) - 1);
  for (std::uint32_t token = 0; token < kTokens; token += form.granule_tokens) {
    for (std::uint32_t head = 0; head < shape.heads; ++head) {
      for (std::uint32_t dim = 0; dim + form.granule_dim <= shape.dim; dim += form.granule_dim) {
        float low = std::numeric_limits<float>::max(), high = -low;
        visit_granule(shape, form, token, head, dim, [&](std::size_t i) {
          low = std::min(low, rows[i]);
          high = std::max(high, rows[i]);
        });
        const float limit = (high - low) / levels * 0.501f;
        visit_granule(shape, form, token, head, dim, [&](std::size_t i) { limits[i] = limit; });
      }
    }
  }
  return limits;
}

bool same_row(std::span<const float> read, std::span<const float> known, std::span<const float> limit) {
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!(std::abs(read[i] - known[i]) <= limit[i])) return false;
  }
  return true;
}

std::string origin(std::span<const float> read, std::span<const Known> all) {
  for (const Known& known : all) {
    if (known.shape.dim != read.size()) continue;
    for (std::uint32_t token = 0; token < kTokens; ++token) {
      for (std::uint32_t head = 0; head < known.shape.heads; ++head) {
        if (same_row(read, known.row(token, head), known.limit(token, head))) {
          return fmt::format(
              "what lies there is {} of token {}, head {}: component, block size or axis order is misstated",
              known.part, token, head);
        }
      }
    }
  }
  return "what lies there is no row that was stored: format, scale or order within the row is misstated";
}

Status compare(const Known& known, std::span<const float> read, std::span<const Known> all) {
  for (std::uint32_t token = 0; token < kTokens; ++token) {
    for (std::uint32_t head = 0; head < known.shape.heads; ++head) {
      const auto expected = known.row(token, head);
      const auto got =
          read.subspan((std::size_t{token} * known.shape.heads + head) * known.shape.dim, known.shape.dim);
      if (same_row(got, expected, known.limit(token, head))) continue;
      return Error{
          Code::kIncompatible,
          fmt::format(
              "packing probe: {} of token {}, head {} isn't where the layout says ({}…, stored {}…); {}",
              known.part, token, head, got[0], expected[0], origin(got, all))};
    }
  }
  return ok_status();
}

Result<Known> make_known(const kv::Descriptor& descriptor, const char* part, std::uint64_t stream) {
  if (descriptor.groups.size() != 1 || descriptor.representation.size() != 1) {
    return Error{Code::kIncompatible,
                 fmt::format("{} layer groups; this engine stores one", descriptor.groups.size())};
  }
  const auto& components = descriptor.groups[0].components;
  const auto& forms = descriptor.representation[0].forms;
  for (std::size_t i = 0; i < components.size() && i < forms.size(); ++i) {
    if (components[i].name != part) continue;
    const Shape shape{components[i].heads, components[i].dim};
    Known known{part, shape, known_rows(stream, shape), {}};
    known.limits = limits_of(known.rows, shape, forms[i]);
    return known;
  }
  return Error{Code::kIncompatible, fmt::format("the descriptor has no component {}", part)};
}

Status check_width(const Known& known, std::uint32_t width) {
  if (known.shape.heads * known.shape.dim == width) return ok_status();
  return Error{Code::kIncompatible,
               fmt::format("packing probe: {} has {} heads of {} in the descriptor, {} elements a "
                           "token in the model",
                           known.part, known.shape.heads, known.shape.dim, width)};
}

}  // namespace

Status probe_packing(const PagedModel& model, const kv::Descriptor& descriptor) {
  std::vector<Known> known;
  ISTHMUS_TRY(known.emplace_back(), make_known(descriptor, "k", 0));
  ISTHMUS_TRY(known.emplace_back(), make_known(descriptor, "v", 1));
  ISTHMUS_TRY(check_width(known[0], model.shape().key_width));
  ISTHMUS_TRY(check_width(known[1], model.shape().value_width));

  ISTHMUS_TRY(const auto memory, KvMemory::map({.layers = 1,
                                                .blocks = kBlocks,
                                                .key_bytes = model.shape().key_block_bytes,
                                                .value_bytes = model.shape().value_block_bytes}));
  ISTHMUS_TRY(kv::Binding binding, bind_memory(descriptor, *memory));
  binding.blocks = {2, 0};
  binding.valid = {0, kTokens};
  ISTHMUS_TRY(model
                  .write_attention({.tokens = kTokens,
                                    .key = known[0].rows,
                                    .value = known[1].rows,
                                    .blocks = {2, 0},
                                    .memory = memory.get()})
                  .status());
  ISTHMUS_TRY(const LayerRows read, read_layer(descriptor, binding, 0, binding.valid));
  ISTHMUS_TRY(compare(known[0], read.k, known));
  return compare(known[1], read.v, known);
}

}  // namespace isthmus::engine::openvino
