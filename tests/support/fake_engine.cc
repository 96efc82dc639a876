// SPDX-License-Identifier: Apache-2.0
// The engine that spells.
#include "support/fake_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/digest.h"
#include "engine/api/block_chain.h"
#include "kv/catalogue.h"
#include "support/state_view.h"

namespace isthmus::support {
namespace {

constexpr std::uint32_t kLayers = 4, kHeads = 3, kDim = 64;
// Elements [0, 7) of a row spell the token's bits, [7, 23) its position's, [23, …) depend on layer, head and
// component, so that a row in any other place is noticed.
constexpr std::uint32_t kTokenBits = 7, kPositionBits = 16;

std::vector<float> row_of(engine::TokenId token, std::uint64_t position, std::uint32_t salt) {
  std::vector<float> row(kDim);
  for (std::uint32_t d = 0; d < kDim; ++d) {
    bool bit = false;
    if (d < kTokenBits) {
      bit = ((static_cast<std::uint32_t>(token) >> d) & 1u) != 0;
    } else if (d < kTokenBits + kPositionBits) {
      bit = ((position >> (d - kTokenBits)) & 1u) != 0;
    } else {
      bit = (((salt * 2654435761u) >> (d % 32)) & 1u) != 0;
    }
    row[d] = bit ? 1.0f : -1.0f;
  }
  return row;
}

std::uint32_t salt_of(std::uint32_t layer, std::uint32_t head, bool is_v) {
  return 1 + (layer * kHeads + head) * 2 + (is_v ? 1 : 0);
}

engine::TokenId next_token(std::span<const engine::TokenId> tokens) {
  const Digest128 digest = digest128(std::as_bytes(tokens));
  return static_cast<engine::TokenId>('a' + digest.low % 26);
}

kv::Descriptor describe(const FakeEngineOptions& options) {
  const kv::Storage& storage = **kv::find_storage(options.storage);
  kv::Descriptor descriptor;
  descriptor.identity = {.architecture = "fake",
                         .lineage = options.lineage,
                         .config_digest = "fake-config",
                         .tokenizer_digest = "bytes",
                         .adapters = {},
                         .position_scheme = "rope",
                         .rope_theta = 10000,
                         .rope_scaling = "none"};
  descriptor.weights_recipe = "none";
  descriptor.weights_digest = options.lineage;
  kv::LayerGroup group;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) group.layers.push_back(layer);
  group.components = {
      {.name = "k",
       .heads = kHeads,
       .dim = kDim,
       .has_token_axis = true,
       .value_transforms = {"rope:interleaved"}},
      {.name = "v", .heads = kHeads, .dim = kDim, .has_token_axis = true, .value_transforms = {}}};
  kv::StoredGroup stored = *kv::represent(storage, std::move(group));
  descriptor.groups = {std::move(stored.group)};
  descriptor.representation = {std::move(stored.representation)};
  descriptor.partition = {
      {.rank = 0, .group = 0, .layer_begin = 0, .layer_end = kLayers, .head_begin = 0, .head_end = kHeads}};
  return descriptor;
}

struct Exported final : engine::ExportedKv {
  kv::Binding at;
  std::uint64_t size = 0;
  std::span<const kv::Binding> bindings() const override { return {&at, 1}; }
  std::uint64_t bytes() const override { return size; }
};

struct Held final : engine::HeldPrefix {
  explicit Held(std::uint64_t count) : held(count) {}
  std::uint64_t held;
  std::uint64_t tokens() const override { return held; }
};

class FakeEngine final : public engine::Engine,
                         public engine::KvSource,
                         public engine::KvSink,
                         public engine::PrefixKeeper,
                         public engine::Parking,
                         public engine::Speculation {
 public:
  explicit FakeEngine(const FakeEngineOptions& options) : options_(options), descriptor_(describe(options)) {
    const kv::Layout layout = *descriptor_.layout(0, 0);
    block_tokens_ = descriptor_.representation[0].block_tokens;
    const std::uint64_t unit = block_tokens_ == 0 ? 1 : block_tokens_;
    extent_ = (options.kv_tokens + unit - 1) / unit;
    for (const kv::RegionLayout& region : layout.regions()) {
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
        auto& memory = memory_.emplace_back(layout.region_bytes(region.name, extent_));
        regions_.push_back({region.name, layer, memory.data(), memory.size(), extent_});
        bytes_ += memory.size();
      }
    }
    for (std::uint64_t i = extent_; i > 0; --i) free_.push_back(static_cast<std::uint32_t>(i - 1));
    info_ = {.name = "fake",
             .version = "1",
             .storage = options.storage,
             .vocabulary = kFakeVocabulary,
             .context_tokens_max = options.context_tokens,
             .sequences_max = options.sequences_max,
             .step_tokens_max = options.step_tokens_max,
             .block_tokens = block_tokens_,
             .kv_bytes_per_token = bytes_ / (extent_ * unit),
             .repeats_states = options.repeats_states};
  }

