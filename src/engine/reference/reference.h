// SPDX-License-Identifier: Apache-2.0
// A small plain transformer with random weights that keeps its KV state in any storage of the catalogue,
// under any partition over tensor and pipeline ranks. Deterministic: a token's logits depend on the stored
// values alone, whatever the layout, the partition and the cuts into steps. The oracle of end-to-end
// exactness.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/engine.h"
#include "transform/redistribute.h"

namespace isthmus::engine {

enum class ReferenceAttention : std::uint8_t {
  kFull,
  kSlidingMix,  // Every second layer sees a window only; two layer groups.
  kMla,         // One latent and one rope row a token, shared by all query heads.
};

// The model: what both ends of a handoff must have alike.
struct ReferenceShape {
  ReferenceAttention attention = ReferenceAttention::kFull;
  std::uint32_t layers = 4;
  std::uint32_t query_heads = 8;
  std::uint32_t kv_heads = 2;   // Divides query_heads; 1 with kMla.
  std::uint32_t dim = 64;       // Even. Of a head's row; of the latent row with kMla.
  std::uint32_t rope_dim = 64;  // Even; kMla only.
  std::uint32_t window = 24;    // Tokens; kSlidingMix only.
  std::uint32_t vocabulary = 128;
  std::uint64_t seed = 1;
};

struct ReferenceOptions {
  ReferenceShape shape{};
  std::string storage = "llamacpp:f16";  // Of the catalogue; with kMla one that holds latent and rope.
  std::uint32_t block_tokens = 0;        // 0: the storage's usual.
  // Heads are split over tensor ranks as evenly as whole heads allow; with more ranks than heads, ranks hold
  // replicas. Layers of each group are split over pipeline ranks. Rank = pipeline · tensor_ranks + tensor.
  std::uint32_t tensor_ranks = 1, pipeline_ranks = 1;
  std::uint64_t kv_tokens = 4096;
  std::uint32_t sequences_max = 8;
  std::uint32_t step_tokens_max = 512;
  std::uint64_t context_tokens = 2048;
};

class ReferenceEngine : public Engine {
 public:
  // The memory of positions `range` of an open sequence on each rank, by rank: to be read when they are
  // computed, or written until kv_sink()->adopt(). Valid until the sequence is closed. invalid_argument.
  virtual Result<std::vector<transform::RankMemory>> bindings(SequenceId sequence, kv::TokenRange range) = 0;
  // What each rank has of computed positions, by rank; as KvSource::export_range().
  virtual Result<std::vector<std::unique_ptr<ExportedKv>>> export_ranks(SequenceId sequence,
                                                                        kv::TokenRange range) = 0;
};

// kv_source() and the sink's bind() work for one rank; bindings(), export_ranks() and adopt() always do.
// Errors: invalid_argument (a shape that contradicts itself), not_found (no such storage), incompatible (the
// storage doesn't hold the shape's components), unsupported (it can't be written by its recipe), exhausted.
Result<std::unique_ptr<ReferenceEngine>> make_reference(const ReferenceOptions& options);

}  // namespace isthmus::engine
