// SPDX-License-Identifier: Apache-2.0
// Engines over the test model, and what tests do with them: run, export, hand over, compare.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/api/engine.h"
#include "engine/llamacpp/llamacpp.h"
#include "kv/layout.h"

namespace isthmus::engine::llamacpp {

constexpr std::uint32_t kKvHeads = 3, kHeadDim = 64, kLayers = 30;  // Of the test model.
constexpr std::uint64_t kRowBytes = kKvHeads * kHeadDim * 2;

std::string model_path();  // Of the test model; engine_test.cc.

inline std::unique_ptr<Engine> make(std::uint64_t context_tokens = 512, std::uint32_t sequences_max = 3,
                                    const std::string& kv_type = "f16", std::uint32_t step_tokens_max = 256) {
  auto engine = make_llamacpp({.model_path = model_path(),
                               .kv_type = kv_type,
                               .threads = 1,
                               .context_tokens = context_tokens,
                               .sequences_max = sequences_max,
                               .step_tokens_max = step_tokens_max});
  if (!engine.ok()) ADD_FAILURE() << engine.error().text();
  return std::move(engine).value();
}

inline std::vector<TokenId> prompt(std::size_t tokens, int seed = 1) {
  std::vector<TokenId> out;
  out.reserve(tokens);
  for (std::size_t i = 0; i < tokens; ++i)
    out.push_back(static_cast<TokenId>((i * 131 + 977) * seed % 40'000 + 100));
  return out;
}

inline std::vector<float> run(Engine& engine, SequenceId sequence, std::span<const TokenId> tokens,
                              std::uint32_t logits = 1) {
  const StepItem item{.sequence = sequence, .tokens = tokens, .logits = logits};
  auto output = engine.step({&item, 1});
  if (!output.ok()) ADD_FAILURE() << output.error().text();
  return {output->logits.begin(), output->logits.end()};
}

inline TokenId argmax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline double kl(std::span<const float> a, std::span<const float> b) {
  const auto log_sum = [](std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(x - largest);
    return largest + std::log(sum);
  };
  const double za = log_sum(a), zb = log_sum(b);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::exp(a[i] - za) * ((a[i] - za) - (b[i] - zb));
  return sum;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

inline const kv::RegionMemory& region_of(const kv::Binding& binding, std::string_view region,
                                         std::uint32_t layer) {
  const auto found = std::ranges::find_if(
      binding.memory, [&](const auto& memory) { return memory.region == region && memory.layer == layer; });
  if (found == binding.memory.end()) ADD_FAILURE() << "no region " << region << " of layer " << layer;
  return *found;
}

// Bytes of one layer's region of an export.
inline std::vector<std::byte> plane(const ExportedKv& state, const std::string& region, std::uint32_t layer) {
  const kv::RegionMemory& memory = region_of(state.bindings().front(), region, layer);
  return {memory.base, memory.base + memory.bytes};
}

// Copies the source's positions into a target of the same decode forms, element by element, wherever both lay
// them.
inline void copy_elements(const kv::Descriptor& from_descriptor, const kv::Binding& from,
                          const kv::Descriptor& to_descriptor, const kv::Binding& to) {
  const kv::Layout from_layout = from_descriptor.layout(0, 0).value();
  const kv::Layout to_layout = to_descriptor.layout(0, 0).value();
  for (const kv::PartLayout& part : from_layout.parts()) {
    const kv::PartLayout& target = *to_layout.part(part.part).value();
    ASSERT_EQ(part.format, target.format);
    const std::size_t bytes = kv::bits(part.format) / 8;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const kv::RegionMemory& source_memory = region_of(from, part.region, layer);
      const kv::RegionMemory& target_memory = region_of(to, target.region, layer);
      for (std::uint64_t p = from.valid.begin; p < from.valid.end; ++p) {
        for (std::uint64_t i = 0; i < kKvHeads * kHeadDim; ++i) {
          kv::ElementIndex index{
              .token = from.first_row + p - from.first_position, .head = i / kHeadDim, .dim = i % kHeadDim};
          const std::uint64_t source_at = kv::bit_offset(part, index, source_memory.open_extent) / 8;
          index.token = to.first_row + p - to.first_position;
          const std::uint64_t target_at = kv::bit_offset(target, index, target_memory.open_extent) / 8;
          std::memcpy(target_memory.base + target_at, source_memory.base + source_at, bytes);
        }
      }
    }
  }
}

// Copies the source's positions into a target of the same storage: all of them, or some rows if none of its
// planes is transposed.
inline void copy_rows(const kv::Binding& from, const kv::Binding& to) {
  for (const kv::RegionMemory& source : from.memory) {
    const kv::RegionMemory& target = region_of(to, source.region, source.layer);
    const std::uint64_t row = source.bytes / source.open_extent;
    std::memcpy(target.base + (from.first_position - to.first_position) * row, source.base, source.bytes);
  }
}

// The source's sequence as one of the target's, of the same storage, in tiles of `tile` tokens.
inline SequenceId hand_over(Engine& source, SequenceId sequence, Engine& target, std::uint64_t tokens_max,
                            std::uint64_t tile = 1u << 20) {
  const std::uint64_t end = source.length(sequence);
  const SequenceId taken = target.open(tokens_max).value();
  const kv::Binding to = target.kv_sink()->bind(taken, {0, end}).value().front();
  for (std::uint64_t begin = 0; begin < end; begin += tile) {
    const auto part =
        source.kv_source()->export_range(sequence, {begin, std::min(end, begin + tile)}).value();
    copy_rows(part->bindings().front(), to);
  }
  const Status adopted = target.kv_sink()->adopt(taken, {0, end});
  EXPECT_TRUE(adopted.ok()) << adopted.error().text();
  return taken;
}

}  // namespace isthmus::engine::llamacpp