  const engine::EngineInfo& info() const override { return info_; }
  const kv::Descriptor& descriptor() const override { return descriptor_; }
  engine::KvSource* kv_source() override { return this; }
  engine::KvSink* kv_sink() override { return this; }
  engine::PrefixKeeper* prefix_keeper() override { return options_.keeps_arrived ? this : nullptr; }
  engine::Parking* parking() override { return block_tokens_ == 0 ? nullptr : this; }
  engine::Speculation* speculation() override { return options_.speculates ? this : nullptr; }

  engine::EngineUsage usage() const override {
    const std::uint64_t used = extent_ - free_.size();
    return {.tokens_computed = computed_,
            .sequences = static_cast<std::uint32_t>(sequences_.size()),
            .kv_bytes_used = used * (bytes_ / extent_),
            .kv_bytes_total = bytes_,
            .blocks_used = block_tokens_ == 0 ? 0 : used,
            .blocks_total = block_tokens_ == 0 ? 0 : extent_,
            .blocks_parked = parked_};
  }

  Result<engine::SequenceId> open(std::uint64_t tokens_max) override {
    const std::uint64_t unit = block_tokens_ == 0 ? 1 : block_tokens_;
    const std::uint64_t need = (tokens_max + unit - 1) / unit;
    if (sequences_.size() >= options_.sequences_max || need > free_.size()) {
      return Error{Code::kExhausted,
                   fmt::format("{} of {} units free, {} needed", free_.size(), extent_, need)};
    }
    Sequence& sequence = sequences_[next_];
    // Rows must be contiguous, blocks are scattered.
    if (block_tokens_ == 0) {
      const auto first = find_rows(need);
      if (!first) {
        sequences_.erase(next_);
        return Error{Code::kExhausted, "no contiguous rows"};
      }
      for (std::uint64_t i = 0; i < need; ++i)
        sequence.units.push_back(static_cast<std::uint32_t>(*first + i));
      std::erase_if(free_, [&](std::uint32_t row) { return row >= *first && row < *first + need; });
    } else {
      add_blocks(sequence, need);
    }
    sequence.room = tokens_max;
    return next_++;
  }

  void close(engine::SequenceId id) override {
    const Sequence sequence = sequences_.at(id);
    for (const std::uint32_t unit : sequence.units) free_.push_back(unit);
    parked_ -= sequence.parked.size();
    sequences_.erase(id);
  }

  std::uint64_t length(engine::SequenceId id) const override { return sequences_.at(id).length; }
  void take_back(engine::SequenceId id, std::uint64_t tokens) override {
    Sequence& sequence = sequences_.at(id);
    sequence.length -= tokens;
    sequence.read.resize(std::min<std::size_t>(sequence.read.size(), sequence.length));
  }

