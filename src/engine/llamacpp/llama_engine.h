// SPDX-License-Identifier: Apache-2.0
// Engine, KvSource and KvSink over one llama.cpp context.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/llamacpp/batch.h"
#include "engine/llamacpp/incoming_state.h"
#include "engine/llamacpp/library.h"
#include "engine/llamacpp/sequence_state.h"
#include "engine/llamacpp/state_buffer.h"

namespace isthmus::engine::llamacpp {

class LlamaEngine : public Engine, public KvSource, public KvSink {
 public:
  struct Parts {
    ModelPointer model;
    ContextPointer context;  // For as many sequences as slots() says, in one pool.
    EngineInfo info;
    kv::Descriptor descriptor;
    StateShape shape;  // But for the sequence and its positions.
  };
  explicit LlamaEngine(Parts parts);

  // Rows of logits that a context for `sequences_max` sequences must give in one step.
  static std::uint32_t logits_max(std::uint32_t sequences_max);
  // Sequences of a context whose engine has `sequences_max`.
  static std::uint32_t slots(std::uint32_t sequences_max, const Window& window);
  // Is a sequence's state what parse_sequence_state() reads, in full?
  Status check_state_format();

  const EngineInfo& info() const override { return info_; }
  const kv::Descriptor& descriptor() const override { return descriptor_; }
  EngineUsage usage() const override;
  Result<SequenceId> open(std::uint64_t tokens_max) override;
  void close(SequenceId sequence) override;
  std::uint64_t length(SequenceId sequence) const override;
  Result<StepOutput> step(std::span<const StepItem> items) override;

  KvSource* kv_source() override { return this; }
  Result<std::unique_ptr<ExportedKv>> export_range(SequenceId sequence, kv::TokenRange range) override;

  KvSink* kv_sink() override { return this; }
  Result<std::vector<kv::Binding>> bind(SequenceId sequence, kv::TokenRange range) override;
  Status adopt(SequenceId sequence, kv::TokenRange range) override;

 private:
  struct Sequence {
    llama_seq_id slot = 0;
    std::uint64_t tokens_max = 0;  // Cells reserved.
    std::uint64_t length = 0;
    std::optional<IncomingState> incoming;  // Between bind() and adopt().
  };

  llama_memory_t memory() const { return llama_get_memory(context_.get()); }
  // llama.cpp gives cells that are out of their only owner's window to whoever needs some. So that a state
  // keeps all its positions, cells of local layers have a second owner, of the same positions, that never
  // steps.
  void hold(llama_seq_id slot, std::uint64_t begin, std::uint64_t end);
  void remove(llama_seq_id slot);
  // The whole of a range that no position of falls out of the window of its last.
  Result<StateBuffer> read_state(llama_seq_id slot, const StateShape& shape);
  Result<Sequence*> find(SequenceId sequence);
  // Checks every item and leaves the batch ready; the number of logits rows.
  Result<std::uint64_t> fill_batch(std::span<const StepItem> items);
  Status check_item(const StepItem& item, const Sequence& sequence) const;
  // llama_decode's own code, or the lowest number for an exception.
  std::int32_t decode();
  // Puts the state into the sequence's cells; on an error the sequence is empty.
  Status restore(llama_seq_id slot, IncomingState& incoming, std::uint64_t end);

  ModelPointer model_;
  ContextPointer context_;  // Let go before the model.
  EngineInfo info_;
  kv::Descriptor descriptor_;
  StateShape shape_;
  std::uint64_t cells_ = 0, cells_reserved_ = 0;
  std::uint32_t logits_max_ = 0;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<llama_seq_id> free_slots_;
  SequenceId next_id_ = 1;
  std::uint64_t tokens_computed_ = 0;
  Batch batch_;
  std::shared_ptr<StateMemory> state_memory_ = std::make_shared<StateMemory>();
};

}  // namespace isthmus::engine::llamacpp
