// SPDX-License-Identifier: Apache-2.0
// Sequences over blocks of our own: steps as one forward, state handed out and taken in place.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/api/block_chain.h"
#include "engine/api/engine.h"
#include "engine/openvino/batch.h"
#include "engine/openvino/block_pool.h"
#include "engine/openvino/kv_memory.h"
#include "engine/openvino/openvino.h"
#include "engine/openvino/paged_model.h"
#include "engine/openvino/parking_lot.h"

namespace isthmus::engine::openvino {

// Blocks of one sequence. Exports may outlive the sequence and the engine, on any thread: the memory lives as
// long as anyone refers to it, the blocks stay taken until `exports` is back at zero.
struct SequenceBlocks {
  std::vector<std::uint32_t> blocks;
  std::shared_ptr<const KvMemory> memory;
  std::atomic<std::uint32_t> exports{0};
  std::atomic<std::uint32_t> unsettled_exports{
      0};  // Of those, with a block that the next append would change.
};

struct Sequence {
  std::shared_ptr<SequenceBlocks> blocks;
  std::uint64_t tokens_max = 0;
  std::uint64_t length = 0;
  std::optional<kv::TokenRange> bound;  // Others may write this range; no step until adopt().
  // Of the blocks of [0, shared), which others may hold too; none once a block was filled by several steps,
  // and of sequences that don't share.
  std::optional<BlockChain> chain;
  std::uint64_t shared = 0;
  // Of a state on its way here: how much of it the sequence was opened with, and the keys of the whole blocks
  // behind that, until they are adopted.
  std::uint64_t arrived = 0;
  std::vector<BlockKey> arriving = {};
  std::vector<std::uint32_t> parked = {};  // Places of the blocks behind those in the pool.
};

// What make_openvino has loaded and checked.
struct EngineParts {
  Options options;
  EngineInfo info;
  kv::Descriptor descriptor;
  std::shared_ptr<const KvMemory> memory;
  std::unique_ptr<PagedModel> model;  // After the memory that it writes, so that it goes first.
  kv::Binding regions;                // Memory alone.
  std::unique_ptr<ParkingLot> parking;
};

// The engine over its checked parts. Thread: one, as Engine says; exports may go away on any.
class OpenvinoEngine : public Engine,
                       public KvSource,
                       public KvSink,
                       public PrefixKeeper,
                       public Parking,
                       public Speculation {
 public:
  explicit OpenvinoEngine(EngineParts parts);

  const EngineInfo& info() const override { return parts_.info; }
  const kv::Descriptor& descriptor() const override { return parts_.descriptor; }
  EngineUsage usage() const override;

  Result<SequenceId> open(std::uint64_t tokens_max) override;
  void close(SequenceId sequence) override;
  std::uint64_t length(SequenceId sequence) const override;
  Result<StepOutput> step(std::span<const StepItem> items) override;

  KvSource* kv_source() override { return this; }
  KvSink* kv_sink() override { return this; }
  PrefixKeeper* prefix_keeper() override { return this; }
  Parking* parking() override { return this; }
  // A lone token has a padding token beside it anyhow. Not where a block's rows are requantised together.
  Speculation* speculation() override {
    return parts_.model->shape().rewrites_partial_blocks ? nullptr : this;
  }

  Result<std::unique_ptr<ExportedKv>> export_range(SequenceId sequence, kv::TokenRange range) override;
  Result<std::vector<kv::Binding>> bind(SequenceId sequence, kv::TokenRange range) override;
  Status adopt(SequenceId sequence, kv::TokenRange range) override;
  void take_back(SequenceId sequence, std::uint64_t tokens) override;
  Result<SequenceId> open_known(std::uint64_t tokens_max, std::span<const TokenId> prompt,
                                const std::optional<std::string>& salt) override;
  std::unique_ptr<HeldPrefix> hold_arrived(const ArrivingState& state) override;
  Result<SequenceId> open_arriving(std::uint64_t tokens_max, const ArrivingState& state,
                                   std::uint64_t known) override;
  std::uint64_t blocks() const override { return parts_.parking->total(); }
  Result<SequenceId> open_growing(std::uint64_t tokens_max) override;
  Status park(SequenceId sequence, std::uint64_t blocks_left) override;
  Status unpark(SequenceId sequence) override;

 private:
  // Memory for `tokens`, the blocks of `keys` first as far as they are known.
  Result<SequenceId> open_over(std::uint64_t tokens_max, std::uint64_t tokens, std::span<const BlockKey> keys,
                               std::optional<BlockChain> chain);
  Result<Sequence*> find(SequenceId sequence);
  // One with all its memory in the pool.
  Result<Sequence*> find_unparked(SequenceId sequence);
  // Blocks that it lacks to have `tokens` in all.
  static std::uint64_t lacking(const Sequence& sequence, std::uint64_t tokens);
  static void append(std::vector<BatchItem>& batch, const StepItem& item, const Sequence& sequence);
  // All that the items need, or nothing.
  Status take_blocks(std::span<const StepItem> items);
  // Blocks of closed sequences whose last export is gone.
  void reclaim();
  Status check_items(std::span<const StepItem> items);
  Status check_item(const StepItem& item);
  // Stops the process if a block that `tokens` more would be written to isn't the sequence's alone.
  void check_writable(const Sequence& sequence, std::uint64_t tokens) const;
  // `tokens` were computed behind what was there: full blocks of theirs are shared from now on.
  void share_blocks(Sequence& sequence, std::span<const TokenId> tokens);
  // What was adopted of whole blocks is kept from now on.
  void keep_arrived(Sequence& sequence);
  // The last block of `range` isn't full, and the engine would requantise it in the next step.
  bool is_unsettled(const Sequence& sequence, kv::TokenRange range) const;
  kv::Binding binding_of(const Sequence& sequence, kv::TokenRange range) const;

  EngineParts parts_;
  BlockPool pool_;
  std::uint32_t padding_block_;  // Padding tokens of lone decode steps write here; no sequence ever has it.
  std::map<SequenceId, Sequence> sequences_;              // At most options.sequences_max.
  std::vector<std::shared_ptr<SequenceBlocks>> closing_;  // Closed but exported; at most one a block.
  SequenceId next_sequence_ = 1;
  std::uint64_t tokens_computed_ = 0;
  ForwardInput forward_;  // OpenVINO reads it in place.
};

}  // namespace isthmus::engine::openvino