  Result<engine::StepOutput> step(std::span<const engine::StepItem> items) override {
    if (options_.before_step) options_.before_step(items);
    logits_.clear();
    std::uint64_t rows = 0;
    for (const engine::StepItem& item : items) {
      Sequence& sequence = sequences_.at(item.sequence);
      if (sequence.length + item.tokens.size() > sequence.room)
        return Error{Code::kExhausted, "the sequence is full"};
      if (!sequence.parked.empty()) return Error{Code::kInvalidArgument, "the sequence is parked"};
      ISTHMUS_TRY(grow(sequence, sequence.length + item.tokens.size()));
      write(sequence, item.tokens);
      computed_ += item.tokens.size();
      for (std::uint32_t i = 0; i < item.logits; ++i, ++rows)
        add_logits(sequence, sequence.length - item.logits + i + 1);
    }
    return engine::StepOutput{logits_, rows};
  }

  Result<std::unique_ptr<engine::ExportedKv>> export_range(engine::SequenceId id,
                                                           kv::TokenRange range) override {
    const Sequence& sequence = sequences_.at(id);
    if (range.end > sequence.length) return Error{Code::kInvalidArgument, "not computed yet"};
    auto exported = std::make_unique<Exported>();
    exported->at = binding(sequence, range);
    exported->size = range.size() * info_.kv_bytes_per_token;
    return std::unique_ptr<engine::ExportedKv>(std::move(exported));
  }

  Result<std::vector<kv::Binding>> bind(engine::SequenceId id, kv::TokenRange range) override {
    ISTHMUS_TRY(grow(sequences_.at(id), range.end));
    return std::vector{binding(sequences_.at(id), range)};
  }
  Status adopt(engine::SequenceId id, kv::TokenRange range) override {
    Sequence& sequence = sequences_.at(id);
    if (range.begin != sequence.length) return Error{Code::kInvalidArgument, "not what was bound"};
    sequence.length = range.end;
    kept_.insert(sequence.arriving.begin(), sequence.arriving.end());
    return ok_status();
  }

  Result<engine::SequenceId> open_known(std::uint64_t tokens_max, std::span<const engine::TokenId>,
                                        const std::optional<std::string>&) override {
    return block_tokens_ == 0 ? open(tokens_max) : open_growing(tokens_max);
  }
  std::unique_ptr<engine::HeldPrefix> hold_arrived(const engine::ArrivingState& state) override {
    std::uint64_t known = 0;
    for (const engine::BlockKey& key : keys_of(state)) {
      if (!kept_.contains(key) || (known + 1) * block_tokens_ + 2 > state.prompt.size()) break;
      ++known;
    }
    return known == 0 ? nullptr : std::make_unique<Held>(known * block_tokens_);
  }
  // No block is shared: what is known is written anew.
  Result<engine::SequenceId> open_arriving(std::uint64_t tokens_max, const engine::ArrivingState& state,
                                           std::uint64_t known) override {
    ISTHMUS_TRY(const engine::SequenceId id,
                block_tokens_ == 0 ? open(tokens_max) : open_growing(tokens_max));
    Sequence& sequence = sequences_.at(id);
    if (const Status grown = grow(sequence, known); !grown.ok()) {
      close(id);
      return grown.error();
    }
    if (known > 0) write(sequence, std::span(state.prompt).first(known));
    sequence.arriving = keys_of(state);
    return id;
  }
  std::uint64_t blocks() const override { return options_.parked_tokens / block_tokens_; }
  Result<engine::SequenceId> open_growing(std::uint64_t tokens_max) override {
    if (sequences_.size() >= options_.sequences_max) return Error{Code::kExhausted, "all sequences are open"};
    sequences_[next_].room = tokens_max;
    return next_++;
  }
  Status park(engine::SequenceId id, std::uint64_t blocks_left) override {
    Sequence& sequence = sequences_.at(id);
    while (sequence.units.size() > blocks_left) {
      if (parked_ == blocks()) return Error{Code::kExhausted, "no room to park"};
      sequence.parked.insert(sequence.parked.begin(), bytes_of(sequence.units.back()));
      free_.push_back(sequence.units.back());
      sequence.units.pop_back();
      ++parked_;
    }
    return ok_status();
  }
  Status unpark(engine::SequenceId id) override {
    Sequence& sequence = sequences_.at(id);
    if (sequence.parked.size() > free_.size()) return Error{Code::kExhausted, "no room to come back"};
    const std::size_t first = sequence.units.size();
    add_blocks(sequence, sequence.parked.size());
    for (std::size_t i = 0; i < sequence.parked.size(); ++i) {
      const std::byte* from = sequence.parked[i].data();
      for (const kv::RegionMemory& region : regions_) {
        const std::uint64_t size = region.bytes / extent_;
        std::copy_n(from, size, region.base + sequence.units[first + i] * size);
        from += size;
      }
    }
    parked_ -= sequence.parked.size();
    sequence.parked.clear();
    sequence.read.clear();  // All is read anew.
    return ok_status();
  }

