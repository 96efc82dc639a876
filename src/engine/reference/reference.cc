// SPDX-License-Identifier: Apache-2.0
// Sequences, steps, export and adoption.
#include "engine/reference/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "engine/reference/model.h"
#include "engine/reference/representation.h"
#include "engine/reference/store.h"

namespace isthmus::engine {
namespace {

struct Sequence {
  std::shared_ptr<const Units> units;
  std::uint64_t room = 0;
  std::uint64_t length = 0;
  // Rows of token groups that aren't full, as the model made them: a group's scale changes until it is full.
  std::map<std::array<std::uint32_t, 4>, std::vector<float>> open_groups;
};

struct Exported final : ExportedKv {
  std::shared_ptr<const Units> units;  // Not free before this goes.
  std::vector<kv::Binding> at;
  std::uint64_t size = 0;
  std::span<const kv::Binding> bindings() const override { return at; }
  std::uint64_t bytes() const override { return size; }
};

class StoredPast final : public Past {
 public:
  StoredPast(const ReferenceShape& shape, Store& store, Sequence& sequence)
      : shape_(shape), store_(store), sequence_(sequence) {}

  void put(const RowKey& key, std::uint64_t position, std::span<const float> row) override {
    const RowPlace place = place_of_row(key);
    const std::uint64_t first = position / store_.group_tokens(place) * store_.group_tokens(place);
    std::vector<float>& open = open_group(place, first, position);
    open.insert(open.end(), row.begin(), row.end());
    store_.write(place, *sequence_.units, first, open);
  }

  // What was read stays for the step: rows before this one don't change in it.
  std::span<const float> rows(const RowKey& key, kv::TokenRange positions, std::uint32_t reader) override {
    const RowPlace place = place_of_row(key);
    Read& read = read_[{place.group, place.layer, place.component, place.head, reader}];
    const std::uint64_t group_begin =
        (positions.end - 1) / store_.group_tokens(place) * store_.group_tokens(place);
    if (read.rows.empty())
      read.begin = read.end = positions.begin / store_.group_tokens(place) * store_.group_tokens(place);
    const std::uint64_t keep = std::min(read.end, group_begin);
    std::vector<float> fresh;
    store_.read(place, *sequence_.units, {keep, positions.end}, reader, fresh);
    const std::size_t dim = fresh.size() / (positions.end - keep);
    read.rows.resize((keep - read.begin) * dim);
    read.rows.insert(read.rows.end(), fresh.begin(), fresh.end());
    read.end = positions.end;
    return std::span(read.rows).subspan((positions.begin - read.begin) * dim);
  }

 private:
  struct Read {
    std::uint64_t begin = 0, end = 0;
    std::vector<float> rows;
  };

  RowPlace place_of_row(const RowKey& key) const {
    const LayerPlace at = place_of(shape_, key.layer);
    return {at.group, at.index, key.component, key.head};
  }
  std::vector<float>& open_group(const RowPlace& place, std::uint64_t first, std::uint64_t position) {
    const auto [at, is_new] =
        sequence_.open_groups.try_emplace({place.group, place.layer, place.component, place.head});
    if (position == first) {
      at->second.clear();
    } else if (is_new) {  // Taken over in the middle of a group: what was stored is all there is.
      store_.read(place, *sequence_.units, {first, position}, 0, at->second);
    }
    return at->second;
  }

  const ReferenceShape& shape_;
  Store& store_;
  Sequence& sequence_;
  std::map<std::array<std::uint32_t, 5>, Read> read_;
};

class Reference final : public ReferenceEngine, public KvSource, public KvSink {
 public:
  Reference(const ReferenceOptions& options, std::unique_ptr<kv::Descriptor> descriptor,
            std::unique_ptr<Store> store)
      : options_(options),
        descriptor_(std::move(descriptor)),
        store_(std::move(store)),
        model_(options.shape) {
    info_ = {.name = "reference",
             .version = "1",
             .storage = options.storage,
             .vocabulary = options.shape.vocabulary,
             .context_tokens_max = options.context_tokens,
             .sequences_max = options.sequences_max,
             .step_tokens_max = options.step_tokens_max,
             .block_tokens = descriptor_->representation.front().block_tokens,
             .kv_bytes_per_token = store_->bytes() / (store_->total_units() * store_->unit_tokens())};
  }

  const EngineInfo& info() const override { return info_; }
  const kv::Descriptor& descriptor() const override { return *descriptor_; }
  KvSource* kv_source() override { return has_one_rank() ? this : nullptr; }
  KvSink* kv_sink() override { return this; }

  EngineUsage usage() const override {
    const std::uint64_t used = store_->total_units() - store_->free_units();
    const bool is_paged = info_.block_tokens != 0;
    return {.tokens_computed = computed_,
            .sequences = static_cast<std::uint32_t>(sequences_.size()),
            .kv_bytes_used = used * store_->bytes() / store_->total_units(),
            .kv_bytes_total = store_->bytes(),
            .blocks_used = is_paged ? used : 0,
            .blocks_total = is_paged ? store_->total_units() : 0};
  }

