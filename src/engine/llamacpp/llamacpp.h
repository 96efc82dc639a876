// SPDX-License-Identifier: Apache-2.0
// llama.cpp as an engine: one context with a unified cell pool, sequences in it, and its KV state as source
// and sink.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/api/engine.h"

namespace isthmus::engine::llamacpp {

struct Options {
  std::string model_path;  // A GGUF file.
  std::string lineage{};   // Of the descriptor; "": the file's own (spec/identity.md).
  // Its storage is "llamacpp:" + kv_type (kv/catalogue.h):
  //   f16, f32, bf16                       K and V by token; flash attention on
  //   f16_v_transposed, f32_v_transposed, bf16_v_transposed
  //                                        flash attention off, V transposed
  //   q8_0                                 both in blocks, rotated by hadamard where 64 divides a head
  //   q8_0_unrotated                       not rotated
  //   q8_0_v_q4_0                          V in blocks of 4 bits, both rotated
  std::string kv_type = "f16";
  // The same state decodes to other last bits under another thread count: pin it wherever equality is
  // demanded.
  std::uint32_t threads = 1;
  std::uint64_t context_tokens = 8192;  // Cells for all sequences together; rounded up to 256.
  std::uint32_t sequences_max = 8;      // At most 255.
  std::uint32_t step_tokens_max = 512;
  // "native", or "avx512" to leave AMX alone and so stand in for a processor without it (instruction_set.h).
  // What runs is in the weights recipe, "llamacpp.avx512/gguf-q4_1": it changes the last bits of results.
  std::string isa = "native";
};

// Rows of logits that one step gives at most, or sequences_max if that is more: the engine holds a buffer for
// them.
inline constexpr std::uint32_t kStepLogitsMax = 128;

// Loads the model and checks that the bytes of a sequence's state are what this adapter reads: two tokens are
// run, read back and parsed to the last byte. What the numbers mean is probe_meaning()'s matter
// (engine/probe/probe.h). It reserves a sequence's `tokens_max` cells when it is opened.
//
// As a source: an export is a copy, of any range, and owns its memory. As a sink: bind() gives memory beside
// the pool, in the engine's own sequence-state format, and takes ranges that begin at 0 (unsupported
// otherwise); adopt() copies it into the pool and frees it, and may adopt a prefix of what was bound. adopt()
// gives corrupt if the memory was written beside its planes, or holds a number that isn't finite, which
// masked attention would carry into other sequences of the pool. The sequence is then empty and no longer
// bound.
//
// Errors: not_found, malformed, unsupported (of the model; a KV type or instruction set that can't be had,
// with those that can), invalid_argument (a number out of range), exhausted (no memory), incompatible (the
// state isn't as expected).
Result<std::unique_ptr<Engine>> make_llamacpp(const Options& options);

}  // namespace isthmus::engine::llamacpp
