// SPDX-License-Identifier: Apache-2.0
// The compiled model over KV memory that we own: one forward over several sequences. No OpenVINO header in
// sight.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/openvino/kv_memory.h"
#include "engine/probe/architecture.h"

namespace isthmus::engine::openvino {

// The plugin's block size for paged attention on a CPU; checked against the compiled model.
inline constexpr std::uint32_t kBlockTokens = 32;

// That so many tokens take.
inline std::uint64_t blocks_of(std::uint64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

struct PagedModelOptions {
  std::string gguf_path;
  Window window{};      // Of its local layers.
  std::string kv_type;  // "f32", "f16", "u8", "u8_channel", "u4".
  std::uint32_t threads = 1;
  std::string instruction_set = "native";  // "avx512", "avx2".
  bool rounds_activations = false;         // To 8 bits, for products with quantised weights.
};

// Of one token and layer, all heads; bytes include scales and zero points.
struct PagedModelShape {
  std::uint32_t layers = 0;
  std::uint32_t key_width = 0, value_width = 0;              // Elements.
  std::uint64_t key_block_bytes = 0, value_block_bytes = 0;  // Of one block of one layer.
  std::uint32_t vocabulary = 0;
  // K by channel: a step that appends to a partly filled block changes the codes of all its tokens.
  bool rewrites_partial_blocks = false;
};

// One forward. T tokens of S sequences, in order; rows index the T tokens.
struct ForwardInput {
  std::vector<std::int64_t> input_ids, position_ids;  // [T]
  std::vector<std::int32_t> past_lens;                // [S] tokens in the cache already.
  std::vector<std::int32_t> subsequence_begins;       // [S + 1] into the T tokens.
  std::vector<std::int32_t> block_indices_begins;     // [S + 1] into block_indices.
  std::vector<std::int32_t> block_indices;
  std::int32_t max_context_len = 0;
  std::vector<std::int64_t> rows;  // [R] whose logits come back; at least one.
};

// Rows for layer 0's attention operation alone: `tokens` tokens of one sequence over `blocks`, behind the
// `past` that are there already.
struct AttentionInput {
  std::uint32_t past = 0, tokens = 0;
  std::span<const float> key,
      value;  // [tokens][heads][dim]; must be exact in f16, which the graph's rows are.
  std::vector<std::int32_t> blocks;  // Of `memory`.
  const KvMemory* memory = nullptr;  // One layer.
};

// Thread: one. Every exception of OpenVINO ends here as a typed error.
class PagedModel {
 public:
  // Reads, converts and compiles (1-3 s for a 135M model).
  // Errors: not_found (no such file), unsupported (KV type, instruction set, or a file that can't be
  // converted), invalid_argument (no such instruction set), incompatible (the compiled model isn't what was
  // asked for).
  static Result<std::unique_ptr<PagedModel>> load(const PagedModelOptions& options);
  virtual ~PagedModel() = default;

  virtual const PagedModelShape& shape() const = 0;
  virtual const std::string& version() const = 0;
  // Keep KV in `memory` from now on; it must outlive the model.
  virtual Status attach(const KvMemory& memory) = 0;
  // Logits [R][vocabulary], valid until the next forward. `input` must stay unchanged meanwhile.
  // Errors: internal, with OpenVINO's message.
  virtual Result<std::span<const float>> forward(ForwardInput& input) = 0;
  // Writes rows through the attention operation of layer 0, by itself. What it gives for queries of zeros,
  // which heed all positions alike: of each head the mean of the values that it attends to,
  // [tokens][heads][dim].
  virtual Result<std::vector<float>> write_attention(const AttentionInput& input) const = 0;
};

}  // namespace isthmus::engine::openvino
