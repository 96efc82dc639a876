// SPDX-License-Identifier: Apache-2.0
// What a worker asks of an inference engine: sequences, steps, and its KV state as source and sink.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/id.h"
#include "base/status.h"
#include "kv/binding.h"
#include "kv/descriptor.h"
#include "kv/geometry.h"

namespace isthmus::engine {

using TokenId = std::int32_t;
using SequenceId = std::uint32_t;

struct EngineInfo {
  std::string name;  // "llamacpp", "openvino"
  std::string version;
  std::string storage;  // Catalogue name of its KV storage: "openvino:u8".
  std::uint32_t vocabulary = 0;
  std::uint64_t context_tokens_max = 0;  // Of one sequence.
  std::uint32_t sequences_max = 0;
  std::uint32_t step_tokens_max = 0;     // Tokens in one step, all items together.
  std::uint32_t block_tokens = 0;        // 0 if the engine has no blocks.
  std::uint64_t kv_bytes_per_token = 0;  // All layers, all parts.
  // A prompt's state has the same bits in all whole blocks whenever this process computes it, whatever else
  // runs meanwhile. docs/exactness.md.
  bool repeats_states = false;
};

// Append `tokens` to a sequence and run them. Logits rows come back for the last `logits` of them
// (0..tokens.size()).
struct StepItem {
  SequenceId sequence = 0;
  std::span<const TokenId> tokens;
  std::uint32_t logits = 0;
  std::uint32_t drafts = 0;  // 0, or all tokens but the first are drafts, for Speculation.
};

// Row-major [rows][vocabulary], f32, rows of the items in order. Valid until the engine's next step.
struct StepOutput {
  std::span<const float> logits;
  std::uint64_t rows = 0;
};

struct EngineUsage {
  std::uint64_t tokens_computed = 0;  // Every token that any step ran, since start.
  std::uint32_t sequences = 0;        // Open now.
  std::uint64_t kv_bytes_used = 0;    // Of kv_bytes_total, by open sequences.
  std::uint64_t kv_bytes_total = 0;
  // Beside kv_bytes_total: what is bound in memory of its own and not adopted yet. At most one binding a
  // sequence, none larger than the sequence's share of the pool and its bookkeeping.
  std::uint64_t kv_bytes_staged = 0;
  std::uint64_t blocks_used = 0, blocks_total = 0;  // 0 if the engine has no blocks.
  std::uint64_t blocks_kept = 0;  // Of computed prompts, held by nobody: room for whoever needs it.
  // Of blocks_used: of closed sequences that somebody still reads, counted for each of them.
  std::uint64_t blocks_lingering = 0;
  std::uint64_t blocks_parked = 0;  // Beside the pool.
};

// Memory of an exported range: owned or pinned by this object, read-only, movable between threads.
class ExportedKv {
 public:
  virtual ~ExportedKv() = default;
  // By layer group of the descriptor.
  virtual std::span<const kv::Binding> bindings() const = 0;
  virtual std::uint64_t bytes() const = 0;
};

class KvSource {
 public:
  virtual ~KvSource() = default;
  // The state of positions `range` of a sequence, as the descriptor says. Must be computed already and
  // stable: no later step changes these bytes. invalid_argument otherwise; exhausted if there's no memory for
  // it.
  virtual Result<std::unique_ptr<ExportedKv>> export_range(SequenceId sequence, kv::TokenRange range) = 0;
};

class KvSink {
 public:
  virtual ~KvSink() = default;
  // Memory where positions `range` of an open sequence will lie, by layer group of the descriptor: from 0 of
  // an empty one, from what PrefixKeeper::open_arriving() found on. Others may write it, from any thread,
  // until adopt() or close(); the engine neither reads nor writes it meanwhile.
  virtual Result<std::vector<kv::Binding>> bind(SequenceId sequence, kv::TokenRange range) = 0;
  // The bytes of `range` are the sequence's state from now on; its length becomes range.end.
  virtual Status adopt(SequenceId sequence, kv::TokenRange range) = 0;
};

// What the bytes of a state that is handed over follow from, beside its tokens and who receives it.
struct StateOrigin {
  Id128 producer;        // The incarnation whose engine computes it; its states repeat.
  Digest128 descriptor;  // The producer's.
  std::string wire;      // kv::WireForm::text() of how it crosses.
};

// A prompt's state on its way here.
struct ArrivingState {
  std::vector<TokenId> prompt;
  StateOrigin origin;
  std::uint64_t repeated = 0;  // Positions below it have the same bytes in each state of that origin.
  std::optional<std::string> salt;
};

// A known beginning that stays as it is while this lives. Any thread may let it go.
class HeldPrefix {
 public:
  virtual ~HeldPrefix() = default;
  virtual std::uint64_t tokens() const = 0;
};

// Who keeps the state of prompts for others that begin alike. spec/prefix.md.
class PrefixKeeper {
 public:
  virtual ~PrefixKeeper() = default;
  // As Engine::open(), for a sequence that begins with `prompt`: its length is what is known of that already,
  // whole blocks and at least two tokens less than the prompt. What steps compute of whole blocks is kept for
  // others with the same salt, or without one; its results are those of a sequence that was opened empty, bit
  // for bit. Only what isn't known of the prompt needs room; what comes behind it is taken by the steps that
  // need it, which are exhausted, with nothing changed, if there is none.
  virtual Result<SequenceId> open_known(std::uint64_t tokens_max, std::span<const TokenId> prompt,
                                        const std::optional<std::string>& salt) = 0;
  // States handed over are known apart from computed ones, by their origin. What is known of one, whole
  // blocks and at least two tokens less than its prompt; null if nothing is.
  virtual std::unique_ptr<HeldPrefix> hold_arrived(const ArrivingState& state) = 0;
  // As open_known(), for a state whose first `known` tokens are held: that is the sequence's length, and
  // bind() and adopt() are for those behind it. Once they are adopted whole blocks are kept. invalid_argument
  // if so much isn't known in whole blocks.
  virtual Result<SequenceId> open_arriving(std::uint64_t tokens_max, const ArrivingState& state,
                                           std::uint64_t known) = 0;
};

// Who lets sequences take memory as they grow, and keeps blocks of those that wait beside the pool.
// spec/scheduler.md.
class Parking {
 public:
  virtual ~Parking() = default;
  virtual std::uint64_t blocks() const = 0;  // That can be parked at once.
  // As Engine::open(), but it has no memory yet: bind() and step() take what they need. exhausted, with
  // nothing changed, if there is none.
  virtual Result<SequenceId> open_growing(std::uint64_t tokens_max) = 0;
  // What it has in the pool beyond its first `blocks_left` blocks leaves it, as it is stored. Until unpark()
  // nothing is done with the sequence but more of this, and close(). exhausted without room for that;
  // invalid_argument if somebody else uses its memory.
  virtual Status park(SequenceId sequence, std::uint64_t blocks_left) = 0;
  // All of it comes back; no bit has changed. exhausted, with nothing changed, if the pool has no room.
  virtual Status unpark(SequenceId sequence) = 0;
};

// Who runs drafts, tokens that are guessed, in one step behind the token that is due, each as if it were due
// in a step of its own; and of a lone sequence one more in the time of one.
class Speculation {
 public:
  virtual ~Speculation() = default;
  // The last `tokens` of the sequence's last step, less than it ran, are forgotten: what is computed next is
  // what it would be without them, bit for bit.
  virtual void take_back(SequenceId sequence, std::uint64_t tokens) = 0;
};

// Thread: every call from one thread, the engine's. No call blocks on a peer.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  virtual const kv::Descriptor& descriptor() const = 0;
  virtual EngineUsage usage() const = 0;

  // An empty sequence with room for `tokens_max`. exhausted (with what is free) if there is none.
  virtual Result<SequenceId> open(std::uint64_t tokens_max) = 0;
  // Forget a sequence and free its memory.
  virtual void close(SequenceId sequence) = 0;
  virtual std::uint64_t length(SequenceId sequence) const = 0;
  // Run one forward over all items (each sequence at most once). On an error no sequence has changed its
  // length.
  virtual Result<StepOutput> step(std::span<const StepItem> items) = 0;

  // Null if this engine can't be one.
  virtual KvSource* kv_source() = 0;
  virtual KvSink* kv_sink() = 0;
  virtual PrefixKeeper* prefix_keeper() { return nullptr; }
  virtual Parking* parking() { return nullptr; }
  virtual Speculation* speculation() { return nullptr; }
};

}  // namespace isthmus::engine
