// SPDX-License-Identifier: Apache-2.0
// Facts of a model, read from its GGUF file alone, and the descriptor that every embedded engine builds from
// them.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/probe/architecture.h"
#include "kv/catalogue.h"
#include "kv/descriptor.h"

namespace isthmus::engine {

struct ModelFacts {
  std::string name;          // general.name; "" if the file has none.
  std::string architecture;  // One of served_architectures().
  std::uint32_t layers = 0;
  std::uint32_t width = 0;  // Elements of the hidden state.
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  std::uint32_t vocabulary = 0;
  std::uint64_t context_tokens = 0;  // Of one sequence, as trained.
  double norm_epsilon = 0;
  double rope_theta = 0;         // Of layers that attend to all positions.
  Window window;                 // Of the others.
  std::string rope_scaling;      // "none", or a digest of the scaling's parameters.
  std::string rope_pairing;      // "interleaved" or "halves": the order of K rows that the weights give.
  std::string biases;            // Projections of attention that have one: letters of "qkv".
  std::string head_norms;        // Those whose rows of each head are normalised before rope: "" or "qk".
  std::string weights_recipe;    // "gguf-q4_1", from general.file_type.
  std::string file_sha256;       // Lower-case hex, of the whole file.
  std::string config_digest;     // 32 hex digits: shapes, biases, norms, rope, window.
  std::string tokenizer_digest;  // 32 hex digits: every tokenizer.* key and value.
};

// Reads and digests the file (0.1-0.3 s for 100 MB).
// Errors: not_found (no such file), malformed (not GGUF, or a value missing or of the wrong type, named),
// unsupported (an architecture or rope variant that no embedded engine here serves, named).
Result<ModelFacts> read_model_facts(const std::string& gguf_path);

// ModelFacts::tokenizer_digest alone, without digesting the whole file. Errors as above.
Result<std::string> read_tokenizer_digest(const std::string& gguf_path);

// The descriptor of an engine that keeps this model's KV in `storage`: one group over all layers that
// keeps all positions, whoever attends to them; components k (rotated, "rope:interleaved" or "rope:halves")
// and v, everything on rank 0; weights recipe "openvino/gguf-q4_1". `storage` names what engines store
// ("openvino:u8"); value transforms that it adds come after k's rope. Errors: those of kv::represent and
// Descriptor::validate.
Result<kv::Descriptor> describe(const ModelFacts& facts, const kv::Storage& storage,
                                const std::string& lineage = {});

}  // namespace isthmus::engine