  Result<SequenceId> open(std::uint64_t tokens_max) override {
    if (tokens_max == 0 || tokens_max > options_.context_tokens)
      return Error{Code::kInvalidArgument,
                   fmt::format("{} tokens; 1 to {}", tokens_max, options_.context_tokens)};
    if (sequences_.size() >= options_.sequences_max)
      return Error{Code::kExhausted, fmt::format("{} sequences are open", sequences_.size())};
    ISTHMUS_TRY(auto units, store_->take(tokens_max));
    Sequence& sequence = sequences_[next_];
    sequence.units = std::move(units);
    sequence.room = tokens_max;
    return next_++;
  }

  void close(SequenceId id) override { sequences_.erase(id); }
  std::uint64_t length(SequenceId id) const override { return sequences_.at(id).length; }

  Result<StepOutput> step(std::span<const StepItem> items) override {
    for (const StepItem& item : items) {
      const Sequence& sequence = sequences_.at(item.sequence);
      if (sequence.length + item.tokens.size() > sequence.room)
        return Error{Code::kExhausted, fmt::format("the sequence has room for {} tokens", sequence.room)};
    }
    logits_.clear();
    std::vector<float> row(options_.shape.vocabulary);
    std::uint64_t rows = 0;
    for (const StepItem& item : items) {
      Sequence& sequence = sequences_.at(item.sequence);
      StoredPast past(options_.shape, *store_, sequence);
      for (std::size_t i = 0; i < item.tokens.size(); ++i, ++computed_) {
        model_.step(item.tokens[i], sequence.length++, past, row);
        if (i + item.logits < item.tokens.size()) continue;
        logits_.insert(logits_.end(), row.begin(), row.end());
        ++rows;
      }
    }
    return StepOutput{logits_, rows};
  }

  Result<std::vector<transform::RankMemory>> bindings(SequenceId id, kv::TokenRange range) override {
    const Sequence& sequence = sequences_.at(id);
    if (range.begin >= range.end || range.end > sequence.room) {
      return Error{Code::kInvalidArgument, fmt::format("positions [{}, {}) of a sequence with room for {}",
                                                       range.begin, range.end, sequence.room)};
    }
    return store_->bindings(*sequence.units, range);
  }

  Result<std::vector<std::unique_ptr<ExportedKv>>> export_ranks(SequenceId id,
                                                                kv::TokenRange range) override {
    const Sequence& sequence = sequences_.at(id);
    if (range.end > sequence.length)
      return Error{Code::kInvalidArgument, fmt::format("{} tokens are computed", sequence.length)};
    ISTHMUS_TRY(auto all, bindings(id, range));
    std::vector<std::unique_ptr<ExportedKv>> ranks;
    for (transform::RankMemory& rank : all) {
      auto exported = std::make_unique<Exported>();
      exported->units = sequence.units;
      exported->at = std::move(rank.groups);
      exported->size = range.size() * info_.kv_bytes_per_token / all.size();
      ranks.push_back(std::move(exported));
    }
    return ranks;
  }

  Result<std::unique_ptr<ExportedKv>> export_range(SequenceId id, kv::TokenRange range) override {
    ISTHMUS_TRY(auto ranks, export_ranks(id, range));
    return std::move(ranks.front());
  }

  Result<std::vector<kv::Binding>> bind(SequenceId id, kv::TokenRange range) override {
    if (!has_one_rank())
      return Error{Code::kUnsupported, "a state on several ranks has a binding for each: bindings()"};
    ISTHMUS_TRY(auto all, bindings(id, range));
    return std::move(all.front().groups);
  }

  Status adopt(SequenceId id, kv::TokenRange range) override {
    Sequence& sequence = sequences_.at(id);
    if (range.end > sequence.room)
      return Error{Code::kInvalidArgument, fmt::format("the sequence has room for {} tokens", sequence.room)};
    sequence.length = range.end;
    sequence.open_groups.clear();
    return ok_status();
  }

 private:
  bool has_one_rank() const {
    return std::ranges::all_of(descriptor_->partition, [](const kv::RankBox& box) { return box.rank == 0; });
  }

  ReferenceOptions options_;
  std::unique_ptr<kv::Descriptor> descriptor_;
  std::unique_ptr<Store> store_;
  ReferenceModel model_;
  EngineInfo info_;
  std::map<SequenceId, Sequence> sequences_;
  SequenceId next_ = 1;
  std::uint64_t computed_ = 0;
  std::vector<float> logits_;
};

}  // namespace

Result<std::unique_ptr<ReferenceEngine>> make_reference(const ReferenceOptions& options) {
  ISTHMUS_TRY(kv::Descriptor made, describe(options));
  auto descriptor = std::make_unique<kv::Descriptor>(std::move(made));
  ISTHMUS_TRY(auto store, Store::make(*descriptor, options));
  return std::unique_ptr<ReferenceEngine>(
      std::make_unique<Reference>(options, std::move(descriptor), std::move(store)));
}

}  // namespace isthmus::engine