 private:
  struct Sequence {
    std::vector<std::uint32_t> units;            // Blocks or rows.
    std::vector<std::vector<std::byte>> parked;  // Blocks behind them.
    std::uint64_t length = 0, room = 0;
    std::vector<engine::BlockKey> arriving;
    std::vector<engine::TokenId> read;  // Tokens that have been read back out of the state.
  };

  std::vector<engine::BlockKey> keys_of(const engine::ArrivingState& state) const {
    return engine::block_keys(engine::BlockChain(descriptor_.digest(), state.origin, state.salt),
                              state.prompt, block_tokens_, state.repeated / block_tokens_);
  }

  void add_blocks(Sequence& sequence, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::size_t at = (i * 7 + next_) % free_.size();
      sequence.units.push_back(free_[at]);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  Status grow(Sequence& sequence, std::uint64_t tokens) {
    if (block_tokens_ == 0) return ok_status();
    const std::uint64_t has = sequence.units.size();
    const std::uint64_t need = std::max(has, (tokens + block_tokens_ - 1) / block_tokens_) - has;
    if (need > free_.size()) return Error{Code::kExhausted, "no block is free"};
    add_blocks(sequence, need);
    return ok_status();
  }

  std::vector<std::byte> bytes_of(std::uint32_t block) const {
    std::vector<std::byte> bytes;
    for (const kv::RegionMemory& region : regions_) {
      const std::uint64_t size = region.bytes / extent_;
      bytes.insert(bytes.end(), region.base + block * size, region.base + (block + 1) * size);
    }
    return bytes;
  }

  std::optional<std::uint64_t> find_rows(std::uint64_t need) const {
    std::vector<std::uint32_t> rows = free_;
    std::sort(rows.begin(), rows.end());
    std::uint64_t run = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      run = i > 0 && rows[i] == rows[i - 1] + 1 ? run + 1 : 1;
      if (run == need) return rows[i] + 1 - need;
    }
    return std::nullopt;
  }

  kv::Binding binding(const Sequence& sequence, kv::TokenRange range) const {
    kv::Binding at;
    at.memory = regions_;
    if (block_tokens_ == 0) {
      at.first_row = sequence.units.front();
    } else {
      at.blocks = sequence.units;
    }
    at.valid = range;
    return at;
  }

