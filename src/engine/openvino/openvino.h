// SPDX-License-Identifier: Apache-2.0
// The embedded OpenVINO engine: GGUF weights, paged KV in blocks of 32 tokens that we own, so a source and a
// sink.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/api/engine.h"

namespace isthmus::engine::openvino {

struct Options {
  std::string gguf_path;
  std::string lineage{};  // Of the descriptor; "": the file's own (spec/identity.md).
  // How KV is stored: "f32", "f16"; "u8", "u4" (per token and head an f32 scale and zero point, then codes);
  // "u8_channel" (V as u8; K with a scale and zero point for each element of a row over a block's tokens).
  std::string kv_type = "u8";
  std::uint32_t threads = 1;            // Of one forward.
  std::uint64_t kv_tokens = 8192;       // Of all sequences together; a sequence takes whole blocks.
  std::uint64_t parked_tokens = 0;      // Room beside that for blocks of sequences that wait; whole blocks.
  std::uint32_t sequences_max = 8;      // Open at once.
  std::uint32_t step_tokens_max = 512;  // Tokens of one step, all items together.
  // Of matrix products and elementwise kernels: "native", "avx512" (no AMX) or "avx2". It changes the last
  // bits of results. One choice a process, by an environment variable: make the first engine before other
  // threads run.
  std::string isa = "native";
  // "f32", or "int8": activations are rounded to 8 bits for products with quantised weights that have no zero
  // points: those of Q8_0, of Q4_1 the embedding alone. Twice as fast, farther from the model;
  // another weights recipe, "openvino/gguf-q4_1-a8". The bits stay the same whatever the batch, the chunks
  // and what is known.
  std::string activations = "f32";
};

// Loads the model, compiles it and checks that KV rows lie where the descriptor says (packing probe), and
// that attention reaches as far as the model's window (window probe). Takes 2-4 s for a 135M model. What the
// rows mean is engine::probe_meaning's to check.
//
// Results are bit-identical whatever the batch composition, block tables and chunking, as long as each chunk
// of a prompt has two tokens or more: a chunk of one token runs as a decode step, by another kernel. Each
// forward of one token gets a padding token on a block of its own for the same reason.
//
// A step whose item exceeds what open() was asked for is refused as exhausted. The exported state is the
// pool's own memory: it stays valid, and its blocks stay taken, until the ExportedKv is gone, close() or not.
// With u8_channel an append changes the codes of a partly filled block. While an export of such a block
// lives, steps of its sequence are refused as invalid_argument; whole blocks may be exported between any
// steps. Chunks that end inside a block change the last bits of results in u8_channel.
//
// Errors: invalid_argument (an option out of range, named), not_found (no such file), malformed (not GGUF),
// unsupported (KV type, instruction set, or a model that can't be converted), exhausted (no memory for the
// pools), incompatible (the compiled model or its KV isn't what the descriptor says; the message names the
// part).
Result<std::unique_ptr<Engine>> make_openvino(const Options& options);

}  // namespace isthmus::engine::openvino