  void write(Sequence& sequence, std::span<const engine::TokenId> tokens) {
    const kv::TokenRange range{sequence.length, sequence.length + tokens.size()};
    const kv::Binding at = binding(sequence, range);
    const StateView view(descriptor_, at);
    view.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
      const engine::TokenId token = tokens[position - range.begin];
      view.write_row("k", layer, position, head, row_of(token, position, salt_of(layer, head, false)));
      view.write_row("v", layer, position, head, row_of(token, position, salt_of(layer, head, true)));
    });
    sequence.length = range.end;
  }

  // Reads tokens out of layer 0 and demands that every other row says the same. False: the state is wrong.
  bool read_back(Sequence& sequence, std::uint64_t length) {
    if (sequence.read.size() >= length) return true;
    const kv::TokenRange range{sequence.read.size(), length};
    const kv::Binding at = binding(sequence, range);
    const StateView view(descriptor_, at);
    for (std::uint64_t position = range.begin; position < range.end; ++position) {
      const std::vector<float> row = view.read_row("k", 0, position, 0);
      engine::TokenId token = 0;
      for (std::uint32_t d = 0; d < kTokenBits; ++d) token |= row[d] > 0 ? 1 << d : 0;
      sequence.read.push_back(token);
    }
    bool same = true;
    view.each_row([&](std::uint32_t layer, std::uint64_t position, std::uint32_t head) {
      for (const bool is_v : {false, true}) {
        const std::vector<float> row = view.read_row(is_v ? "v" : "k", layer, position, head);
        const std::vector<float> expected =
            row_of(sequence.read[position], position, salt_of(layer, head, is_v));
        for (std::uint32_t d = 0; d < kDim; ++d) same = same && std::abs(row[d] - expected[d]) < 0.01f;
      }
    });
    return same;
  }

  void add_logits(Sequence& sequence, std::uint64_t length) {
    std::vector<float> row(kFakeVocabulary, 0.0f);
    if (read_back(sequence, length)) {
      row[static_cast<std::size_t>(next_token(std::span(sequence.read).first(length)))] = 10.0f;
    } else {
      row.assign(kFakeVocabulary, std::numeric_limits<float>::quiet_NaN());
    }
    logits_.insert(logits_.end(), row.begin(), row.end());
  }

  FakeEngineOptions options_;
  kv::Descriptor descriptor_;
  engine::EngineInfo info_;
  std::uint32_t block_tokens_ = 0;
  std::uint64_t extent_ = 0, bytes_ = 0;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<kv::RegionMemory> regions_;
  std::vector<std::uint32_t> free_;
  std::map<engine::SequenceId, Sequence> sequences_;
  std::set<engine::BlockKey> kept_;
  engine::SequenceId next_ = 1;
  std::uint64_t computed_ = 0, parked_ = 0;
  std::vector<float> logits_;
};

class FakeTokenizer final : public engine::Tokenizer {
 public:
  Result<std::vector<engine::TokenId>> encode(std::string_view text, bool, bool) const override {
    std::vector<engine::TokenId> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c) % kFakeVocabulary);
    return tokens;
  }
  std::string piece(engine::TokenId token, bool) const override {
    return std::string(1, static_cast<char>(token));
  }
  bool is_end_of_generation(engine::TokenId token) const override { return token == 0; }
  std::uint32_t vocabulary() const override { return kFakeVocabulary; }
  Result<std::string> apply_chat_template(std::span<const engine::ChatMessage> messages) const override {
    std::string text;
    for (const engine::ChatMessage& message : messages) text += message.role + ": " + message.content + "\n";
    return text;
  }
  std::string digest() const override { return "bytes"; }
};

}  // namespace

std::unique_ptr<engine::Engine> make_fake_engine(const FakeEngineOptions& options) {
  return std::make_unique<FakeEngine>(options);
}

std::shared_ptr<const engine::Tokenizer> make_fake_tokenizer() {
  return std::make_shared<FakeTokenizer>();
}

std::string fake_answer(const std::string& prompt, std::size_t tokens) {
  std::vector<engine::TokenId> all = *FakeTokenizer().encode(prompt, false, false);
  std::string answer;
  for (std::size_t i = 0; i < tokens; ++i) {
    all.push_back(next_token(all));
    answer += static_cast<char>(all.back());
  }
  return answer;
}

}  // namespace isthmus::support
